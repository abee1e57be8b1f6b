"""``bench utterance``: whole clips, samples to text, by length of the clip; word errors beside speed.

Every arm does everything for each clip: spectrogram, encoder, decoder. The parts are told apart by the calls that both
builds make between them: *mel* ends where the encoder begins, *encoder* is the encoder with the keys and values of
cross-attention, *decoder* is the rest, with the choice of tokens.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pyharness import audio, scoring
from pyharness.bench.environment import build_names, environment
from pyharness.bench.libraries import STOCK, Arm, Library, both
from pyharness.bench.paired import interleave, median_with_interval, ratios, times
from pyharness.errors import HarnessError
from pyharness.grid import Limits
from pyharness.native import Decoding, Model, State
from pyharness.rules import Rule
from pyharness.speech import Clip
from pyharness.sweep import Part

PARTS = ("mel_ms", "encoder_ms", "decoder_ms")  # of a clip's time
NEAR = 0.25  # a clip stands for a length if its own differs by no more than this share


@dataclass(frozen=True)
class Settings:
    part: Part  # the model and all clips to choose from
    arms: tuple[Arm, ...]  # the first one is stock
    limits: Limits  # of every arm; its threads are not used
    lengths: tuple[float, ...] = (1, 2, 4, 8, 15)  # seconds
    clips: int = 5  # of each length, at most
    repeats: int = 3  # of each clip and arm
    threads: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Decoded:
    """One clip, once."""

    text: str
    n_tokens: int
    ms: float
    mel_ms: float
    encoder_ms: float
    decoder_ms: float


@dataclass(frozen=True)
class Scored:
    """One clip under one arm: medians of its repeats."""

    decoded: Decoded
    speedup: float  # median of stock's time / this arm's, paired by round
    errors: int
    words: int  # of the reference


# --- in a library's process -------------------------------------------------------------------------------------------


@functools.cache
def state_of(model: Path) -> State:
    return Model(model).state()


def transcribe(model: Path, rule: Rule | None, clip: Path, decoding: Decoding) -> Decoded:
    """Reading the file is not timed."""
    state, samples = state_of(model), audio.load(clip)
    if rule:
        state.set_view(rule)
    spent = {"mel": 0.0, "encode": 0.0, "decode": 0.0}
    begin = last = time.perf_counter()

    def on_phase(phase: str) -> None:
        nonlocal last
        now = time.perf_counter()
        spent[phase] += now - last
        last = now

    transcript = state.transcribe(samples, decoding, on_phase=on_phase)
    total = time.perf_counter() - begin
    mel, encoder = spent["mel"], spent["encode"]
    return Decoded(
        text=transcript.text,
        n_tokens=len(transcript.tokens),
        ms=1e3 * total,
        mel_ms=1e3 * mel,
        encoder_ms=1e3 * encoder,
        decoder_ms=1e3 * (total - mel - encoder),
    )


# --- in the parent ----------------------------------------------------------------------------------------------------


def nearest(clips: list[Clip], length: float, n: int) -> list[Clip]:
    """At most n clips: those nearest to this length in seconds, none of them far off."""

    def distance(clip: Clip) -> tuple[float, str]:
        return abs(clip.duration - length), clip.id

    return sorted((clip for clip in clips if distance(clip)[0] <= NEAR * length), key=distance)[:n]


def run(settings: Settings, advance: Callable[[int, int], None], say: Callable[[str], None]) -> dict:
    """{"env": ..., "rows": [...]}; ``advance(n, total)`` reports that n clips of a total are done."""
    chosen = {length: nearest(settings.part.clips, length, settings.clips) for length in settings.lengths}
    for length, clips in chosen.items():
        if len(clips) < settings.clips:
            say(f"{settings.part.speech} has {len(clips)} clips of {length:g} s (± {NEAR:.0%}), not {settings.clips}")
    if not any(chosen.values()):
        raise HarnessError(f"speech '{settings.part.speech}' has no clip of these lengths: give others with --lengths")
    clips = list(dict.fromkeys(clip for some in chosen.values() for clip in some))
    with both() as libraries:
        env = environment(libraries, settings.threads)
        env |= {"beam_size": settings.limits.beam_size, "timestamps": settings.limits.timestamps}
        rows = []
        for i, threads in enumerate(settings.threads):
            for arm in {arm.library: arm for arm in settings.arms}.values():  # warm up
                _decode(settings, libraries, arm, clips[0], threads)
            scored = {}
            for j, clip in enumerate(clips):
                scored[clip.id] = _measure(settings, libraries, clip, threads, first=j)
                advance(i * len(clips) + j + 1, len(settings.threads) * len(clips))
            for length, some in chosen.items():
                rows += _rows(settings, length, some, [scored[clip.id] for clip in some], threads, build_names(env))
    return {"env": env, "rows": rows}


def _decode(settings: Settings, libraries: dict[str, Library], arm: Arm, clip: Clip, threads: int) -> Decoded:
    limits = settings.limits
    decoding = Decoding(
        language=clip.language,
        beam_size=limits.beam_size,
        timestamps=limits.timestamps,
        max_tokens=limits.max_tokens(clip.duration),
        threads=threads,
    )
    return libraries[arm.library].call(transcribe, settings.part.model_path, arm.rule, clip.audio, decoding)


def _measure(
    settings: Settings, libraries: dict[str, Library], clip: Clip, threads: int, first: int
) -> dict[Arm, Scored]:
    """One clip under every arm."""

    def once(arm: Arm) -> Decoded:
        return _decode(settings, libraries, arm, clip, threads)

    decoded = interleave(settings.arms, settings.repeats, once, first)
    stock_ms = [one.ms for one in decoded[STOCK]]
    normaliser = scoring.normaliser(clip.language, settings.part.strip_diacritics)
    scored = {}
    for arm, mine in decoded.items():
        counts = scoring.counts(clip.text, mine[0].text, normaliser)
        speedup = float(np.median(ratios(stock_ms, [one.ms for one in mine])))
        scored[arm] = Scored(_median(mine), speedup, counts.errors, counts.reference_words)
    return scored


def _median(repeats: list[Decoded]) -> Decoded:
    """The text, which is the same each time, with the median of each time."""
    medians = {key: float(np.median([getattr(one, key) for one in repeats])) for key in ("ms", *PARTS)}
    return replace(repeats[0], **medians)


def _rows(
    settings: Settings, length: float, clips: list[Clip], scored: list[dict], threads: int, builds: dict[str, str]
) -> list[dict]:
    """One row per arm, or none if there is no clip."""
    return [
        {
            "model": settings.part.model,
            "speech": settings.part.speech,
            "threads": threads,
            **arm.columns(),
            "clip_s": length,
            "clip_s_mean": float(np.mean([clip.duration for clip in clips])),
            **_columns([by_arm[arm] for by_arm in scored], [by_arm[STOCK] for by_arm in scored]),
            "n": len(clips),
            "repeats": settings.repeats,
            "build": builds[arm.library],
        }
        for arm in settings.arms
        if clips
    ]


def _columns(mine: list[Scored], stock: list[Scored]) -> dict:
    speedup = median_with_interval([one.speedup for one in mine])
    words = sum(one.words for one in mine)
    return {
        **times([one.decoded.ms for one in mine]),
        **{key: float(np.median([getattr(one.decoded, key) for one in mine])) for key in PARTS},
        "tokens": sum(one.decoded.n_tokens for one in mine) / len(mine),
        "speedup_vs_stock": speedup.median,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "wer": sum(one.errors for one in mine) / words if words else None,
        "same_text": sum(a.decoded.text == b.decoded.text for a, b in zip(mine, stock, strict=True)),
    }
