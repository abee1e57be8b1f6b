"""Whole clips under arms that take turns: what each made of them, how long it took, and how wrong it was."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyharness import audio, scoring
from pyharness.bench.paired import interleave, median_with_interval, ratios, times
from pyharness.errors import HarnessError
from pyharness.grid import Limits
from pyharness.native import Decoding
from pyharness.speech import Clip


@dataclass(frozen=True)
class Decoded:
    """One clip, once."""

    text: str
    ms: float  # samples to text


@dataclass(frozen=True)
class Scored:
    """One clip under one arm."""

    repeats: tuple[Decoded, ...]  # the text of the first one counts
    errors: int
    words: int  # of the reference

    @property
    def text(self) -> str:
        return self.repeats[0].text

    def each(self, key: str) -> list[float]:
        """A field of `Decoded`, of every repeat."""
        return [getattr(one, key) for one in self.repeats]

    def median(self, key: str) -> float:
        return float(np.median(self.each(key)))


def readable(clips: Sequence[Clip], say: Callable[[str], None]) -> list[Clip]:
    """Those whose recording can be read; the others are named. HarnessError if none can."""
    found = [clip for clip in clips if _is_readable(clip, say)]
    if not found:
        raise HarnessError("none of the clips can be read")
    return found


def _is_readable(clip: Clip, say: Callable[[str], None]) -> bool:
    try:
        audio.load(clip.audio)
    except HarnessError as error:
        say(f"clip '{clip.id}' is left out: {error.message}")
        return False
    return True


def decoding_of(clip: Clip, limits: Limits, threads: int) -> Decoding:
    return Decoding(
        language=clip.language,
        beam_size=limits.beam_size,
        timestamps=limits.timestamps,
        max_tokens=limits.max_tokens(clip.duration),
        threads=threads,
    )


def measure(
    clip: Clip, arms: Sequence, repeats: int, decode: Callable, first: int, strip_diacritics: bool
) -> dict[object, Scored]:
    """What every arm makes of a clip; ``decode(arm)`` gives what it does, Decoded; the arm at ``first`` begins."""
    decoded = interleave(arms, repeats, decode, first)
    return {arm: score(clip, mine, strip_diacritics) for arm, mine in decoded.items()}


def clip_ratios(mine: Sequence[Scored], others: Sequence[Scored]) -> list[float]:
    """Time of mine / time of others, of each clip: the median of its repeats' ratios."""
    return [float(np.median(ratios(a.each("ms"), b.each("ms")))) for a, b in zip(mine, others, strict=True)]


def columns(mine: Sequence[Scored], stock: Sequence[Scored]) -> dict:
    """Of a row: times of the clips, and errors over all of them."""
    speedup = median_with_interval(clip_ratios(stock, mine))
    return {
        **times([one.median("ms") for one in mine]),
        "speedup_vs_stock": speedup.median,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        **text_columns(mine, stock),
    }


def text_columns(mine: Sequence[Scored], stock: Sequence[Scored]) -> dict:
    """Of a row: what speaks of the texts alone."""
    words = sum(one.words for one in mine)
    return {
        "wer": sum(one.errors for one in mine) / words if words else None,
        "same_text": sum(a.text == b.text for a, b in zip(mine, stock, strict=True)),
    }


def score(clip: Clip, decoded: Sequence[Decoded], strip_diacritics: bool) -> Scored:
    """The repeats of a clip under one arm."""
    counts = scoring.counts(clip.text, decoded[0].text, scoring.normaliser(clip.language, strip_diacritics))
    return Scored(tuple(decoded), counts.errors, counts.reference_words)
