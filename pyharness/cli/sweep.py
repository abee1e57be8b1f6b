"""pyharness sweep"""

import datetime
import json
import math
import os
import shlex
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pyharness import calibrate as calibration
from pyharness import cluster, report, rundir, runner
from pyharness import grid as grids
from pyharness import sweep as sweeps
from pyharness.errors import HarnessError


class Names(click.ParamType):
    """Names separated by commas."""

    name = "names"

    def convert(self, value, param, ctx):
        names = tuple(name.strip() for name in value.split(",") if name.strip())
        if not names:
            self.fail("expected names separated by commas", param, ctx)
        return names


def _not_nan(_context, _parameter, value):
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is no number of seconds")
    return value


timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(0, 1e6, min_open=True),
    callback=_not_nan,
    help="Seconds a clip may take under all arms.  [default: 60 + 30 times its duration, for each arm]",
)

jobs_option = click.option("--jobs", type=click.IntRange(1, 512), help="Worker processes.  [default: one per core]")

scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Decode on the workers of this Dask scheduler instead, one clip per thread of theirs; not with --jobs. "
    "Models and recordings must be at the same paths there. Needs padsink[cluster].",
)


@click.command()
@click.option("--models", type=Names(), help="Models by name or path, separated by commas.  [default: the grid's]")
@click.option("--speech", type=Names(), help="Speech sets by name, or manifests.  [default: the grid's]")
@click.option(
    "--grid",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with the arms.  [default: calibration/default.toml]",
)
@click.option(
    "--halve",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A profile: compare every rule at half its budget, on held-out clips, instead of a grid.",
)
@click.option("--clips", type=click.IntRange(1), help="Clips of each set.  [default: the grid's]")
@click.option("--seed", type=click.IntRange(0), help="Which clips are drawn.  [default: the grid's]")
@click.option("--watch", metavar="CLIP", help="Id of the clip whose window the report shows.  [default: the longest]")
@click.option("--language", help="Language of manifests that do not state it.")
@jobs_option
@scheduler_option
@timeout_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Run directory; a run of the same configuration in it is continued.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the run in --out, whose options must be given again; an error if there is none.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of tables.")
def sweep(models, speech, grid, halve, clips, seed, watch, language, jobs, scheduler, timeout, out, resume, as_json):
    """Compare selection rules on real recordings.

    Every clip is encoded once for each model and decoded under every arm. Writes a run directory (run.json,
    utterances.jsonl, summary.json, report.html) and prints a verdict for each arm.

    \b
    Examples:
      pyharness sweep
      pyharness sweep --models base --speech asterisk-en --clips 40
      pyharness sweep --models ./ggml-small.bin --speech my/manifest.csv --language de --out runs/mine
      pyharness sweep --halve calibration/base-en.json
      pyharness sweep --models base --scheduler tcp://10.0.0.1:8786
    """
    console = Console(stderr=True)
    jobs, run_tasks = who_decodes(jobs, scheduler)
    if resume and not (out and rundir.is_run(out)):
        raise HarnessError(f"--resume: '{out}' holds no run" if out else "--resume needs --out, the run to continue")
    out = out or new_run_folder("sweep")

    if halve and (grid or models):
        raise HarnessError("--halve takes model and arms from the profile: leave --grid and --models out")
    grid, part, lists = _half_budget(halve, speech) if halve else (grids.load(grid or grids.DEFAULT), None, None)
    grid = grids.override(grid, models=models, speech=speech, clips=clips, seed=seed, watch=watch)
    plan = sweeps.make_plan(grid, language, console.print, part, lists)
    if halve:
        calibration.check_part(calibration.read_profile(halve), plan.parts[0], halve)
    rows = run_with_progress(plan, out, jobs, console, timeout, run_tasks)
    page = report.write_report(out)

    if as_json:
        click.echo(json.dumps({"run": str(out), "rows": rows}, ensure_ascii=False, indent=1))
    else:
        report.print_tables(rows, Console())
        if halve:
            names = ", ".join(calibration.still_non_inferior(rows)) or "no rule"
            click.echo(f"still Non-inferior at half the budget: {names}")
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    fail_if_nothing_was_measured(rows, out)


def _half_budget(path: Path, speech: tuple[str, ...] | None):
    """What to compare, on which part of the speech, and the lists of the model."""
    content = calibration.read_profile(path)
    arms = calibration.half_budget_arms(calibration.rule_of(content, path), path)
    speech = speech or (content.get("evidence", {}).get("speech"),)
    if None in speech:
        raise HarnessError(f"profile '{path}' does not name its speech: give --speech")
    limits = calibration.limits_of(content, path)
    grid = grids.Grid(models=(content["model"]["name"],), speech=speech, arms=arms, limits=limits)
    return grid, "held-out", calibration.lists_of(content, path)


def who_decodes(jobs: int | None, scheduler: str | None):
    """How many clips at a time, and the function that runs their tasks: here, or on a cluster."""
    if scheduler is None:
        return jobs or os.cpu_count() or 1, runner.run
    if jobs:
        raise click.UsageError("--jobs is for this machine: with --scheduler, its workers' threads decide")
    workers = click.get_current_context().with_resource(cluster.Cluster(scheduler))
    return workers.n_threads(), workers.run


def new_run_folder(command: str) -> Path:
    return Path("runs") / datetime.datetime.now().strftime(f"{command}-%Y%m%d-%H%M%S")


def run_with_progress(plan, out, jobs, console, timeout, run_tasks, flag="--out"):
    """``sweeps.run`` with a progress bar; Ctrl-C says with which flag to continue and exits with 130."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("clips"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        n_arms = len(plan.grid.arms)
        task = progress.add_task(f"{n_arms} arms, {jobs} jobs", total=sum(len(part.clips) for part in plan.parts))
        try:
            return sweeps.run(
                plan,
                out,
                jobs,
                advance=lambda n: progress.advance(task, n),
                say=lambda text: console.print(text, highlight=False, soft_wrap=True),
                timeout=timeout,
                run_tasks=run_tasks,
            )
        except KeyboardInterrupt:
            progress.stop()
            console.print(
                f"interrupted; what is done is kept. Continue with the same options and {flag} {shlex.quote(str(out))}",
                highlight=False,
                soft_wrap=True,
            )
            raise SystemExit(130) from None


def fail_if_nothing_was_measured(rows, out):
    """Name the clips that failed; an error if none is left to compare."""
    failed = {(row["model"], row["speech"]): row["failed_clips"] for row in rows if row["failed_clips"]}
    for (model, speech), n in failed.items():
        click.echo(f'{n} clips of {speech} failed with {model}: see "error" in {out / "utterances.jsonl"}', err=True)
    if not any(row["n"] for row in rows):
        has_decoded = any(row["positions_read"] for row in rows)
        raise HarnessError("no reference has a word to compare" if has_decoded else "no clip could be decoded")
