"""``bench step``: the time of a decoder step, stock against our build without a view, through our kernel, and reduced.

All arms are fed the same tokens behind the same encoded clip (stepper.py): those that stock finds most probable one
after the other, if it may not end the text. So the window moves as it does when the clip is transcribed, and models of
random weights can be timed alike. A *pass* is a prompt, which is not timed, and a given number of steps, which are.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pyharness import audio, models, rules
from pyharness.bench.environment import build_names, environment
from pyharness.bench.libraries import STOCK, Arm, Library, both
from pyharness.bench.paired import interleave, median_with_interval, ratios, times
from pyharness.bench.stepper import Stepper
from pyharness.rules import Rule

SYNTHETIC = "synthetic"  # mode, in rows
MAX_STEPS = 220  # that upstream allows in a window
NODE_PASSES = 3  # that find where the time goes


@dataclass(frozen=True)
class Settings:
    model: str
    clip: Path
    language: str = "en"
    budgets: tuple[int, ...] = (384, 192, 96)
    threads: tuple[int, ...] = (1, 2)
    steps: int = 24  # of each pass, 1..MAX_STEPS
    rounds: int = 30  # passes of each arm

    @property
    def arms(self) -> tuple[Arm, ...]:
        reduced = (rules.PadsinkTrack(budget=budget) for budget in self.budgets)
        return STOCK, *(Arm(rule) for rule in (rules.Off(), rules.Full(), *reduced))


@dataclass(frozen=True)
class Pass:
    """One pass. Everything but the last two: mean of its steps, second runs of re-executed ones included."""

    ms: float
    positions: float  # read
    bytes_read: float  # of the cross-attention cache, all layers
    rows_copied: float  # into the ring buffers, all layers; what the prompt copies is not in it
    tracking_ms: float  # spent on the view itself, outside of the attention
    full: int  # steps that read everything from the start, though they need not
    reexecuted: int  # steps that read the view, then everything


# --- in a library's process -------------------------------------------------------------------------------------------

_stepper: Stepper  # the process's model, with the clip encoded
_prompt: list[int]


def load(model: Path, clip: Path, language: str, threads: int) -> list[int]:
    """The prompt of every pass over the clip."""
    global _stepper, _prompt
    _stepper = Stepper(model)
    _prompt = _stepper.prompt(language)
    _stepper.encode(audio.load(clip), threads)
    return _prompt


def choose(n: int, threads: int) -> list[int]:
    return _stepper.choose(_prompt, n, threads)


def follow(rule: Rule | None, tokens: list[int], threads: int) -> list[int]:
    """Not timed: it warms up."""
    if rule:
        _stepper.set_view(rule)
    return _stepper.follow(_prompt, tokens, threads)


def time_pass(rule: Rule | None, tokens: list[int], threads: int) -> Pass:
    _begin(rule, threads)
    _stepper.reset()
    for i, token in enumerate(tokens):
        _stepper.decode([token], len(_prompt) + i, threads)
    return _measured(rule, len(tokens))


def time_nodes(rule: Rule, tokens: list[int], threads: int) -> dict[str, float]:
    """Share of a step's time by what its nodes do. A pass apart: computed node by node, steps are slower."""
    _begin(rule, threads)
    _stepper.reset()
    _stepper.time_nodes(True)
    for i, token in enumerate(tokens):
        _stepper.decode([token], len(_prompt) + i, threads)
    _stepper.time_nodes(False)
    times = _stepper.times()
    ns = 1e6 * _stepper.run_ms() * len(tokens)
    return {
        "weights": times.t_weights_ns / ns,
        "cross": (times.t_cross_ns - times.t_signals_ns) / ns,
        "signals": times.t_signals_ns / ns,
        "text": times.t_text_ns / ns,
    }


def _begin(rule: Rule | None, threads: int) -> None:
    if rule:
        _stepper.set_view(rule)
    _stepper.decode(_prompt, 0, threads)


