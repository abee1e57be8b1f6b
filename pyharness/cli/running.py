"""What the commands that decode many clips share: where, how long, with a progress bar, and what is said at the end."""

import datetime
import math
import os
import shlex
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pyharness import cluster, runner
from pyharness import sweep as sweeps
from pyharness.errors import HarnessError


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
