"""Window tracks: what the runner records of a clip that is watched."""

import json

import native_tools as tools
import pytest

from pyharness import grid, rules, runner
from pyharness.track import read_tracks

LIMITS = grid.Limits()
ARMS = (rules.Full(), rules.PadsinkTrack(budget=96), rules.PadsinkTrack(budget=160, tau=0.5), rules.AudioOnly())


def rows_of(watched, model, arms=ARMS):
    clip = tools.clips("asterisk-en", 1)[0]
    return runner.run_task(runner.Task(0, "tiny.en", model, "asterisk-en", clip, arms, LIMITS, 60, watched=watched))


def test_a_watched_clip_has_the_track_of_the_arm_nearest_to_the_default_budget(tmp_path, tiny_en):
    rows = rows_of(True, tiny_en)
    assert ["track" in row for row in rows] == [False, False, True, False]
    (tmp_path / "utterances.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (track,) = read_tracks(tmp_path)
    assert track.arm == ARMS[2].describe()
    kinds = [run.kind for run in track.runs]
    row = rows[2]
    assert kinds.count("prompt") == row["prompts"] and kinds.count("reexec") == row["reexecuted"]
    assert kinds.count("reduced") == row["view_runs"] > 0
    for run in track.runs:
        first, n = run.window
        assert not any(first <= sink < first + n for sink in run.sinks)
        if run.kind == "reduced":
            assert run.sinks and len(run.sinks) + n <= 160
            assert first >= 0 and first + n <= track.n_audio
    assert sum(len(run.sinks) + run.window[1] for run in track.runs if run.kind == "reduced") == row["positions_view"]


@pytest.mark.parametrize(("watched", "arms"), [(False, ARMS), (True, ARMS[:1])])
def test_other_clips_and_arms_without_a_moving_window_have_none(tiny_en, watched, arms):
    assert not any("track" in row for row in rows_of(watched, tiny_en, arms))


def test_nobody_watches_after_the_track(tiny_en):
    rows_of(True, tiny_en)
    assert not runner.state_of(tiny_en)._on_step


def test_a_run_without_utterances_has_no_track(tmp_path):
    assert read_tracks(tmp_path) == []
