"""pyharness bench step"""

from functools import partial

import click
from rich.console import Console
from rich.progress import Progress

from pyharness.bench import libraries
from pyharness.bench import step as steps
from pyharness.cli.bench.options import (
    budgets_option,
    clip_option,
    json_option,
    language_option,
    model_option,
    own_clip,
    threads_option,
)
from pyharness.cli.bench.table import ARM, HOW, median_ms, show, with_interval
from pyharness.report import Column, number, percent


def _part(key: str, row: dict) -> str:
    return number(row[key], 2)


STEP_COLUMNS = (
    ARM,
    Column("ms/step", median_ms),
    Column("to stock", lambda row: with_interval(row, "ratio_to_stock", "ratio_low", "ratio_high")),
    Column("read/step", lambda row: number(row["positions"])),
    Column("MB/step", lambda row: number(row["bytes_read"] / 1e6, 2)),
    *(Column(part, partial(_part, f"{part}_ms")) for part in ("weights", "cross", "text", "tracking", "rest")),
    Column("rows copied", lambda row: number(row["rows_copied"], 1)),
    Column("same", lambda row: percent(row["same_tokens"])),
    Column("full", lambda row: number(row["full"])),
    Column("re-exec.", lambda row: number(row["reexecuted"])),
    Column("n", lambda row: number(row["n"])),
    *HOW,
)
STEP_LEGEND = (
    "ms/step: median of n passes (quartiles). to stock: median of the paired ratios (95 % interval). read/step: "
    "positions. MB/step, rows copied: of the cross cache, all layers. weights, cross, text: ms of the products with "
    "matrices, of the attention over the encoder's positions and over the text, found by passes that compute the graph "
    "node by node. tracking: ms of all that the view adds, from window to confidence. rest: what is left. same: steps "
    "whose best token is stock's. full, re-exec.: steps of a pass that read everything, though the rule is to read "
    "less."
)


@click.command()
@model_option
@clip_option
@language_option
@budgets_option
@threads_option
@click.option(
    "--steps",
    "n_steps",
    type=click.IntRange(1, steps.MAX_STEPS),
    default=24,
    show_default=True,
    help="Timed steps of a pass.",
)
@click.option("--rounds", type=click.IntRange(2), default=30, show_default=True, help="Passes of each arm.")
@json_option
def step(model, clip, language, budgets, threads, n_steps, rounds, as_json):
    """Time a decoder step.

    Every arm is fed the same tokens behind the same clip, so that all do the same steps. A pass is a prompt and --steps
    steps; its time is whisper.cpp's own "decode time" of these, without what chooses tokens. Nothing is transcribed, so
    there is no error rate: "same" is the share of steps whose most probable token is that of stock.

    \b
    Examples:
      pyharness bench step
      pyharness bench step --model synth-medium-q5_0 --threads 1 --budgets 192 --json
    """
    libraries.check()
    settings = steps.Settings(
        model=model,
        clip=clip or own_clip(),
        language=language,
        budgets=budgets,
        threads=threads,
        steps=n_steps,
        rounds=rounds,
    )
    n_passes = len(settings.arms) * rounds * len(threads)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{n_passes} passes", total=n_passes)
        result = steps.run(settings, lambda n: progress.advance(task, n))
    show(result, STEP_COLUMNS, f"{model} · {n_steps} steps of {settings.clip.name}", STEP_LEGEND, as_json)
