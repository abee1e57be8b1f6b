"""``bench step --mode real``: the decoder's time per token of whole clips, transcribed by every arm.

The time is that from the encoder to the text: the prompt, all steps, re-executed ones twice, and the choice of tokens.
Arms may choose different tokens, and different numbers of them, so times are compared per token, and word errors stand
beside them. Reading and encoding the clip, which every arm does, is not in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pyharness.bench import utterance
from pyharness.bench.clips import Decoded, Scored, clip_ratios, decoding_of, measure, readable, text_columns
from pyharness.bench.environment import build_names, environment
from pyharness.bench.libraries import STOCK, Arm, Library, both
from pyharness.bench.paired import median_with_interval, times
from pyharness.bench.quality import NOT_COMPARED, compare
from pyharness.grid import Limits
from pyharness.native import Decoding
from pyharness.rules import Rule
from pyharness.speech import Clip
from pyharness.sweep import Part

REAL = "real"  # mode, in rows
READS = ("positions", "bytes_read", "rows_copied", "reexecuted", "tracking_share")


@dataclass(frozen=True)
class Settings:
    part: Part  # the model and its clips
    arms: tuple[Arm, ...]  # the first one is stock
    limits: Limits  # of every arm; its threads are not used
    threads: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Spoken(Decoded):
    """One clip, once; ``ms`` is that of a token. What was read: means of the decoder's runs, prompts among them; None
    where upstream's attention, which has no counters, reads everything."""

    positions: float | None = None
    bytes_read: float | None = None  # of the cross-attention cache, all layers
    rows_copied: float | None = None  # into the ring buffers, all layers
    reexecuted: float | None = None  # share of the steps
    tracking_share: float | None = None  # of the time: spent on the view itself, outside of the attention


# --- in a library's process -------------------------------------------------------------------------------------------


def transcribe(model: Path, rule: Rule | None, clip: Path, decoding: Decoding) -> Spoken:
    state = utterance.state_of(model, flash_attention=True)
    if rule:
        state.reset_counters()
    split = utterance.transcribe(model, rule, clip, decoding)
    ms = split.decoder_ms / max(1, split.n_tokens)
    counters = state.counters() if rule else None
    if not counters or not counters.n_prompts:
        return Spoken(split.text, ms)
    runs = counters.n_prompts + counters.n_steps + counters.n_reexec
    return Spoken(
        split.text,
        ms,
        positions=counters.n_rows_read / state.model.n_layer / runs,
        bytes_read=counters.n_bytes_read / runs,
        rows_copied=counters.n_rows_copied / runs,
        reexecuted=counters.n_reexec / max(1, counters.n_steps),
        tracking_share=counters.t_tracking_us / 1e3 / split.decoder_ms,
    )


# --- in the parent ----------------------------------------------------------------------------------------------------


def run(settings: Settings, advance: Callable[[], None], say: Callable[[str], None]) -> dict:
    """{"env": ..., "rows": [...]}; ``advance()`` reports that a clip is done, of each number of threads."""
    clips = readable(settings.part.clips, say)
    with both() as libraries:
        env = environment("step --mode real", libraries, settings.threads)
        env |= {"beam_size": settings.limits.beam_size, "timestamps": settings.limits.timestamps}
        rows = []
        for threads in settings.threads:
            scored = _measured(settings, libraries, clips, threads, advance)
            rows += [_row(settings, arm, scored, clips, threads, build_names(env)) for arm in settings.arms]
    return {"env": env, "rows": rows}


def _measured(
    settings: Settings, libraries: dict[str, Library], clips: list[Clip], threads: int, advance: Callable[[], None]
) -> dict[Arm, list[Scored]]:
    """Every clip under every arm, in turns."""

    def decode(clip: Clip, arm: Arm) -> Spoken:
        decoding = decoding_of(clip, settings.limits, threads)
        return libraries[arm.library].call(transcribe, settings.part.model_path, arm.rule, clip.audio, decoding)

    for arm in settings.arms:  # warm up
        decode(clips[0], arm)
    scored = {arm: [] for arm in settings.arms}
    for i, clip in enumerate(clips):
        by_arm = measure(clip, settings.arms, 1, partial(decode, clip), i, settings.part.strip_diacritics)
        for arm, of_clip in by_arm.items():
            scored[arm].append(of_clip)
        advance()
    return scored


def _row(
    settings: Settings,
    arm: Arm,
    scored: dict[Arm, list[Scored]],
    clips: list[Clip],
    threads: int,
    builds: dict[str, str],
) -> dict:
    mine, stock = scored[arm], scored[STOCK]
    return {
        "model": settings.part.model,
        "speech": settings.part.speech,
        "threads": threads,
        "mode": REAL,
        **arm.columns(),
        **_columns(mine, stock),
        **(NOT_COMPARED if arm == STOCK else compare(mine, stock, clips)),
        "n": len(clips),
        "failed_clips": len(settings.part.clips) - len(clips),
        "build": builds[arm.library],
    }


def _columns(mine: list[Scored], stock: list[Scored]) -> dict:
    to_stock = median_with_interval(clip_ratios(mine, stock))
    return {
        **times([one.median("ms") for one in mine]),
        "ratio_to_stock": to_stock.median,
        "ratio_low": to_stock.low,
        "ratio_high": to_stock.high,
        **{key: _mean([getattr(one.repeats[0], key) for one in mine]) for key in READS},
        **text_columns(mine, stock),
    }


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
