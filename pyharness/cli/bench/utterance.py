"""pyharness bench utterance"""

import click
from rich.console import Console
from rich.progress import Progress

from pyharness import rules
from pyharness.bench import libraries
from pyharness.bench import utterance as utterances
from pyharness.bench.libraries import STOCK, Arm
from pyharness.cli.bench.options import json_option, length_options, threads_option
from pyharness.cli.bench.reduced import reduced, reduced_options
from pyharness.cli.bench.table import show


@click.command()
@click.option("--model", help="Name or path.  [default: the profile's, else base]")
@length_options
@reduced_options
@threads_option
@json_option
def utterance(model, lengths, clips, repeats, speech, language, budget, tau, profile, threads, as_json):
    """Time whole clips, from samples to text, by their length in seconds.

    For each length, the clips of the set that are nearest to it, none farther off than a quarter. Times are medians of
    the clips; a speedup is the median of the clips' ratios of stock's time to the arm's, and above 1 the arm is faster.

    \b
    Examples:
      pyharness bench utterance --model base
      pyharness bench utterance --profile calibration/base-en.json --threads 1 --lengths 2,4 --clips 20
    """
    libraries.check()
    chosen = reduced(budget, tau, profile)
    (part,) = chosen.parts((model or chosen.model,), speech, language, None, say)
    settings = utterances.Settings(
        part=part,
        arms=(STOCK, Arm(rules.Off()), Arm(chosen.arm)),
        limits=chosen.limits,
        lengths=lengths,
        clips=clips,
        repeats=repeats,
        threads=threads,
    )
    run_and_show(settings, as_json)


def say(text: str) -> None:
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def run_and_show(settings: utterances.Settings, as_json: bool) -> None:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{len(settings.arms)} arms")
        result = utterances.run(
            settings,
            advance=lambda done, total: progress.update(task, completed=done, total=total),
            say=lambda text: progress.console.print(text, highlight=False, soft_wrap=True),
        )
    show(result, as_json)
