"""Charts that the figures of benches are made of: bars in parts, ratios with their intervals, lines, and points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyharness import svg
from pyharness.plots import COLOURS, LINE_HEIGHT, MARKERS, name_lines


def stacked_bars(
    name: str,
    description: str,
    labels: Sequence[str],
    parts: Mapping[str, Sequence[float | None]],
    unit: str,
    found: tuple[str, Sequence[float]] | None = None,
) -> str:
    """One bar for each label, of all parts that it has, with their sum as a figure. What was ``found`` by something
    (its name, and a figure for each label), which the bars are compared with, gets marks, and the figures are these."""
    with svg.canvas(name, description, height=_height(labels)) as canvas:
        axes = canvas.figure.add_subplot()
        sums = [0.0] * len(labels)
        for (part, values), colour in zip(parts.items(), COLOURS, strict=False):
            lengths = [value or 0 for value in values]
            axes.barh(range(len(labels)), lengths, left=sums, height=0.6, color=colour, label=part)
            sums = [before + length for before, length in zip(sums, lengths, strict=True)]
        if found:
            axes.plot(found[1], range(len(labels)), color=svg.INK, marker="|", ls="", ms=13, mew=2, label=found[0])
        _write_figures(axes, sums, found[1] if found else sums)
        axes.set_xlabel(unit)
        name_lines(axes, labels)
        if len(parts) > 1:
            _legend(canvas, ncols=3)
    return canvas.svg


@dataclass(frozen=True)
class Ratio:
    """A value with its interval, which one that was measured once has not."""

    label: str
    value: float
    low: float | None
    high: float | None


def ratios(name: str, description: str, found: Sequence[Ratio], axis: str) -> str:
    """One line for each, against a line at 1."""
    with svg.canvas(name, description, height=_height(found)) as canvas:
        axes = canvas.figure.add_subplot()
        axes.axvline(1, color=svg.INK, lw=1.2, ls="--")
        for y, one in enumerate(found):
            if one.low is not None:
                axes.plot([one.low, one.high], [y, y], color=COLOURS[0], lw=2.5)
            axes.plot(one.value, y, color=COLOURS[0], marker="o", ms=6)
        axes.set_xlabel(axis)
        name_lines(axes, [one.label for one in found])
    return canvas.svg


@dataclass(frozen=True)
class Line:
    label: str
    points: Sequence[tuple[float, float]]
    look: int  # lines of one look have the same colour and marker
    intervals: Sequence[tuple[float, float]] = ()  # of the points' y, if they have any
    dashed: bool = False


def lines(name: str, description: str, found: Sequence[Line], x_axis: str, y_axis: str) -> str:
    """Over numbers that double; the y axis begins at 0."""
    with svg.canvas(name, description, height=4.2) as canvas:
        axes = canvas.figure.add_subplot()
        for line in found:
            style = {"color": _colour(line.look), "marker": _marker(line.look), "ls": "--" if line.dashed else "-"}
            xs, ys = zip(*line.points, strict=True)
            axes.plot(xs, ys, lw=1.5, ms=6, label=line.label, markerfacecolor="none" if line.dashed else None, **style)
            if line.intervals:
                axes.vlines(xs, *zip(*line.intervals, strict=True), color=style["color"], lw=2)
        _number_axis(axes, {x for line in found for x, _ in line.points})
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x_axis)
        axes.set_ylabel(y_axis)
        axes.grid(color=svg.INK, alpha=0.15)
        _legend(canvas, ncols=2)
    return canvas.svg


@dataclass(frozen=True)
class Point:
    label: str
    x: float
    y: float
    colour: int  # index: what points have in common that share it
    marker: int


def points(name: str, description: str, found: Sequence[Point], x_axis: str, y_axis: str) -> str:
    """Both axes begin at 0. Labels stand below: points may lie upon each other."""
    with svg.canvas(name, description, height=3.6 + LINE_HEIGHT * len(found)) as canvas:
        axes = canvas.figure.add_subplot()
        for one in found:
            style = {"color": _colour(one.colour), "marker": _marker(one.marker), "markerfacecolor": "none"}
            axes.plot(one.x, one.y, ls="", ms=9, mew=2, label=one.label, **style)
        axes.set_xlim(0, 1.1 * max(one.x for one in found) or 1)
        axes.set_ylim(0, 1.2 * max(one.y for one in found) or 1)
        axes.set_xlabel(x_axis)
        axes.set_ylabel(y_axis)
        axes.grid(color=svg.INK, alpha=0.15)
        _legend(canvas, ncols=1)
    return canvas.svg


def _write_figures(axes: Any, bars: Sequence[float], figures: Sequence[float]) -> None:
    """Behind the bars, or behind the marks of what is longer."""
    ends = [max(both) for both in zip(bars, figures, strict=True)]
    for y, (figure, end) in enumerate(zip(figures, ends, strict=True)):
        axes.annotate(_short(figure), (end, y), (5, 0), textcoords="offset points", va="center", fontsize=11)
    axes.set_xlim(0, 1.35 * max(ends) or 1)  # room for them


def _short(value: float) -> str:
    """Three digits, or all that are before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _height(labels: Sequence) -> float:
    return 1.5 + 1.2 * LINE_HEIGHT * len(labels)


def _number_axis(axes: Any, numbers: set[float]) -> None:
    """Each of the numbers by its name, as far from its half as from its double."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(numbers), [f"{number:g}" for number in sorted(numbers)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(numbers) / 1.2, max(numbers) * 1.2)


def _legend(canvas: svg.Canvas, ncols: int) -> None:
    canvas.figure.legend(loc="outside lower center", ncols=ncols, frameon=False, fontsize=11)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _marker(i: int) -> str:
    return MARKERS[i % len(MARKERS)]