def _measured(rule: Rule | None, n: int) -> Pass:
    """Upstream's attention, which has no counters, reads all positions."""
    if rule is None or rule == rules.Off():
        n_bytes = _stepper.n_ctx * _stepper.n_layer * _stepper.row_size
        return Pass(_stepper.run_ms(), _stepper.n_ctx, n_bytes, 0, 0, 0, 0)
    counters = _stepper.counters()
    return Pass(
        ms=_stepper.run_ms() * (counters.n_steps + counters.n_reexec) / n,
        positions=counters.n_rows_read / _stepper.n_layer / n,
        bytes_read=counters.n_bytes_read / n,
        rows_copied=counters.n_rows_copied / n,
        tracking_ms=counters.t_tracking_us / 1e3 / n,
        full=0 if rule == rules.Full() else counters.n_full,
        reexecuted=counters.n_reexec,
    )


# --- in the parent ----------------------------------------------------------------------------------------------------


def run(settings: Settings, advance: Callable[[int], None]) -> dict:
    """{"env": ..., "rows": [...]}; ``advance(n)`` reports n passes done, of ``len(arms) * rounds * len(threads)``."""
    model = models.resolve(settings.model)
    with both() as libraries:
        env = environment("step", libraries, settings.threads)
        for library in libraries.values():
            library.call(load, model, settings.clip, settings.language, max(settings.threads))
        env |= {"clip": str(settings.clip), "steps": settings.steps, "rounds": settings.rounds}
        rows = [
            row
            for threads in settings.threads
            for row in _rows(settings, libraries, threads, build_names(env), advance)
        ]
    return {"env": env, "rows": rows}


def chosen(
    libraries: dict[str, Library], arms: tuple[Arm, ...], n: int, threads: int
) -> tuple[list[int], dict[Arm, float]]:
    """The n tokens that all arms are fed, and the share of steps in which stock's best token is the arm's, too."""
    *tokens, last = libraries["stock"].call(choose, n + 1, threads)
    wanted = [*tokens[1:], last]
    same = {}
    for arm in arms:
        best = libraries[arm.library].call(follow, arm.rule, tokens, threads)
        same[arm] = float(np.mean(np.equal(best, wanted)))
    return tokens, same


def _rows(
    settings: Settings, libraries: dict[str, Library], threads: int, builds: dict[str, str], advance: Callable
) -> list[dict]:
    """One row per arm."""
    tokens, same = chosen(libraries, settings.arms, settings.steps, threads)

    def one_pass(arm: Arm) -> Pass:
        result = libraries[arm.library].call(time_pass, arm.rule, tokens, threads)
        advance(1)
        return result

    def one_node_pass(arm: Arm) -> dict[str, float]:
        return libraries[arm.library].call(time_nodes, arm.rule, tokens, threads)

    passes = interleave(settings.arms, settings.rounds, one_pass)
    nodes = interleave([arm for arm in settings.arms if arm.rule], NODE_PASSES, one_node_pass)
    stock_ms = [one.ms for one in passes[STOCK]]
    return [
        {
            "model": settings.model,
            "threads": threads,
            "mode": SYNTHETIC,
            **arm.columns(),
            **_columns(passes[arm], stock_ms),
            **_where(passes[arm], nodes.get(arm)),
            "same_tokens": same[arm],
            "steps": settings.steps,
            "n": settings.rounds,
            "build": builds[arm.library],
        }
        for arm in settings.arms
    ]


def _where(passes: list[Pass], nodes: list[dict[str, float]] | None) -> dict:
    """Where the time of a step goes. Stock cannot tell, but does what our build does without a view."""
    if nodes is None:
        return dict.fromkeys(("weights_ms", "cross_ms", "text_ms", "tracking_ms", "tracking_share", "rest_ms"))
    ms = float(np.median([one.ms for one in passes]))
    share = {key: float(np.median([one[key] for one in nodes])) for key in nodes[0]}
    share["tracking"] = share.pop("signals") + float(np.median([one.tracking_ms / one.ms for one in passes]))
    parts = {f"{key}_ms": ms * part for key, part in share.items()}
    return {**parts, "tracking_share": share["tracking"], "rest_ms": ms - sum(parts.values())}


def _columns(passes: list[Pass], stock_ms: list[float]) -> dict:
    """All passes of an arm read the same: only their times differ."""
    ms = [one.ms for one in passes]
    to_stock = median_with_interval(ratios(ms, stock_ms))
    return {
        **asdict(passes[0]),
        **times(ms),
        "ratio_to_stock": to_stock.median,
        "ratio_low": to_stock.low,
        "ratio_high": to_stock.high,
    }
