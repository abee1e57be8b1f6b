"""pyharness bench"""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from pyharness import calibrate as calibration
from pyharness import grid as grids
from pyharness import models, report, rules
from pyharness import sweep as sweeps
from pyharness.bench import libraries
from pyharness.bench import step as steps
from pyharness.bench import utterance as utterances
from pyharness.bench.libraries import STOCK, Arm
from pyharness.cli.budget import Budget
from pyharness.errors import HarnessError
from pyharness.report import NOTHING, Column, number, percent


class Several(click.ParamType):
    """Values of one type, separated by commas."""

    def __init__(self, one: click.ParamType):
        self.one = one
        self.name = f"{one.name},..."

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        values = tuple(self.one.convert(part.strip(), param, ctx) for part in value.split(","))
        if len(set(values)) < len(values):
            self.fail(f"{value}: the same value twice", param, ctx)
        return values


threads_option = click.option(
    "--threads", type=Several(click.IntRange(1, 512)), default="1,2", show_default=True, help="One table for each."
)
json_option = click.option("--json", "as_json", is_flag=True, help='Print {"env": {...}, "rows": [...]}.')


@click.group()
def bench():
    """Time our build against stock whisper.cpp, in one run.

    Needs both builds (`./build.sh stock`). Their arms take turns, one at a time; keep the machine idle otherwise.
    """


@bench.command()
@click.option("--model", default="base", show_default=True, help="Name or path; synth-* will do.")
@click.option(
    "--clip",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Recording that is encoded, its first 30 s.  [default: the 11 s that come with whisper.cpp, in English]",
)
@click.option("--language", default="en", show_default=True, help="Of the clip.")
@click.option("--budgets", type=Several(Budget()), default="384,192,96", show_default=True, help="Of padsink-track.")
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
        clip=clip or models.upstream_source() / "samples" / "jfk.wav",
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
    _show(result, STEP_COLUMNS, f"{model} · {n_steps} steps of {settings.clip.name}", STEP_LEGEND, as_json)


@bench.command()
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
    _show(result, UTTERANCE_COLUMNS, f"{model} · {speech}", UTTERANCE_LEGEND, as_json)


# --- output -----------------------------------------------------------------------------------------------------------


def _with_interval(row: dict, key: str, low: str, high: str) -> str:
    if row[low] is None:
        return f"×{row[key]:.2f} (one clip)"
    return report.ratio_with_spread(row[key], row[low], row[high])


def _ms(row: dict) -> str:
    digits = 2 if row["ms"] < 100 else 0
    return f"{row['ms']:.{digits}f} ({row['ms_low']:.{digits}f}–{row['ms_high']:.{digits}f})"


ARM = Column("arm", lambda row: row["arm"], numeric=False)
HOW = (
    Column("threads", lambda row: number(row["threads"])),
    Column("build", lambda row: row["build"], numeric=False),
)
STEP_COLUMNS = (
    ARM,
    Column("ms/step", _ms),
    Column("to stock", lambda row: _with_interval(row, "ratio_to_stock", "ratio_low", "ratio_high")),
    Column("read/step", lambda row: number(row["positions"])),
    Column("MB/step", lambda row: number(row["bytes_read"] / 1e6, 2)),
    Column("rows copied", lambda row: number(row["rows_copied"], 1)),
    Column("same", lambda row: percent(row["same_tokens"])),
    Column("full", lambda row: number(row["full"])),
    Column("re-exec.", lambda row: number(row["reexecuted"])),
    Column("n", lambda row: number(row["n"])),
    *HOW,
)
STEP_LEGEND = (
    "ms/step: median of n passes (quartiles). to stock: median of the paired ratios (95 % interval). read/step: "
    "positions. MB/step, rows copied: of the cross cache, all layers. same: steps whose best token is stock's. "
    "full, re-exec.: steps of a pass that read everything, though the rule is to read less."
)
UTTERANCE_COLUMNS = (
    Column("clip s", lambda row: f"{row['clip_s']:g}"),
    ARM,
    Column("ms", _ms),
    Column("mel", lambda row: number(row["mel_ms"])),
    Column("encoder", lambda row: number(row["encoder_ms"])),
    Column("decoder", lambda row: number(row["decoder_ms"], 1)),
    Column("tokens", lambda row: number(row["tokens"], 1)),
    Column("speedup", lambda row: _with_interval(row, "speedup_vs_stock", "speedup_low", "speedup_high")),
    Column("WER", lambda row: percent(row["wer"])),
    Column("same text", lambda row: number(row["same_text"])),
    Column("n", lambda row: number(row["n"])),
    *HOW,
)
UTTERANCE_LEGEND = (
    "ms: median of n clips (quartiles), each the median of its repeats; mel, encoder, decoder: its parts, ms. speedup: "
    "stock's time / the arm's, median of the clips (95 % interval). same text: clips whose text is stock's."
)


def _show(result: dict, columns: tuple[Column, ...], title: str, legend: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False, indent=1))
        return
    console = Console()
    for threads in result["env"]["threads"]:
        lines = [[Text(column.show(row)) for column in columns] for row in result["rows"] if row["threads"] == threads]
        report.print_table(f"{title} · threads {threads}", columns, lines, console)
    env = result["env"]
    known = (
        f"{env['cpu']}, {env['cores']} cores, governor {env['governor'] or NOTHING}, load {env['load']}, {env['date']}"
    )
    console.print(Text(f"{known}\n{legend}", style="dim"), soft_wrap=True)
