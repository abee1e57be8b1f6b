"""pyharness bench decoders"""

import click
from rich.console import Console
from rich.progress import Progress

from pyharness.bench import decoders as crews
from pyharness.bench import libraries
from pyharness.bench.step import MAX_STEPS
from pyharness.cli.bench.options import Several, json_option
from pyharness.cli.bench.reduced import reduced, reduced_options
from pyharness.cli.bench.table import ARM, HOW, show, with_interval
from pyharness.report import NOTHING, Column, number, percent, points

DECODERS_COLUMNS = (
    Column("decoders", lambda row: number(row["n"])),
    Column("mode", lambda row: row["mode"], numeric=False),
    ARM,
    Column("tokens/s", lambda row: number(row["tokens_per_s"], 1)),
    Column("clips/s", lambda row: number(row["clips_per_s"], 2)),
    Column("to stock", lambda row: with_interval(row, "ratio_to_stock", "ratio_low", "ratio_high")),
    Column("p50 ms", lambda row: number(row["p50_ms"], 1)),
    Column("p90 ms", lambda row: number(row["p90_ms"], 1)),
    Column("max ms", lambda row: number(row["max_ms"], 1)),
    Column("latency", lambda row: with_interval(row, "latency_ratio", "latency_low", "latency_high")),
    Column("same", lambda row: percent(row["same_tokens"])),
    Column("WER", lambda row: percent(row["wer"])),
    Column("bound", lambda row: points(row["bound_upper"])),
    Column("verdict", lambda row: row["verdict"] or NOTHING, numeric=False),
    Column("same text", lambda row: number(row["same_text"])),
    Column("clips", lambda row: number(row["clips"])),
    Column("failed", lambda row: number(row["failed_clips"])),
    Column("re-exec.", lambda row: percent(row["reexecuted"])),
    Column("peak MB", lambda row: number(row["peak_mb"])),
    Column("n", lambda row: number(row["rounds"])),
    *HOW,
)
DECODERS_LEGEND = (
    "tokens/s, clips/s: of all decoders, median of n rounds. to stock: the arm's throughput / stock's, above 1 = "
    "faster. p50, p90, max: of a step (synthetic), of a clip from the encoder to its text (real). latency: the arm's "
    "p50 / stock's, below 1 = faster. Ratios: median of the rounds' own (95 % interval). same: steps whose best token "
    "is stock's. bound: upper 95 % bound of WER less stock's, less the margin of 0.2 x WER of stock, points; below 0: "
    "Non-inferior. failed: clips that cannot be read, left out in all arms. peak MB: the most memory that the process "
    "had resident, which holds all arms of its build. threads: of each decoder."
)


@click.command()
@click.option("--model", help="Name or path.  [default: the profile's, else base]")
@click.option(
    "--n", "several", type=Several(click.IntRange(1, 512)), default="1,2,4,8,16", show_default=True, help="Decoders."
)
@click.option("--mode", type=click.Choice([crews.SYNTHETIC, crews.REAL, "both"]), default="both", show_default=True)
@click.option("--rounds", type=click.IntRange(2), default=6, show_default=True, help="Waves of each arm.")
@click.option(
    "--steps",
    type=click.IntRange(1, MAX_STEPS),
    default=24,
    show_default=True,
    help="Of each decoder in a synthetic wave.",
)
@reduced_options
@json_option
def decoders(model, several, mode, rounds, steps, speech, language, budget, tau, profile, as_json):
    """Time n decoders at once, one thread each.

    They share one loaded model; each has its own state and clip. In the mode synthetic all are fed the same tokens in
    every arm, and no step is re-executed; in the mode real they transcribe, and the time is that behind the encoder. A
    wave is one go of all decoders, and each round of real decoding has the next clips: --rounds times --n of them.

    \b
    Examples:
      pyharness bench decoders --model base-q5_0 --n 8
      pyharness bench decoders --profile calibration/base-en.json --mode real --n 1,8 --rounds 20 --json
    """
    libraries.check()
    chosen = reduced(budget, tau, profile)
    modes = (crews.SYNTHETIC, crews.REAL) if mode == "both" else (mode,)
    console = Console(stderr=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    needs_text = crews.REAL in modes
    (part,) = chosen.parts((model or chosen.model,), speech, language, None, say, needs_text)
    settings = crews.Settings(part, chosen.arm, chosen.limits, several, modes, rounds, steps)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"{settings.n_waves} waves", total=settings.n_waves)
        result = crews.run(settings, advance=lambda n: progress.advance(task, n), say=say)
    show(result, DECODERS_COLUMNS, f"{part.model} · {speech}", DECODERS_LEGEND, as_json)
