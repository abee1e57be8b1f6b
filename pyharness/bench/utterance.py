"""``bench utterance``: whole clips, samples to text, by length of the clip; word errors beside speed.

Every arm does everything for each clip: spectrogram, encoder, decoder. The parts are told apart by the calls that both
builds make between them: *mel* ends where the encoder begins, *encoder* is the encoder with the keys and values of
cross-attention, *decoder* is the rest, with the choice of tokens.
"""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyharness import audio
from pyharness.bench.clips import Decoded, Scored, columns, decoding_of, measure, readable
from pyharness.bench.environment import build_names, environment
from pyharness.bench.libraries import STOCK, Arm, Library, both
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
    bench: str = "utterance"  # or "builds"
    others: Mapping[str, Path] = field(default_factory=dict)  # builds of arms besides stock and ours


@dataclass(frozen=True)
class Split(Decoded):
    """One clip, once, and the parts of its time."""

    n_tokens: int
    mel_ms: float
    encoder_ms: float
    decoder_ms: float


# --- in a library's process -------------------------------------------------------------------------------------------


@functools.cache
def state_of(model: Path, flash_attention: bool) -> State:
    return Model(model, flash_attention).state()


def transcribe(model: Path, rule: Rule | None, clip: Path, decoding: Decoding, flash_attention: bool = True) -> Split:
    """Reading the file is not timed."""
    state, samples = state_of(model, flash_attention=flash_attention), audio.load(clip)
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
    return Split(
        text=transcript.text,
        ms=1e3 * total,
        n_tokens=len(transcript.tokens),
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
    clips = readable(dict.fromkeys(clip for some in chosen.values() for clip in some), say)
    with both(settings.others) as libraries:
        env = environment(settings.bench, libraries, settings.threads)
        env |= {"beam_size": settings.limits.beam_size, "timestamps": settings.limits.timestamps}
        rows = []
        for i, threads in enumerate(settings.threads):
            for arm in {(arm.library, arm.flash_attention): arm for arm in settings.arms}.values():  # warm up
                _decode(settings, libraries, arm, clips[0], threads)
            scored = {}
            for j, clip in enumerate(clips):
                decode = functools.partial(_decode, settings, libraries, clip=clip, threads=threads)
                scored[clip.id] = measure(
                    clip, settings.arms, settings.repeats, decode, j, settings.part.strip_diacritics
                )
                advance(i * len(clips) + j + 1, len(settings.threads) * len(clips))
            for length, some in chosen.items():
                rows += _rows(settings, length, some, scored, threads, build_names(env))
    return {"env": env, "rows": rows}


def _decode(settings: Settings, libraries: dict[str, Library], arm: Arm, clip: Clip, threads: int) -> Split:
    decoding = decoding_of(clip, settings.limits, threads)
    return libraries[arm.library].call(
        transcribe, settings.part.model_path, arm.rule, clip.audio, decoding, arm.flash_attention
    )


def _rows(
    settings: Settings, length: float, chosen: list[Clip], scored: dict[str, dict], threads: int, builds: dict[str, str]
) -> list[dict]:
    """One row per arm, or none if no clip of this length was measured."""
    clips = [clip for clip in chosen if clip.id in scored]
    return [
        {
            "model": settings.part.model,
            "speech": settings.part.speech,
            "threads": threads,
            **arm.columns(),
            "clip_s": length,
            "clip_s_mean": float(np.mean([clip.duration for clip in clips])),
            **_columns([scored[clip.id][arm] for clip in clips], [scored[clip.id][STOCK] for clip in clips]),
            "n": len(clips),
            "failed_clips": len(chosen) - len(clips),
            "repeats": settings.repeats,
            "build": builds[arm.library],
        }
        for arm in settings.arms
        if clips
    ]


def _columns(mine: list[Scored], stock: list[Scored]) -> dict:
    return {
        **columns(mine, stock),
        **{key: float(np.median([one.median(key) for one in mine])) for key in PARTS},
        "tokens": float(np.mean([one.median("n_tokens") for one in mine])),
    }
