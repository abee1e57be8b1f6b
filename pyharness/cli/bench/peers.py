"""pyharness bench peers"""

import click
from rich.console import Console
from rich.progress import Progress

from pyharness import rules
from pyharness.bench import faster_whisper_peer, libraries
from pyharness.bench import peers as benches
from pyharness.bench.libraries import STOCK, Arm
from pyharness.cli.bench.options import Several, json_option, threads_option
from pyharness.cli.bench.reduced import reduced, reduced_options
from pyharness.cli.bench.table import show


@click.command()
@click.option(
    "--models",
    "names",
    type=Several(click.STRING),
    help="Names or paths; of each, stock and ours.  [default: the profile's, else base]",
)
@click.option("--clips", type=click.IntRange(1), default=50, show_default=True, help="Of the speech set, at most.")
@click.option("--repeats", type=click.IntRange(1), default=1, show_default=True, help="Of each clip and arm.")
@click.option("--beam-size", type=click.IntRange(1, 8), help="Of all arms; 1 is greedy.  [default: 1]")
@reduced_options
@threads_option
@json_option
def peers(names, clips, repeats, beam_size, speech, language, budget, tau, profile, threads, as_json):
    """Compare with faster-whisper, int8 and float32, on the same clips.

    Needs padsink[peers]. faster-whisper reads the weights that the models are made of, and decodes in the same way:
    language given, without a voice detector, temperature fallback or the text so far. Every arm has a process of its
    own; they take turns clip by clip. Loading the models is not timed.

    \b
    Examples:
      pyharness bench peers --models base,base-q8_0
      pyharness bench peers --profile calibration/base-en.json --threads 1 --clips 200
    """
    libraries.check()
    faster_whisper_peer.versions()
    chosen = reduced(budget, tau, profile, beam_size)
    console = Console(stderr=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    settings = benches.Settings(
        parts=tuple(chosen.parts(names or (chosen.model,), speech, language, clips, say)),
        arms=(STOCK, *map(Arm, dict.fromkeys((rules.Off(), rules.Full(), chosen.arm)))),
        limits=chosen.limits,
        repeats=repeats,
        threads=threads,
    )
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("clips", total=len(settings.parts[0].clips) * len(threads))
        result = benches.run(settings, advance=lambda: progress.advance(task), say=say)
    show(result, as_json)
