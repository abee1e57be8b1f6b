"""pyharness sweep"""

import json
from pathlib import Path

import click
from rich.console import Console

from pyharness import calibrate as calibration
from pyharness import grid as grids
from pyharness import report, rundir
from pyharness import sweep as sweeps
from pyharness.cli import running
from pyharness.errors import HarnessError


class Names(click.ParamType):
    """Names separated by commas."""

    name = "names"

    def convert(self, value, param, ctx):
        names = tuple(name.strip() for name in value.split(",") if name.strip())
        if not names:
            self.fail("expected names separated by commas", param, ctx)
        return names


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
@running.jobs_option
@running.scheduler_option
@running.timeout_option
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
    jobs, run_tasks = running.who_decodes(jobs, scheduler)
    if resume and not (out and rundir.is_run(out)):
        raise HarnessError(f"--resume: '{out}' holds no run" if out else "--resume needs --out, the run to continue")
    out = out or running.new_run_folder("sweep")

    if halve and (grid or models):
        raise HarnessError("--halve takes model and arms from the profile: leave --grid and --models out")
    profile = calibration.read_profile(halve) if halve else None
    grid = _half_budget(profile, halve, speech) if halve else grids.load(grid or grids.DEFAULT)
    grid = grids.override(grid, models=models, speech=speech, clips=clips, seed=seed, watch=watch)
    if halve:
        plan = sweeps.make_plan(grid, language, console.print, "held-out", calibration.lists_of(profile, halve))
        for part in plan.parts:
            calibration.check_part(profile, part, halve)
    else:
        plan = sweeps.make_plan(grid, language, console.print)
    rows = running.run_with_progress(plan, out, jobs, console, timeout, run_tasks)
    page = report.write_report(out)

    if as_json:
        click.echo(json.dumps({"run": str(out), "rows": rows}, ensure_ascii=False, indent=1))
    else:
        report.print_tables(rows, Console())
        if halve:
            names = ", ".join(calibration.still_non_inferior(rows)) or "no rule"
            click.echo(f"still Non-inferior at half the budget: {names}")
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    running.fail_if_nothing_was_measured(rows, out)


def _half_budget(profile: dict, path: Path, speech: tuple[str, ...] | None) -> grids.Grid:
    """Every rule at half the budget of the profile, which ``path`` holds."""
    speech = speech or (profile.get("evidence", {}).get("speech"),)
    if None in speech:
        raise HarnessError(f"profile '{path}' does not name its speech: give --speech")
    return grids.Grid(
        models=(profile["model"]["name"],),
        speech=speech,
        arms=calibration.half_budget_arms(calibration.rule_of(profile, path), path),
        limits=calibration.limits_of(profile, path),
    )
