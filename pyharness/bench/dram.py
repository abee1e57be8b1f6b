"""``bench dram``: bytes that a decoder step reads from memory, and which share of the possible saving a view makes.

The steps are those of `bench step`: all arms are fed the same tokens behind the same encoded clip, with one thread. Who
tells is the best *source* of this machine: the CPU's counters (perf.py), a simulation of its caches (cachegrind.py), or
else arithmetic (counted.py). A *cache* says from beyond what the bytes come.

Possible is what the rows outside the budget take in stock's reading of the cross cache; found is what the arm really
reads less than stock, so that whatever a view costs (copied rows, executions again) counts against it.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyharness import audio, ggml_file, models, rules
from pyharness.bench import counted, step
from pyharness.bench.cachegrind import Cachegrind
from pyharness.bench.counted import Counted
from pyharness.bench.decode_steps import Build, Work
from pyharness.bench.environment import build_names, environment
from pyharness.bench.libraries import STOCK, Arm, running
from pyharness.bench.paired import interleave, ratios
from pyharness.bench.perf import Perf
from pyharness.bench.step import Pass
from pyharness.errors import HarnessError

THREADS = 1  # caches are watched as one core sees them
Source = Perf | Cachegrind | Counted
SOURCES = {source.name: source for source in (Perf, Cachegrind, Counted)}  # best first
AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    model: str
    clip: Path
    language: str = "en"
    budgets: tuple[int, ...] = (384, 192, 96)
    steps: int = 16  # 1..step.MAX_STEPS
    source: str = AUTO  # or one of SOURCES
    build: Path | None = None  # None: the source's own

    @property
    def arms(self) -> tuple[Arm, ...]:
        return STOCK, *(Arm(rule) for rule in (rules.Full(), *(rules.PadsinkTrack(budget=n) for n in self.budgets)))


@dataclass(frozen=True)
class Expected:
    """Of an arm's step."""

    counted: Pass
    weights: float
    cross: float
    same_tokens: float

    def columns(self) -> dict:
        return {
            "bytes_weights": self.weights,
            "bytes_cross": self.cross,
            "positions": self.counted.positions,
            "rows_copied": self.counted.rows_copied,
            "full": self.counted.full,
            "reexecuted": self.counted.reexecuted,
            "same_tokens": self.same_tokens,
        }


def run(settings: Settings, advance: Callable[[int, int], None]) -> dict:
    """{"env": ..., "rows": [...]}; ``advance(done, total)`` reports runs."""
    model = models.resolve(settings.model)
    with tempfile.TemporaryDirectory(prefix="padsink-dram-") as folder:
        source, files, unused = choose(settings, Path(folder))
        env, work, expected = _prepare(settings, model, files)
        env |= {"clip": str(settings.clip), "steps": settings.steps}
        env |= {"source": source.name, "unused_sources": unused}
        n_done = 0

        def one_run(arm: Arm) -> dict[str, float]:
            nonlocal n_done
            found = source.read(arm, work)
            n_done += 1
            advance(n_done, source.rounds * len(settings.arms))
            return found

        found = interleave(settings.arms, source.rounds, one_run)
    return {"env": env, "rows": _rows(settings, source, found, expected, build_names(env))}


def choose(settings: Settings, folder: Path) -> tuple[Source, dict[str, Path], dict[str, str]]:
    """The best source that works here, the libraries that it reads, and why better sources do not work."""
    names = tuple(SOURCES) if settings.source == AUTO else (settings.source,)
    unused = {}
    for name in names:
        build = Build(settings.build or SOURCES[name].default_build)
        try:
            return SOURCES[name](build, folder), build.files, unused
        except HarnessError as error:
            unused[name] = error.message
    raise HarnessError(f"source {name}: {unused[name]}")


def _prepare(settings: Settings, model: Path, files: dict[str, Path]) -> tuple[dict, Work, dict[Arm, Expected]]:
    """The environment, what all arms do, and what it should cost each of them."""
    with running(files) as libraries:
        env = environment("dram", libraries, (THREADS,))
        for library in libraries.values():
            prompt = library.call(step.load, model, settings.clip, settings.language, THREADS)
        tokens, same = step.chosen(libraries, settings.arms, settings.steps, THREADS)
        expected = {}
        for arm in settings.arms:
            one = libraries[arm.library].call(step.time_pass, arm.rule, tokens, THREADS)
            expected[arm] = Expected(
                counted=one,
                weights=counted.weights(model) * counted.runs(one, len(tokens)),
                cross=counted.cross(one, ggml_file.read_hparams(model).n_text_layer),
                same_tokens=same[arm],
            )
    sums = {arm: one.weights + one.cross for arm, one in expected.items()}
    return env, Work(model, audio.load(settings.clip).tobytes(), prompt, tokens, sums), expected


def _rows(
    settings: Settings,
    source: Source,
    found: dict[Arm, list[dict[str, float]]],
    expected: dict[Arm, Expected],
    builds: dict[str, str],
) -> list[dict]:
    """One row for each cache and arm."""
    n_ctx = expected[STOCK].counted.positions

    def per_step(arm: Arm, cache: str) -> list[float]:
        return [one[cache] / settings.steps for one in found[arm]]

    return [
        {
            "model": settings.model,
            "threads": THREADS,
            **arm.columns(),
            "source": source.name,
            "cache": cache,
            **_columns(per_step(arm, cache), per_step(STOCK, cache), expected[STOCK].cross, _outside(arm, n_ctx)),
            **expected[arm].columns(),
            "steps": settings.steps,
            "n": source.rounds,
            "build": builds[arm.library],
        }
        for cache in found[STOCK][0]
        for arm in settings.arms
    ]


def _outside(arm: Arm, n_ctx: float) -> float:
    """Share of the positions that the arm's budget leaves out."""
    return 1 - (arm.columns()["budget"] or n_ctx) / n_ctx


def _columns(mine: list[float], stock: list[float], cross: float, outside: float) -> dict:
    """Where stock reads less than its cross cache, the cache before holds it: there is nothing to save."""
    low, median, high = np.quantile(mine, [0.25, 0.5, 0.75])
    of_stock = float(np.median(stock))
    is_read = of_stock >= cross
    return {
        "bytes_per_step": float(median),
        "bytes_low": float(low),
        "bytes_high": float(high),
        "ratio_to_stock": float(np.median(ratios(mine, stock))) if is_read else None,
        "saving_share": float(of_stock - median) / (cross * outside) if is_read and outside else None,
    }
