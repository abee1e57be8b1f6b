"""pyharness calibrate"""

from pathlib import Path

import click
from rich.console import Console

from pyharness import calibrate as calibration
from pyharness import grid as grids
from pyharness import paths, report, rundir, splits
from pyharness import speech as speeches
from pyharness import sweep as sweeps
from pyharness.cli import running

CANDIDATES = paths.REPOSITORY / "calibration" / "candidates.toml"


@click.command()
@click.option("--model", required=True, help="Name or path of the model.")
@click.option("--speech", required=True, help="Speech set by name, or a manifest; its validation part is used.")
@click.option("--language", help="Language of a manifest that does not state it.")
@click.option(
    "--grid",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=CANDIDATES,
    help="TOML file with the candidates.  [default: calibration/candidates.toml]",
)
@click.option("--clips", type=click.IntRange(1), help="Validation clips.  [default: all]")
@click.option("--seed", type=click.IntRange(0), help="Which clips are drawn.  [default: 0]")
@running.jobs_option
@running.scheduler_option
@running.timeout_option
@click.option(
    "--run",
    "run_folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Run directory; an interrupted run is continued.",
)
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The profile to write.")
def calibrate(model, speech, language, grid, clips, seed, jobs, scheduler, timeout, run_folder, out):
    """Choose budget, sink fraction, tau and lookbehind for a model and a language.

    Every candidate decodes the validation part of the speech. Then they are tested, from the most expensive one down
    to the first that is not Non-inferior; those before it are accepted, and the cheapest of them is chosen if it is
    expected to beat the full cache by 5 %: by the measured time of a reduced step, plus a full one for every step
    that is executed again. The full cache is an honest outcome, and usual with few clips. The profile carries the
    evidence.

    \b
    Examples:
      pyharness calibrate --model base --speech asterisk-en --clips 150 --out profile.json
      whisper-cli -m ggml-base.bin -f clip.wav --kv-profile profile.json
    """
    console = Console(stderr=True)
    calibration.prepare_profile(out)
    jobs, run_tasks = running.who_decodes(jobs, scheduler)
    run_folder = run_folder or running.new_run_folder("calibrate")
    candidates = grids.load(grid)
    calibration.check_candidates(candidates.arms, grid)
    grid = grids.override(candidates, models=(model,), speech=(speech,), clips=clips, seed=seed)
    plan = sweeps.make_plan(grid, language, console.print, part="validation", wants_lists=True)
    rows = running.run_with_progress(plan, run_folder, jobs, console, timeout, run_tasks, flag="--run")
    report.write_report(run_folder)
    running.fail_if_nothing_was_measured(rows, run_folder)
    choice = calibration.choose(grid.arms, rows, rundir.read_utterances(run_folder))
    content = calibration.profile(plan.parts[0], choice, rundir.read_config(run_folder))
    calibration.write_profile(out, content)
    # a set that everybody can fetch has its split in the repository; that of a manifest stays with the run
    split = splits.SPLITS / f"{speech}.json" if speeches.find(speech) else run_folder / "split.json"
    splits.write(split, speeches.resolve(speech)[1])

    report.print_tables(rows, Console())
    console.print(f"choice: {choice.rule.brief()}", highlight=False, soft_wrap=True)
    console.print(choice.reason, highlight=False, soft_wrap=True)
    console.print(f"profile: {out}   run: {run_folder}   split: {split}", highlight=False, soft_wrap=True)
