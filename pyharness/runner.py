"""Decodes clips under several arms: encode once, decode many, in worker processes that may crash.

A worker takes one clip of one model, encodes it, decodes it under every arm, and returns one row per arm. Arms start
at a different place for each clip, so that none is always first; all times of a row are of the same process.
"""

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyharness import audio, rules, scoring, track
from pyharness.errors import HarnessError
from pyharness.grid import Limits
from pyharness.native import Decoding, Model, State, Step, Transcript
from pyharness.rules import ModelLists, Rule
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
    timeout: float  # seconds
    lists: ModelLists | None = None  # of the model
    strip_diacritics: bool = False
    watched: bool = False  # also show how the window moves

    @property
    def key(self) -> tuple[str, str, str]:
        return self.model, self.speech, self.clip.id


# --- in the worker ----------------------------------------------------------------------------------------------------


_loaded: State | None = None  # of this process


def state_of(model_path: Path) -> State:
    """A state of the model, which stays loaded until another one is needed: never two at a time."""
    global _loaded
    if _loaded and _loaded.model.path == model_path:
        return _loaded
    if _loaded:
        _loaded.close()
        _loaded.model.close()
        _loaded = None
    _loaded = Model(model_path).state()
    _loaded.keep_encoding(True)
    return _loaded


def run_task(task: Task) -> list[dict]:
    """One row per arm, in the order of ``task.arms``; rows with an ``error`` if the clip cannot be decoded."""
    try:
        samples = audio.load(task.clip.audio)
        return _decode_arms(task, state_of(task.model_path), samples)
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
        timestamps=task.limits.timestamps,
        threads=task.limits.threads,
    )
    encode_s = _encode(state, samples, decoding)
    rows: list = [None] * len(task.arms)
    for i in _rotated(len(task.arms), task.index):
        rows[i] = _decode_arm(task, task.arms[i], state, decoding, seconds) | {"encode_s": round(encode_s, 4)}
    if task.watched and (i := _tracked(task.arms)) is not None:
        rows[i]["track"] = _track(task, task.arms[i], state, decoding)
    return rows


def _tracked(arms: tuple[Rule, ...]) -> int | None:
    """Which arm shows how the window moves: of those with a window that does, the one nearest to the default budget."""
    default = rules.PadsinkTrack()
    plain = [arm.plain for arm in arms]
    moving = [i for i, arm in enumerate(plain) if isinstance(arm, rules.PadsinkTrack)]
    return min(moving, key=lambda i: abs(plain[i].budget - default.budget), default=None)


def _track(task: Task, arm: Rule, state: State, decoding: Decoding) -> dict:
    """Decode once more, watched: watching takes time that must not be counted."""
    steps: list[Step] = []
    state.set_view(arm, task.lists)
    state.on_step(steps.append)
    try:
        state.transcribe(None, decoding)
    finally:
        state.on_step(None)
    return track.to_json(steps)


def _encode(state: State, samples, decoding: Decoding) -> float:
    """Give the clip to the state, which warms up with its first tokens. Seconds without those of the tokens."""
    state.set_view(rules.Full())
    state.reset_counters()
    begin = time.perf_counter()
    state.transcribe(samples, dataclasses.replace(decoding, max_tokens=1))
    elapsed = time.perf_counter() - begin
    counters = state.counters()
    return elapsed - (counters.t_prompts_us + counters.t_steps_us) / 1e6


def runs_away(transcript: Transcript, end_of_text: int, seconds: float, limits: Limits) -> bool:
    """Whether a text is longer than speech of this length can be, or a window of it was cut by the limit of tokens.

    Decoded without timestamps, every window is one segment and ends with an end of text unless it was cut. With them,
    no end of text is kept, but a cut text is as long as the limit. Only the text is looked at, so that the answer is
    the same for every rule, `off` included.
    """
    n_ended = transcript.tokens.count(end_of_text)
    n_tokens, limit = len(transcript.tokens) - n_ended, limits.max_tokens(seconds)
    if limits.timestamps:
        return n_tokens >= limit
    return n_ended < len(transcript.segments) or n_tokens > limit


def _rotated(n: int, start: int) -> list[int]:
    return [(start + i) % n for i in range(n)]


