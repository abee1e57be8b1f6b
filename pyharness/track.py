"""The window track of a clip: where each run of its decoder looked and what it read, for a plot."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyharness.errors import HarnessError
from pyharness.native import Step
from pyharness.rundir import read_utterances


@dataclass(frozen=True)
class Run:
    """One run of the decoder."""

    kind: str  # "prompt", "reduced", "full" or "reexec"
    centre: int  # position the alignment heads look at, -1 = unknown
    window: tuple[int, int]  # first position, number of positions
    sinks: tuple[int, ...]  # positions read outside the window; none in full runs, which read everything


@dataclass(frozen=True)
class Track:
    model: str
    language: str
    clip: str
    arm: str
    n_audio: int  # positions
    runs: tuple[Run, ...]
    speech: str | None = None


def to_json(steps: list[Step]) -> dict[str, Any]:
    """What a row of utterances.jsonl holds under ``track``."""
    runs = [
        {"kind": step.kind, "centre": step.centre, "window": list(step.window), "sinks": _sinks(step)} for step in steps
    ]
    return {"n_audio": max((step.n_audio for step in steps), default=0), "runs": runs}


def _sinks(step: Step) -> list[int]:
    if step.positions is None:
        return []
    first, n = step.window
    return step.positions[(step.positions < first) | (step.positions >= first + n)].astype(np.int64).tolist()


def read_tracks(run_dir: Path) -> list[Track]:
    """Tracks that the run recorded. Raises HarnessError naming the file if it is broken."""
    try:
        return [_from_row(row) for row in read_utterances(Path(run_dir)) if row.get("track")]
    except FileNotFoundError:  # of evidence, only the summary may have been kept
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        path = Path(run_dir) / "utterances.jsonl"
        raise HarnessError(f"{path}: not rows of a run ({type(error).__name__}: {error})") from error


def _from_row(row: dict[str, Any]) -> Track:
    runs = (
        Run(run["kind"], int(run["centre"]), tuple(map(int, run["window"])), tuple(map(int, run["sinks"])))
        for run in row["track"]["runs"]
    )
    n_audio = int(row["track"]["n_audio"])
    return Track(row["model"], row["language"], row["id"], row["arm"], n_audio, tuple(runs), row.get("speech"))
