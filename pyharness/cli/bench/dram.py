"""pyharness bench dram"""

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from pyharness.bench import dram as drams
from pyharness.bench.step import MAX_STEPS
from pyharness.cli.bench.options import (
    budgets_option,
    clip_option,
    json_option,
    own_clip,
)
from pyharness.cli.bench.table import show


@click.command()
@click.option("--model", default="base", show_default=True, help="Name or path; synth-* will do.")
@clip_option
@click.option("--language", default="en", show_default=True, help="Of the clip.")
@budgets_option
@click.option("--steps", "n_steps", type=click.IntRange(1, MAX_STEPS), default=16, show_default=True, help="Of a run.")
@click.option(
    "--source",
    type=click.Choice([drams.AUTO, *drams.SOURCES]),
    default=drams.AUTO,
    show_default=True,
    help="Who tells what is read; auto: the first of the others that works here.",
)
@click.option(
    "--build",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of our build; stock's is DIR-stock.  [default: build-portable for cachegrind, else build]",
)
@json_option
def dram(model, clip, language, budgets, n_steps, source, build, as_json):
    """Count the bytes that a decoder step reads from memory.

    \b
    Sources, best first:
      perf        the CPU's counters, through `perf stat`; virtual machines have none
      cachegrind  valgrind's simulation of this CPU's last two caches. valgrind knows no AVX-512: it needs
                  `./build.sh --portable stock`. Some seconds for each step
      counted     weights and rows of the cross cache, by arithmetic

    Every arm is fed the same tokens behind the same clip, with one thread. Nothing is transcribed, so there is no error
    rate: "same" is the share of steps whose most probable token is that of stock.

    \b
    Examples:
      pyharness bench dram
      pyharness bench dram --model base-q5_0 --source cachegrind --budgets 192 --json
    """
    settings = drams.Settings(
        model=model,
        clip=clip or own_clip(),
        language=language,
        budgets=budgets,
        steps=n_steps,
        source=source,
        build=build and build.absolute(),
    )
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=None)
        result = drams.run(settings, lambda done, total: progress.update(task, completed=done, total=total))
    show(result, as_json)
