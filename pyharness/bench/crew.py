"""n decoders of one model at work at once, in a library's process: each has a state, a clip and a thread of its own.

Each counts as one thread of the library, so nobody waits for anybody: neither inside ggml, nor for Python, which a
thread leaves while it is in the library. What remains of Python in the times is a call for each step of `time_steps`,
and one look for Ctrl-C behind each run of the decoder in `transcribe`: microseconds of milliseconds.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyharness import audio
from pyharness.bench.stepper import StepState
from pyharness.errors import HarnessError
from pyharness.native import Decoding, Model
from pyharness.rules import Rule

THREADS = 1  # of each decoder


@dataclass(frozen=True)
class Wave:
    """What n decoders did, all at once."""

    seconds: float  # from the moment when all began to the end of the last
    ms: tuple[float, ...]  # latencies: of all steps, or of all clips
    n_tokens: int
    reexecuted: float  # share of the steps
    texts: tuple[str, ...]  # by decoder; none where they are fed


@dataclass(frozen=True)
class Turn:
    """What one of them did."""

    begin: float  # s
    ends: tuple[float, ...]  # of its steps, or of its clip
    n_tokens: int
    text: str | None = None  # where it transcribes

    def ms(self) -> list[float]:
        return [1e3 * (end - begin) for begin, end in itertools.pairwise([self.begin, *self.ends])]


class Crew:
    """The decoders: to be used from one thread, as they make their own."""

    def __init__(self, model: Path, n: int):
        self.model = Model(model)
        self.states = [StepState(self.model) for _ in range(n)]

    def set_view(self, rule: Rule | None) -> None:
        """Read by this rule from the next prompts on, and count from now; None: stock, which knows neither."""
        if rule is None:
            return
        for state in self.states:
            state.set_view(rule)
            state.reset_counters()

    def reexecuted(self, rule: Rule | None) -> float:
        """Share of the steps since then."""
        counters = [state.counters() for state in self.states] if rule else []
        steps = sum(one.n_steps for one in counters)
        return sum(one.n_reexec for one in counters) / steps if steps else 0.0

    def all(self, work: Callable, *given: Sequence) -> list:
        """What work(state, start, ...) gave, by decoder, each in a thread of its own, with one of each of the given.
        ``start()`` returns when all have called it: the moment in which all begin."""
        barrier = threading.Barrier(len(self.states))

        def guarded(*args):
            try:
                return work(*args)
            except BaseException:
                barrier.abort()  # the others would wait for this one for ever
                raise

        with ThreadPoolExecutor(len(self.states)) as pool:
            futures = [
                pool.submit(guarded, state, barrier.wait, *args)
                for state, *args in zip(self.states, *given, strict=True)
            ]
        _raise_first_cause(futures)
        return [future.result() for future in futures]


def _raise_first_cause(futures: list[Future]) -> None:
    """Of those that failed: not of those that only waited for them in vain."""
    errors = [error for future in futures if (error := future.exception())]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))


# --- what a library's process is asked to do --------------------------------------------------------------------------

_crew: Crew
_prompt: list[int]


def gather(model: Path, language: str, n: int) -> None:
    global _crew, _prompt
    _crew = Crew(model, n)
    _prompt = _crew.model.prompt(language)


def encode(clips: list[Path]) -> None:
    """One clip for each decoder: steps are behind these until the next."""
    _crew.all(lambda state, _, clip: state.encode(audio.load(clip), THREADS), clips)


def choose(n: int) -> list[list[int]]:
    """For each decoder the n text tokens that are most probable one after the other."""
    return _crew.all(lambda state, _: state.choose(_prompt, n, THREADS))


def follow(rule: Rule | None, tokens: list[list[int]]) -> list[list[int]]:
    """For each decoder what its steps over these tokens find most probable. Not timed: it warms up."""
    _crew.set_view(rule)
    return _crew.all(lambda state, _, mine: state.follow(_prompt, mine, THREADS), tokens)


def time_steps(rule: Rule | None, tokens: list[list[int]]) -> Wave:
    """All take their steps over these tokens, behind prompts that are not timed."""
    _crew.set_view(rule)
    return _wave(rule, _crew.all(_take_steps, tokens))


def transcribe(rule: Rule | None, clips: list[Path], decoding: list[Decoding]) -> Wave:
    """All transcribe a clip each. They wait for each other behind the encoder, and the time is that from there on."""
    _crew.set_view(rule)
    return _wave(rule, _crew.all(_transcribe, clips, decoding))


def _take_steps(state: StepState, start: Callable, tokens: list[int]) -> Turn:
    state.decode(_prompt, 0, THREADS)
    ends = []
    start()
    begin = time.perf_counter()
    for n_past, token in enumerate(tokens, len(_prompt)):
        state.decode([token], n_past, THREADS)
        ends.append(time.perf_counter())
    return Turn(begin, tuple(ends), len(tokens))


def _transcribe(state: StepState, start: Callable, clip: Path, decoding: Decoding) -> Turn:
    begin = None

    def on_phase(phase: str) -> None:
        nonlocal begin
        if begin is None and phase == "encode":
            start()
            begin = time.perf_counter()

    transcript = state.transcribe(audio.load(clip), decoding, on_phase=on_phase)
    if begin is None:
        raise HarnessError(f"'{clip}' is too short to be encoded")
    return Turn(begin, (time.perf_counter(),), len(transcript.tokens), transcript.text)


def _wave(rule: Rule | None, turns: list[Turn]) -> Wave:
    return Wave(
        seconds=max(turn.ends[-1] for turn in turns) - min(turn.begin for turn in turns),
        ms=tuple(ms for turn in turns for ms in turn.ms()),
        n_tokens=sum(turn.n_tokens for turn in turns),
        reexecuted=_crew.reexecuted(rule),
        texts=tuple(turn.text for turn in turns if turn.text is not None),
    )
