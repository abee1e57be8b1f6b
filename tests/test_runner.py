"""Clips under many arms in worker processes: none is lost, and what runs away is told."""

import os
import signal
import time
from pathlib import Path

import native_tools as tools
import numpy as np
import pytest

from pyharness import audio, grid, rules, runner
from pyharness.errors import HarnessError
from pyharness.native import Decoding, Model, Segment, Transcript
from pyharness.speech import Clip

LIMITS = grid.Limits()


@pytest.fixture(scope="module")
def tiny(tiny_en):
    with Model(tiny_en) as model, model.state() as state:
        yield state


def task(i: int, timeout: float = 60, folder: Path = Path()) -> runner.Task:
    clip = Clip(f"clip{i}", folder / "x.wav", "text")
    return runner.Task(i, "model", Path("model"), "speech", clip, (rules.Full(),), LIMITS, timeout)


def die_on_clip_2(task):
    if task.clip.id == "clip2":
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"id": task.clip.id}]


def die_once_on_clip_2(task):
    mark = task.clip.audio.with_name("died")
    if task.clip.id == "clip2" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"id": task.clip.id}]


def hang_on_clip_2(task):
    if task.clip.id == "clip2":
        time.sleep(600)
    return [{"id": task.clip.id}]


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize(
    ("work", "timeout", "error"),
    [(die_on_clip_2, 60, "died"), (die_once_on_clip_2, 60, None), (hang_on_clip_2, 12, "stopped after 12 s")],
)
def test_workers_that_die_or_hang_lose_no_other_clip(tmp_path, work, timeout, error, jobs):
    tasks = [task(i, timeout, tmp_path) for i in range(6)]
    rows = [row for rows in runner.run(tasks, jobs, work) for row in rows]
    assert sorted(row["id"] for row in rows) == [f"clip{i}" for i in range(6)]
    assert [row["id"] for row in rows if "error" in row] == (["clip2"] if error else [])
    assert not error or error in next(row["error"] for row in rows if "error" in row)


def test_a_worker_holds_one_model_at_a_time(tiny_en):
    state = runner.state_of(tiny_en)
    assert runner.state_of(tiny_en) is state
    with pytest.raises(HarnessError):
        runner.state_of(tiny_en.with_name("missing.bin"))
    for closed in (state, state.model):
        with pytest.raises(ValueError, match="closed"):
            _ = closed.handle


@pytest.mark.parametrize(
    ("seconds", "views"), [(3, (rules.Full(), rules.PadsinkTrack(), rules.Off())), (35, (rules.PadsinkTrack(),))]
)
def test_a_clip_encoded_before_decodes_like_a_new_one(tiny_en, seconds, views):
    """What the runner decodes after the encoding run with its few tokens."""
    samples = np.resize(audio.load(tools.JFK), seconds * 16000)
    decoding = Decoding(max_tokens=LIMITS.max_tokens(seconds))
    state = runner.state_of(tiny_en)
    runner._encode(state, samples, decoding)
    for rule in views:
        state.set_view(rule)
        again = state.transcribe(None, decoding)
        with state.model.state() as fresh:
            fresh.set_view(rule)
            assert fresh.transcribe(samples, decoding).tokens == again.tokens


@pytest.mark.parametrize(
    ("seconds", "rule", "runs_away"),
    [
        (2, rules.Off(), False),
        (2, rules.AudioOnly(), True),
        (28, rules.Off(), False),
        (28, rules.Random(budget=32), True),  # stopped by upstream's 220 tokens, fewer than 8 per second
        (65, rules.Off(), False),
        (65, rules.AudioOnly(), True),  # one window of three is cut
    ],
)
def test_a_clip_that_runs_away_is_recognised_at_any_length(tiny, seconds, rule, runs_away):
    samples = np.resize(audio.load(tools.JFK), seconds * 16000)
    tiny.set_view(rule)
    transcript = tiny.transcribe(samples, Decoding(max_tokens=LIMITS.max_tokens(seconds)))
    assert runner.runs_away(transcript, tiny.model.end_of_text, seconds, LIMITS) == runs_away


@pytest.mark.parametrize(("rule", "runs_away"), [(rules.Full(), False), (rules.AudioOnly(), True)])
def test_a_clip_that_runs_away_is_recognised_with_timestamps(tiny, rule, runs_away):
    limits = grid.Limits(timestamps=True)
    tiny.set_view(rule)
    for clip in tools.clips("asterisk-en", 4)[:2]:
        samples = audio.load(clip.audio)
        seconds = len(samples) / audio.SAMPLE_RATE
        transcript = tiny.transcribe(samples, Decoding(timestamps=True, max_tokens=limits.max_tokens(seconds)))
        assert runner.runs_away(transcript, tiny.model.end_of_text, seconds, limits) == runs_away


@pytest.mark.parametrize("seconds", [2, 28])
def test_upstreams_own_attention_runs_away_too(tiny, seconds):
    """Rule `off` has no counters; here the limit is too small for the words that are said."""
    few = grid.Limits(tokens_per_second=1)
    samples = np.resize(audio.load(tools.JFK), seconds * 16000)
    tiny.set_view(rules.Off())
    transcript = tiny.transcribe(samples, Decoding(max_tokens=3))
    assert runner.runs_away(transcript, tiny.model.end_of_text, seconds, few)


def test_a_text_longer_than_speech_can_be_runs_away_even_if_it_ends():
    def transcript(n):
        return Transcript((Segment(0, 30, "a"), Segment(30, 65, "a")), (*range(n), 99, 99), "en")

    limit = LIMITS.max_tokens(5)
    assert not runner.runs_away(transcript(limit), 99, 5, LIMITS)
    assert runner.runs_away(transcript(limit + 1), 99, 5, LIMITS)
