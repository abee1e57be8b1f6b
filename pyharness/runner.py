"""Decodes clips under several arms: encode once, decode many, in worker processes that may crash.

A worker takes one clip of one model, encodes it, decodes it under every arm, and returns one row per arm. Arms start
at a different place for each clip, so that none is always first; all times of a row are of the same process.
"""

import functools
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from pyharness import audio, rules, scoring
from pyharness.errors import HarnessError
from pyharness.grid import Limits
from pyharness.native import Decoding, Model, State, Transcript
from pyharness.rules import Rule
from pyharness.speech import Clip


@dataclass(frozen=True)
class Task:
    """One clip, one model, all arms."""

    index: int  # place in the run: rotates the arms
    model: str
    model_path: Path
    speech: str
    clip: Clip
    arms: tuple[Rule, ...]
    limits: Limits
    strip_diacritics: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model, self.speech, self.clip.id


# --- in the worker ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _state(model_path: Path) -> State:
    """The worker's state; the model stays loaded until a task needs another one."""
    state = Model(model_path).state()
    state.keep_encoding(True)
    return state


def run_task(task: Task) -> list[dict]:
    """One row per arm, in the order of ``task.arms``; rows with an ``error`` if the clip cannot be decoded."""
    try:
        samples = audio.load(task.clip.audio)
        return _decode_arms(task, _state(task.model_path), samples)
    except HarnessError as error:
        return error_rows(task, error.message)
    except Exception as error:  # one clip must not end the run
        return error_rows(task, f"{type(error).__name__}: {error}")


def _decode_arms(task: Task, state: State, samples) -> list[dict]:
    seconds = len(samples) / audio.SAMPLE_RATE
    decoding = Decoding(
        language=task.clip.language,
        beam_size=task.limits.beam_size,
        max_tokens=task.limits.max_tokens(seconds),
        threads=task.limits.threads,
    )
    state.set_view(rules.Full())
    begin = time.perf_counter()
    state.transcribe(samples, decoding)  # encodes, and warms up
    encode_s = time.perf_counter() - begin

    rows: list = [None] * len(task.arms)
    for i in _rotated(len(task.arms), task.index):
        rows[i] = _decode_arm(task, task.arms[i], state, decoding, seconds) | {"encode_s": round(encode_s, 4)}
    return rows


def runs_away(transcript: Transcript, end_of_text: int, seconds: float, limits: Limits) -> bool:
    """Whether a text is longer than speech of this length can be, or a window of it was cut by the limit of tokens.

    Decoded without timestamps, every window is one segment and ends with an end of text unless it was cut. Only the
    text is looked at, so that the answer is the same for every rule, `off` included.
    """
    n_ended = transcript.tokens.count(end_of_text)
    was_cut = n_ended < len(transcript.segments)
    return was_cut or len(transcript.tokens) - n_ended > limits.max_tokens(seconds)


def _rotated(n: int, start: int) -> list[int]:
    return [(start + i) % n for i in range(n)]


def _decode_arm(task: Task, arm: Rule, state: State, decoding: Decoding, seconds: float) -> dict:
    state.set_view(arm)
    state.reset_counters()
    begin = time.perf_counter()
    transcript = state.transcribe(None, decoding)
    elapsed = time.perf_counter() - begin

    counters = state.counters()
    normaliser = scoring.normaliser(task.clip.language, task.strip_diacritics)
    counts = scoring.counts(task.clip.text, transcript.text, normaliser)
    view_runs = counters.n_reduced + counters.n_reexec
    return _row(task, arm) | {
        "time": round(elapsed, 4),
        "pred_text": transcript.text,
        "substitutions": counts.substitutions,
        "deletions": counts.deletions,
        "insertions": counts.insertions,
        "reference_words": counts.reference_words,
        "tokens": len(transcript.tokens),
        "runaway": runs_away(transcript, state.model.end_of_text, seconds, task.limits),
        "steps": counters.n_steps,
        "reduced": counters.n_reduced,
        "full": counters.n_full,
        "reexecuted": counters.n_reexec,
        "positions_view": counters.n_rows_view // state.model.n_layer,  # sum over the runs that read the view
        "view_runs": view_runs,
        "rows_read": counters.n_rows_read,
        "bytes_read": counters.n_bytes_read,
        "steps_us": counters.t_steps_us,
    }


def _row(task: Task, arm: Rule) -> dict:
    return {
        "model": task.model,
        "speech": task.speech,
        "id": task.clip.id,
        "arm": arm.describe(),
        "audio_filepath": str(task.clip.audio),
        "duration": task.clip.duration,
        "language": task.clip.language,
        "speaker": task.clip.speaker,
        "text": task.clip.text,
    }


def error_rows(task: Task, reason: str) -> list[dict]:
    return [_row(task, arm) | {"error": reason} for arm in task.arms]


# --- in the parent ----------------------------------------------------------------------------------------------------


def run(tasks: list[Task], jobs: int) -> Iterator[list[dict]]:
    """Rows of each task as it ends, in no fixed order. A worker that dies costs the clip it was decoding, and that
    only if the clip kills a second worker that has no other clip."""
    if jobs == 1:
        yield from map(run_task, tasks)
        return
    suspects = yield from _run_pool(tasks, jobs)
    for task in suspects:
        rest = yield from _run_pool([task], 1)
        if rest:
            yield error_rows(task, "the worker process died while decoding this clip")


def _run_pool(tasks: list[Task], jobs: int) -> Iterator[list[dict]]:
    """Like ``run``; returns the tasks that were in work when a worker died."""
    queue, suspects = deque(tasks), []
    while queue:
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _init_worker) as pool:
            running: dict[Future, Task] = {}
            try:
                while queue or running:
                    while queue and len(running) < jobs + 1:
                        running[pool.submit(run_task, queue[0])] = queue[0]  # a broken pool refuses: stays queued
                        queue.popleft()
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        rows = future.result()
                        del running[future]
                        yield rows
            except BrokenProcessPool:
                suspects += running.values()
            except BaseException:  # Ctrl-C, or the caller gave up: do not wait for the workers
                _kill(pool)
                raise
    return suspects


def _init_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _kill(pool: ProcessPoolExecutor) -> None:
    for process in list(pool._processes.values()):
        process.kill()
    pool.shutdown(wait=True, cancel_futures=True)