def _decode_arm(task: Task, arm: Rule, state: State, decoding: Decoding, seconds: float) -> dict:
    state.set_view(arm, task.lists)
    state.reset_counters()
    begin = time.perf_counter()
    transcript = state.transcribe(None, decoding)
    elapsed = time.perf_counter() - begin

    counters = state.counters()
    normaliser = scoring.normaliser(task.clip.language, task.strip_diacritics)
    counts = scoring.counts(task.clip.text, transcript.text, normaliser)
    characters = scoring.character_counts(task.clip.text, transcript.text, normaliser)
    view_runs = counters.n_reduced + counters.n_reexec
    return _row(task, arm) | {
        "time": round(elapsed, 4),
        "pred_text": transcript.text,
        "substitutions": counts.substitutions,
        "deletions": counts.deletions,
        "insertions": counts.insertions,
        "reference_words": counts.reference_words,
        **dataclasses.asdict(characters),
        **dataclasses.asdict(scoring.script_counts(transcript.text, normaliser)),
        "tokens": len(transcript.tokens),
        "runaway": runs_away(transcript, state.model.end_of_text, seconds, task.limits),
        "steps": counters.n_steps,
        "reduced": counters.n_reduced,
        "full": counters.n_full,
        "reexecuted": counters.n_reexec,
        "prompts": counters.n_prompts,
        "positions": counters.n_rows_read // state.model.n_layer,  # sum over all runs: prompts, full, re-executed too
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
        "cluster": task.clip.cluster,
        "text": task.clip.text,
    }


def error_rows(task: Task, reason: str) -> list[dict]:
    return [_row(task, arm) | {"error": reason} for arm in task.arms]


# --- in the parent ----------------------------------------------------------------------------------------------------


def run(tasks: list[Task], jobs: int, work: Callable[[Task], list[dict]] = run_task) -> Iterator[list[dict]]:
    """Rows of each task as it ends, in no fixed order.

    A task whose worker dies is tried once more; if that worker dies, too, or if the task takes longer than its
    ``timeout``, its rows say so. No other task is lost.
    """
    queue, crashed, workers = deque(tasks), set(), []
    try:
        while queue or any(worker.task for worker in workers):
            while queue and len(workers) < jobs:
                workers.append(Worker(work))
            for worker in workers:
                if queue and not worker.task:
                    worker.give(queue.popleft())
            for worker in _wait([worker for worker in workers if worker.task]):
                task, rows = worker.task, worker.result()
                if rows is None:
                    workers.remove(worker)
                    reason = worker.end()
                    if reason is DIED and task.key not in crashed:
                        crashed.add(task.key)
                        queue.append(task)
                        continue
                    rows = error_rows(task, reason)
                yield rows
    finally:  # Ctrl-C, or the caller gave up: do not wait for the workers
        for worker in workers:
            worker.end()


DIED = "the worker process died while decoding this clip, twice"


class Worker:
    """A process that does one task at a time, and may crash or hang.

    ``environment``: of the process; by default ours, and threads that wait do not spin, as other workers need the core.
    """

    def __init__(self, work: Callable[[Task], list[dict]], environment: Mapping[str, str] | None = None):
        environment = environment or {"OMP_WAIT_POLICY": "passive", **os.environ}
        # not multiprocessing.Process, which a Dask worker may not start: it is itself a daemon of one
        self.connection, theirs = multiprocessing.Pipe()
        serve = f"from pyharness import runner; runner.serve({theirs.fileno()})"
        # the parent decides what Ctrl-C means: the process inherits the mask
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", serve],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        self._send(work)
        self.task: Task | None = None
        self.deadline = 0.0

    def give(self, task: Task) -> None:
        self.task, self.deadline = task, time.monotonic() + task.timeout
        self._send(task)

    def _send(self, what) -> None:
        with contextlib.suppress(OSError):  # it has died: its end of the connection says so to who waits
            self.connection.send(what)

    def result(self, timeout: float = 0) -> list[dict] | None:
        """The rows of its task, waiting so many seconds; None if it died or is late."""
        if not self.connection.poll(timeout):
            return None
        try:
            rows = self.connection.recv()
        except (EOFError, OSError):
            return None
        self.task = None
        return rows

    def end(self) -> str:
        """Kill the process; why its task has no rows."""
        is_late = self.task and time.monotonic() >= self.deadline
        self.process.kill()
        self.process.wait()
        self.connection.close()
        return f"stopped after {self.task.timeout:g} s (--timeout)" if is_late else DIED


def _wait(workers: list[Worker]) -> list[Worker]:
    """Wait until workers are ready, have died or are late; these."""
    timeout = min(worker.deadline for worker in workers) - time.monotonic()
    ready = multiprocessing.connection.wait([worker.connection for worker in workers], max(0, timeout))
    now = time.monotonic()
    return [worker for worker in workers if worker.connection in ready or now >= worker.deadline]


def serve(descriptor: int) -> None:
    """The worker process: ends with its parent."""
    connection = multiprocessing.connection.Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):
        work = connection.recv()
        while True:
            connection.send(work(connection.recv()))
