"""``bench peers``: whole clips, samples to text, by stock, by us and by faster-whisper; errors and memory beside speed.

Every contestant is an arm with a model file in a process of its own, so that each has its own peak of memory. They
take turns clip by clip. The processes are new for every number of threads, which faster-whisper takes when it loads.

With beams, stock's texts depend on what it decoded before (see patch 0003), so some differ from ours even with `off`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyharness import ggml_file, models
from pyharness.bench import faster_whisper_peer, libraries
from pyharness.bench.clips import Decoded, Scored, clip_ratios, columns, decoding_of, measure, readable
from pyharness.bench.environment import build_names, environment
from pyharness.bench.faster_whisper_peer import FLOAT32, INT8, Peer
from pyharness.bench.libraries import STOCK, Arm, Process
from pyharness.bench.paired import median_with_interval
from pyharness.bench.quality import NOT_COMPARED, compare
from pyharness.bench.utterance import transcribe
from pyharness.grid import Limits
from pyharness.native import Decoding
from pyharness.speech import Clip
from pyharness.sweep import Part


@dataclass(frozen=True)
class Settings:
    parts: tuple[Part, ...]  # the models, all on the same clips
    arms: tuple[Arm, ...]  # of each model; the first one is stock
    limits: Limits  # of every contestant; its threads are not used
    repeats: int = 1  # of each clip and contestant
    threads: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Contestant:
    """A row: an arm with a model."""

    model: str
    path: Path  # the model's file, or its folder in CTranslate2's format
    published: str  # name of the weights that the model is made of
    weights: str  # type of most of them, or what faster-whisper computes with
    arm: Arm | Peer

    def start(self, threads: int) -> Process:
        if isinstance(self.arm, Peer):
            return Process(self.arm.name, faster_whisper_peer.environment(threads))
        return libraries.start(self.arm.library)

    def decode(self, process: Process, clip: Clip, decoding: Decoding) -> Decoded:
        if isinstance(self.arm, Peer):
            work = faster_whisper_peer.transcribe, self.path, self.arm.compute_type
        else:
            work = transcribe, self.path, self.arm.rule
        return process.call(*work, clip.audio, decoding)


def contestants(settings: Settings) -> list[Contestant]:
    """By published weights: every arm with each file of them, then faster-whisper."""
    by_weights: dict[str, list[Contestant]] = {}
    for part in settings.parts:
        published, weights = models.published_name(part.model_path), ggml_file.read_hparams(part.model_path).weights
        by_weights.setdefault(published, []).extend(
            Contestant(part.model, part.model_path, published, weights, arm) for arm in settings.arms
        )
    for published, found in by_weights.items():
        folder = models.ct2_folder(published)
        found += [Contestant(published, folder, published, peer.compute_type, peer) for peer in (INT8, FLOAT32)]
    return [one for found in by_weights.values() for one in found]


def stock_of(contestant: Contestant, field: list[Contestant]) -> Contestant:
    """Whom it is compared with: stock with the same file, or, for faster-whisper, the first file of these weights."""
    stock = [one for one in field if one.arm == STOCK and one.published == contestant.published]
    return next((one for one in stock if one.path == contestant.path), stock[0])


def int8_of(contestant: Contestant, field: list[Contestant]) -> Contestant:
    """faster-whisper int8 with the same weights."""
    return next(one for one in field if one.arm == INT8 and one.published == contestant.published)


def run(settings: Settings, advance: Callable[[], None], say: Callable[[str], None]) -> dict:
    """{"env": ..., "rows": [...]}; ``advance()`` reports that a clip is done, of each number of threads."""
    versions = faster_whisper_peer.versions()
    chosen = readable(settings.parts[0].clips, say)
    field = contestants(settings)
    env = _environment(settings, chosen)
    env["builds"][Peer.library] = versions
    rows = []
    for threads in settings.threads:
        rows += _rows(settings, field, chosen, threads, build_names(env), advance)
    return {"env": env, "rows": rows}


def _environment(settings: Settings, chosen: list[Clip]) -> dict:
    with libraries.both() as running:
        env = environment("peers", running, settings.threads)
    return env | {
        "beam_size": settings.limits.beam_size,
        "timestamps": settings.limits.timestamps,
        "clips": [{"id": clip.id, "duration": clip.duration} for clip in chosen],
    }


def _rows(
    settings: Settings,
    field: list[Contestant],
    chosen: list[Clip],
    threads: int,
    builds: dict[str, str],
    advance: Callable[[], None],
) -> list[dict]:
    """One row per contestant."""
    with _started(field, threads) as processes:
        scored = _measured(settings, processes, chosen, threads, advance)
        peaks = {one: process.call(libraries.peak_mb) for one, process in processes.items()}
    return [
        {
            "model": one.model,
            "weights": one.weights,
            "speech": settings.parts[0].speech,
            "threads": threads,
            **one.arm.columns(),
            "clip_s": float(np.mean([clip.duration for clip in chosen])),
            **columns(scored[one], scored[stock_of(one, field)]),
            **_ratio(scored[one], scored[int8_of(one, field)]),
            **(NOT_COMPARED if one.arm == STOCK else compare(scored[one], scored[stock_of(one, field)], chosen)),
            "errors": [clip.errors for clip in scored[one]],
            "words": [clip.words for clip in scored[one]],
            "peak_mb": peaks[one],
            "n": len(chosen),
            "failed_clips": len(settings.parts[0].clips) - len(chosen),
            "repeats": settings.repeats,
            "build": builds[one.arm.library],
        }
        for one in field
    ]


@contextlib.contextmanager
def _started(field: list[Contestant], threads: int) -> Iterator[dict[Contestant, Process]]:
    with contextlib.ExitStack() as stack:
        yield {one: stack.enter_context(one.start(threads)) for one in field}


def _measured(
    settings: Settings,
    processes: dict[Contestant, Process],
    chosen: list[Clip],
    threads: int,
    advance: Callable[[], None],
) -> dict[Contestant, list[Scored]]:
    """What every contestant makes of every clip."""

    def decode(clip: Clip, one: Contestant) -> Decoded:
        return one.decode(processes[one], clip, decoding_of(clip, settings.limits, threads))

    for one in processes:  # loads the model and warms up
        decode(chosen[0], one)
    scored = {one: [] for one in processes}
    for i, clip in enumerate(chosen):
        strip = settings.parts[0].strip_diacritics
        by_contestant = measure(clip, list(processes), settings.repeats, functools.partial(decode, clip), i, strip)
        for one, of_clip in by_contestant.items():
            scored[one].append(of_clip)
        advance()
    return scored


def _ratio(mine: list[Scored], int8: list[Scored]) -> dict:
    ratio = median_with_interval(clip_ratios(mine, int8))
    return {"ratio_to_faster_whisper_int8": ratio.median, "ratio_low": ratio.low, "ratio_high": ratio.high}
