"""pyharness bench utterance"""

from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from pyharness import calibrate as calibration
from pyharness import grid as grids
from pyharness import models, rules
from pyharness import sweep as sweeps
from pyharness.bench import libraries
from pyharness.bench import utterance as utterances
from pyharness.bench.libraries import STOCK, Arm
from pyharness.cli.bench.options import Several, json_option, threads_option
from pyharness.cli.bench.table import ARM, HOW, median_ms, show, with_interval
from pyharness.cli.budget import Budget
from pyharness.errors import HarnessError
from pyharness.report import Column, number, percent

UTTERANCE_COLUMNS = (
    Column("clip s", lambda row: f"{row['clip_s']:g}"),
    ARM,
    Column("ms", median_ms),
    Column("mel", lambda row: number(row["mel_ms"])),
    Column("encoder", lambda row: number(row["encoder_ms"])),
    Column("decoder", lambda row: number(row["decoder_ms"], 1)),
    Column("tokens", lambda row: number(row["tokens"], 1)),
    Column("speedup", lambda row: with_interval(row, "speedup_vs_stock", "speedup_low", "speedup_high")),
    Column("WER", lambda row: percent(row["wer"])),
    Column("same text", lambda row: number(row["same_text"])),
    Column("n", lambda row: number(row["n"])),
    Column("failed", lambda row: number(row["failed_clips"])),
    *HOW,
)
UTTERANCE_LEGEND = (
    "ms: median of n clips (quartiles), each the median of its repeats; mel, encoder, decoder: its parts, ms. speedup: "
    "stock's time / the arm's, median of the clips (95 % interval). same text: clips whose text is stock's. failed: "
    "clips that cannot be read, left out in all arms."
)


@click.command()
@click.option("--model", help="Name or path.  [default: the profile's, else base]")
@click.option("--speech", default="asterisk-en", show_default=True, help="Speech set by name, or a manifest.")
@click.option("--language", help="Language of a manifest that does not state it.")
@click.option(
    "--lengths", type=Several(click.FloatRange(0, 60, min_open=True)), default="1,2,4,8,15", show_default=True
)
@click.option("--clips", type=click.IntRange(1), default=5, show_default=True, help="Clips of each length, at most.")
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Of each clip and arm.")
@click.option("--budget", type=Budget(), help="Of padsink-track.  [default: 192]")
@click.option("--tau", type=click.FloatRange(0, 1), help="Steps less sure are re-executed.  [default: 0.4]")
@click.option(
    "--profile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Decode by this profile, in the way in which it was calibrated, instead of --budget and --tau.",
)
@threads_option
@json_option
def utterance(model, speech, language, lengths, clips, repeats, budget, tau, profile, threads, as_json):
    """Time whole clips, from samples to text, by their length in seconds.

    For each length, the clips of the set that are nearest to it, none farther off than a quarter. Times are medians of
    the clips; a speedup is the median of the clips' ratios of stock's time to the arm's, and above 1 the arm is faster.

    \b
    Examples:
      pyharness bench utterance --model base
      pyharness bench utterance --profile calibration/base-en.json --threads 1 --lengths 2,4 --clips 20
    """
    libraries.check()
    if profile and (budget or tau is not None):
        raise HarnessError("give either --profile or --budget and --tau")
    content = calibration.read_profile(profile) if profile else None
    if profile:
        arm, limits = calibration.arm_of(content, profile), calibration.limits_of(content, profile)
    else:
        arm, limits = rules.PadsinkTrack(budget=budget or 192, tau=0.4 if tau is None else tau), grids.Limits()
    model = model or (content["model"]["name"] if profile else "base")

    console = Console(stderr=True)
    grid = grids.Grid(models=(model,), speech=(speech,), arms=(rules.Full(), arm), limits=limits)
    part = sweeps.make_plan(grid, language, console.print).parts[0]
    if models.is_synthetic(part.model_path):
        raise HarnessError(f"model '{model}' has random weights and no text to score: use `pyharness bench step`")
    if profile:
        calibration.check_part(content, part, profile)
    settings = utterances.Settings(
        part=part,
        arms=(STOCK, Arm(rules.Off()), Arm(arm)),
        limits=limits,
        lengths=lengths,
        clips=clips,
        repeats=repeats,
        threads=threads,
    )
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"{len(settings.arms)} arms")
        result = utterances.run(
            settings,
            advance=lambda done, total: progress.update(task, completed=done, total=total),
            say=lambda text: console.print(text, highlight=False, soft_wrap=True),
        )
    show(result, UTTERANCE_COLUMNS, f"{model} · {speech}", UTTERANCE_LEGEND, as_json)
