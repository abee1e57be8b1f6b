"""pyharness bench builds"""

from pathlib import Path

import click

from pyharness import rules
from pyharness.bench import libraries
from pyharness.bench import utterance as utterances
from pyharness.bench.libraries import STOCK, Arm
from pyharness.cli.bench.options import json_option, length_options, speech_options, threads_option
from pyharness.cli.bench.reduced import reduced
from pyharness.cli.bench.utterance import run_and_show, say

TAKEN = ("stock", "ours")


class NamedBuild(click.ParamType):
    """NAME=DIR -> (name, its library)."""

    name = "name=dir"

    def convert(self, value, param, ctx):
        name, _, folder = value.partition("=")
        if not name or not folder or name in TAKEN:
            self.fail(f"'{value}' is not NAME=DIR with a name other than {' and '.join(TAKEN)}", param, ctx)
        library = Path(folder) / "lib" / "libwhisper.so"
        if not library.is_file():
            self.fail(f"no library at '{library}'", param, ctx)
        return name, library.absolute()


@click.command()
@click.option("--build", "given", type=NamedBuild(), multiple=True, help="Another build: DIR/lib/libwhisper.so.")
@click.option("--flash-attention-off", is_flag=True, help="Stock without flash attention, too.")
@click.option("--model", default="base", show_default=True, help="Name or path.")
@length_options
@speech_options
@threads_option
@json_option
def builds(given, flash_attention_off, model, lengths, clips, repeats, speech, language, threads, as_json):
    """Time whole clips under builds of other options.

    Nobody reads a view here, so only the build makes a difference. "off" is ours, of the same options as stock: how far
    its speedup is from 1 tells what the others' are worth. Rows are those of `bench utterance`.

    \b
    Example:
      PADSINK_CMAKE="-DGGML_OPENMP=OFF" ./build.sh --variant no-openmp
      pyharness bench builds --build no-openmp=build-no-openmp --model base-q5_0 --flash-attention-off
    """
    libraries.check()
    others = dict(given)
    if len(others) < len(given):
        raise click.BadParameter("the same name twice", param_hint="--build")
    chosen = reduced(budget=None, tau=None, profile=None)
    (part,) = chosen.parts((model,), speech, language, None, say)
    slow = (Arm(None, "stock", flash_attention=False),) if flash_attention_off else ()
    settings = utterances.Settings(
        part=part,
        arms=(STOCK, Arm(rules.Off()), *slow, *(Arm(None, name) for name in others)),
        limits=chosen.limits,
        lengths=lengths,
        clips=clips,
        repeats=repeats,
        threads=threads,
        bench="builds",
        others=others,
    )
    run_and_show(settings, as_json)
