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
from pyharness.cli.bench.table import ARM, HOW, median_ms, show, with_interval
from pyharness.table import NOTHING, Column, number, percent, points

PEERS_COLUMNS = (
    Column("model", lambda row: row["model"], numeric=False),
    Column("weights", lambda row: row["weights"], numeric=False),
    ARM,
    Column("ms", median_ms),
    Column("speedup", lambda row: with_interval(row, "speedup_vs_stock", "speedup_low", "speedup_high")),
    Column("to int8", lambda row: with_interval(row, "ratio_to_faster_whisper_int8", "ratio_low", "ratio_high")),
    Column("WER", lambda row: percent(row["wer"])),
    Column("diff.", lambda row: points(row["difference"])),
    Column("bound", lambda row: points(row["bound_upper"])),
    Column("verdict", lambda row: row["verdict"] or NOTHING, numeric=False),
    Column("same text", lambda row: number(row["same_text"])),
    Column("peak MB", lambda row: number(row["peak_mb"])),
    Column("n", lambda row: number(row["n"])),
    Column("failed", lambda row: number(row["failed_clips"])),
    *HOW,
)
PEERS_LEGEND = (
    "ms: median of n clips (quartiles), each the median of its repeats. speedup: stock's time / the arm's; to int8: "
    "the arm's / that of faster-whisper int8; both medians of the clips (95 % interval). stock: with the same model "
    "file; for faster-whisper, with the first one. diff., bound: WER less stock's, and the upper 95 % bound of it less "
    "the margin of 0.2 x WER of stock, points; below 0 is Non-inferior. same text: clips whose text is stock's. peak "
    "MB: the most memory that the arm's process had resident, with Python. failed: clips that cannot be read, left out "
    "in all arms."
)


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
    decoding = "greedy" if chosen.limits.beam_size == 1 else f"beam {chosen.limits.beam_size}"
    show(result, PEERS_COLUMNS, f"{speech} · {decoding}", PEERS_LEGEND, as_json)
