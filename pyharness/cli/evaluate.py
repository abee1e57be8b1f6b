"""pyharness evaluate"""

import json
from pathlib import Path

import click
from rich.console import Console

from pyharness import calibrate as calibration
from pyharness import grid as grids
from pyharness import report, rules
from pyharness import sweep as sweeps
from pyharness.cli import running


@click.command()
@click.option(
    "--profile",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Written by calibrate.",
)
@click.option("--speech", required=True, help="Speech set by name, or a manifest; its held-out part is used.")
@click.option("--model", help="Name or path of the model.  [default: the profile's]")
@click.option("--language", help="Language of a manifest that does not state it.")
@click.option("--clips", type=click.IntRange(1), help="Held-out clips.  [default: all]")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which clips are drawn.")
@running.jobs_option
@running.scheduler_option
@running.timeout_option
@click.option("--run", "run_folder", type=click.Path(file_okay=False, path_type=Path), help="Run directory.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def evaluate(profile, speech, model, language, clips, seed, jobs, scheduler, timeout, run_folder, as_json):
    """Confirm a profile on held-out clips, which calibration never saw.

    Prints "reproduced", "not reproduced" or "inconclusive" and, for the last, how many clips would decide it. The
    clips are decoded with everything the profile sets, in the way in which it was calibrated (beam, timestamps, ...).
    One that chooses the full cache has nothing to compare. `pyharness profiles` shows the verdict of NAME.json if the
    run directory is evidence/NAME beside it.

    \b
    Example:
      pyharness evaluate --profile profile.json --speech asterisk-en --run evidence/profile
    """
    console = Console(stderr=True)
    jobs, run_tasks = running.who_decodes(jobs, scheduler)
    run_folder = run_folder or running.new_run_folder("evaluate")
    content = calibration.read_profile(profile)
    arm = calibration.arm_of(content, profile)
    model = model or content["model"]["name"]
    grid = grids.Grid(
        models=(model,),
        speech=(speech,),
        arms=(rules.Full(), arm),
        clips=clips,
        seed=seed,
        limits=calibration.limits_of(content, profile),
    )
    plan = sweeps.make_plan(grid, language, console.print, part="held-out")
    calibration.check_part(content, plan.parts[0], profile)

    if arm.rule == rules.Full():
        text = "nothing to compare"
        click.echo(json.dumps({"outcome": text}) if as_json else f"{text}: the profile chooses the full cache")
        return

    rows = running.run_with_progress(plan, run_folder, jobs, console, timeout, run_tasks, flag="--run")
    report.write_report(run_folder)
    running.fail_if_nothing_was_measured(rows, run_folder)
    outcome = calibration.outcome(rows[1])
    if as_json:
        click.echo(json.dumps({"outcome": outcome, "run": str(run_folder), **rows[1]}, ensure_ascii=False, indent=1))
        return
    report.print_tables(rows, Console())
    click.echo(outcome + (f"; {_how_many(rows[1])}" if outcome == "inconclusive" else ""))


def _how_many(row):
    if row["clips_needed"]:
        return f"about {row['clips_needed']} clips like these would decide it"
    if not row["wer_full"]:
        return "the full cache makes no error on these clips, so that there is no margin: more clips are needed"
    return "no number of clips like these would decide it: the arms differ by exactly the margin"
