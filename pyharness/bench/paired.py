"""Times of several arms, taken in turns, and their ratios in pairs.

A machine is slow for a while and fast again. Arms that take turns meet the same weather, so the ratio within a round
tells more than the times, and the median of these ratios is not moved by a round that was disturbed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pyharness.statistics import RESAMPLES

CONFIDENCE = 0.95  # of the two-sided interval


@dataclass(frozen=True)
class Median:
    median: float
    low: float | None  # percentile bootstrap interval; None: a single value has none
    high: float | None


def interleave(arms: Sequence, rounds: int, run: Callable, first: int = 0) -> dict:
    """What ``run(arm)`` gave, [rounds] for each arm: every round runs all arms, and starts with another one."""
    results = {arm: [] for arm in arms}
    for i in range(first, first + rounds):
        start = i % len(arms)
        for arm in (*arms[start:], *arms[:start]):
            results[arm].append(run(arm))
    return results


def ratios(mine: Sequence[float], others: Sequence[float]) -> list[float]:
    """mine[i] / others[i]: of the same round."""
    return [a / b for a, b in zip(mine, others, strict=True)]


def median_with_interval(values: Sequence[float]) -> Median:
    """Of independent values: the ratios of rounds, or of clips. They are resampled with a fixed seed."""
    median = float(np.median(values))
    if len(values) < 2:
        return Median(median, None, None)
    drawn = np.random.default_rng(0).choice(values, (RESAMPLES, len(values)))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(drawn, axis=1), [tail, 1 - tail])
    return Median(median, float(low), float(high))


def times(values: Sequence[float]) -> dict:
    """Columns of a row: median and quartiles, in the unit of the values (ms)."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"ms": float(median), "ms_low": float(low), "ms_high": float(high)}
