"""Plots of a report, one figure each: read at a glance, on black and on white, on a phone."""

from collections.abc import Iterable, Sequence
from typing import Any

from pyharness import svg
from pyharness.rules import N_CTX
from pyharness.statistics import INCONCLUSIVE, INFERIOR, NON_INFERIOR
from pyharness.summary import Row
from pyharness.track import Track

# Okabe and Ito's colours for colour-blind readers, without black and yellow, then violet and grey: visible on
# black and on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#8A8A8A")
MARKERS = "os^DvPX<>*"
LOWEST_WER = 0.05  # percent; where 0 % is drawn on the logarithmic axis


def wer_against_positions(name: str, group: Sequence[Row]) -> str:
    """WER against positions read, one colour and marker per rule; filled markers are Non-inferior."""
    with svg.canvas(name, "Word error rate against positions read per step", height=4.8) as canvas:
        axes = canvas.figure.add_subplot()
        _draw_reference(axes, group)
        _draw_rules(axes, group)
        _scale_axes(axes, group)
        canvas.figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=11)
    return canvas.svg


def _draw_reference(axes: Any, group: Sequence[Row]) -> None:
    """Line at the WER of the full cache inside a band of +- margin."""
    label = "full cache ± margin"
    for margin, wer_full in dict.fromkeys((row.margin, row.wer_full) for row in group if row.wer_full):
        level = 100 * wer_full
        axes.axhspan(level * (1 - margin), level * (1 + margin), color="#888888", alpha=0.3, lw=0, label=label)
        axes.axhline(level, color=svg.INK, lw=1, ls="--")
        label = None


def _draw_rules(axes: Any, group: Sequence[Row]) -> None:
    """One series per rule; a thin line joins rows that differ in the budget only."""
    rules = list(dict.fromkeys(row.rule for row in group))
    for i, rule in enumerate(rules):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        rows = [row for row in group if row.rule == rule and row.wer is not None and row.positions_read]
        axes.plot([], [], color=colour, marker=marker, ls="", label=rule)
        for settings in dict.fromkeys((row.sink_fraction, row.sinks, row.tau) for row in rows):
            line = [row for row in rows if (row.sink_fraction, row.sinks, row.tau) == settings]
            line.sort(key=lambda row: row.positions_read)
            axes.plot(*zip(*map(_point, line), strict=True), color=colour, lw=1, alpha=0.5)
        for row in rows:
            face = colour if row.verdict == NON_INFERIOR or row.rule == "full" else "none"
            axes.plot(*_point(row), color=colour, marker=marker, ls="", markerfacecolor=face, ms=8, mew=1.5)


def _point(row: Row) -> tuple[float, float]:
    return row.positions_read, max(100 * row.wer, LOWEST_WER)


def _scale_axes(axes: Any, group: Sequence[Row]) -> None:
    """Logarithmic axes with plain numbers, at least a factor of four high."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    levels = [max(100 * wer, LOWEST_WER) for row in group for wer in (row.wer, row.wer_full) if wer is not None]
    reads = [row.positions_read for row in group if row.positions_read]
    axes.set_yscale("log")
    axes.set_ylim(min(levels, default=1) / 2, max(levels, default=1) * 2)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(reads, default=64) / 1.3, max([*reads, N_CTX]) * 1.15)
    axes.xaxis.set_major_locator(FixedLocator([16, 32, 64, 128, 256, 512, N_CTX]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("positions read per step (log)")
    axes.set_ylabel("WER (log)")
    axes.grid(color=svg.INK, alpha=0.15)


# --- one line per arm ---

_VERDICT_STYLES = {  # colour, marker, face: told apart without colours, too
    NON_INFERIOR: (svg.GOOD, "o", svg.GOOD),
    INCONCLUSIVE: (svg.OPEN, "o", "none"),
    INFERIOR: (svg.BAD, "x", svg.BAD),
}
LINE_HEIGHT = 0.21  # inches


def difference_against_margin(name: str, group: Sequence[Row]) -> str | None:
    """WER difference and its one-sided bound, from the margin, for each arm; None if no arm was compared."""
    rows = [
        row
        for row in group
        if None not in (row.difference, row.bound_upper, row.wer_full) and row.verdict in _VERDICT_STYLES
    ]
    if not rows:
        return None
    height = 1.5 + LINE_HEIGHT * len(rows)
    with svg.canvas(name, "WER difference with its bound against the margin, for each arm", height) as canvas:
        axes = canvas.figure.add_subplot()
        axes.axvline(0, color=svg.INK, lw=1.2, ls="--")
        for y, row in enumerate(rows):
            colour, marker, face = _VERDICT_STYLES[row.verdict]
            beyond = 100 * (row.difference - row.margin * row.wer_full)  # from the margin, as bound_upper is
            axes.plot([beyond, max(beyond, 100 * row.bound_upper)], [y, y], color=colour, lw=2)
            axes.plot(100 * row.bound_upper, y, color=colour, marker="|", ms=8, mew=2)
            axes.plot(beyond, y, color=colour, marker=marker, markerfacecolor=face, ms=6, mew=1.5)
        for verdict, (colour, marker, face) in _VERDICT_STYLES.items():
            axes.plot([], [], color=colour, marker=marker, markerfacecolor=face, ls="", label=verdict)
        _scale_differences(axes, rows)
        _label_arms(axes, rows)
        canvas.figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=11, handletextpad=0.1)
    return canvas.svg


def _scale_differences(axes: Any, rows: Sequence[Row]) -> None:
    """Points, linear up to 1 and logarithmic beyond: bounds reach from tenths to hundreds."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ends = [100 * value for row in rows for value in (row.bound_upper, row.difference - row.margin * row.wer_full)]
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(1.5 * min([*ends, -1]), 1.5 * max([*ends, 1]))
    axes.xaxis.set_major_locator(FixedLocator([-100, -10, -1, 0, 1, 10, 100]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0"))
    axes.set_xlabel("WER difference − margin (points)")


def reexecuted_share(name: str, group: Sequence[Row]) -> str | None:
    """Share of steps that were executed again, for each arm of the rules that do so; None if there is none."""
    rules = {row.rule for row in group if row.reexecuted_share}
    rows = [row for row in group if row.rule in rules and row.reexecuted_share is not None]
    if not rows:
        return None
    shares = [100 * row.reexecuted_share for row in rows]
    with svg.canvas(name, "Share of steps executed again, for each arm", 1.1 + 1.2 * LINE_HEIGHT * len(rows)) as canvas:
        axes = canvas.figure.add_subplot()
        axes.barh(range(len(rows)), shares, height=0.6, color=COLOURS[0])
        for y, share in enumerate(shares):
            axes.annotate(f"{share:.1f} %", (share, y), (4, 0), textcoords="offset points", va="center", fontsize=11)
        axes.set_xlim(0, 1.35 * max(shares))  # room for the figures behind the bars
        axes.set_xlabel("re-executed steps (%)")
        _label_arms(axes, rows)
    return canvas.svg


def _label_arms(axes: Any, rows: Sequence[Row]) -> None:
    """Arms from top to bottom; the rule is named where it begins."""
    labels = []
    for i, row in enumerate(rows):
        begins = i == 0 or rows[i - 1].rule != row.rule
        labels.append(" ".join(([row.rule] if begins else []) + _settings(row, rows)))
    name_lines(axes, labels)


def name_lines(axes: Any, labels: Sequence[str]) -> None:
    """From top to bottom, at 0, 1, ..."""
    axes.set_yticks(range(len(labels)), labels, fontsize=10.5)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="x", color=svg.INK, alpha=0.15)
    axes.set_axisbelow(True)


def _settings(row: Row, rows: Sequence[Row]) -> list[str]:
    """The budget, and what else tells the arms of a rule apart."""
    same_rule = [other for other in rows if other.rule == row.rule]
    texts = [] if row.budget is None else [f"{row.budget:g}"]
    for label, name in (("sinks", "sink_fraction"), ("from", "sinks"), ("tau", "tau")):
        value = getattr(row, name)
        if value is not None and len({getattr(other, name) for other in same_rule}) > 1:
            texts.append(f"{label} {value if isinstance(value, str) else format(value, 'g')}")
    return texts


# --- window track ---


def window_track(name: str, track: Track) -> str:
    """Centre, window and sinks of each run of the decoder: over all positions, and over the audio's."""
    with svg.canvas(name, f"Window track of clip {track.clip}", height=6.4) as canvas:
        everything, audio = canvas.figure.subplots(2, 1, sharex=True)
        for axes, top, title in (
            (everything, N_CTX, f"all {N_CTX} positions"),
            (audio, max(track.n_audio, 1), f"audio only: {track.n_audio} positions"),
        ):
            _draw_track(axes, track)
            axes.axhline(track.n_audio, color=svg.INK, lw=1, ls="--", label="end of the audio")
            axes.set_ylim(-0.02 * top, 1.02 * top)
            axes.set_title(title, fontsize=12, loc="left")
            axes.set_ylabel("position")
        audio.set_xlim(-0.7, max(len(track.runs), 1) - 0.3)
        audio.xaxis.get_major_locator().set_params(integer=True)
        audio.set_xlabel("run of the decoder")
        handles, labels = everything.get_legend_handles_labels()
        canvas.figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=11)
    return canvas.svg


def _draw_track(axes: Any, track: Track) -> None:
    reads_all = [i for i, run in enumerate(track.runs) if run.kind != "reduced"]
    reduced = [i for i, run in enumerate(track.runs) if run.kind == "reduced"]
    windows = [track.runs[i].window for i in reduced]
    axes.bar(reads_all, N_CTX, width=0.9, color="#888888", alpha=0.25, lw=0, label="reads everything")
    bottoms, heights = [first for first, _ in windows], [n for _, n in windows]
    axes.bar(reduced, heights, bottom=bottoms, width=0.9, color=COLOURS[5], alpha=0.55, lw=0, label="window")
    lines = list(_sink_lines(track))
    axes.hlines(
        *([line[i] for line in lines] for i in range(3)), color=COLOURS[4], lw=1.5, label="sink", capstyle="butt"
    )
    centres = [(i, run.centre) for i, run in enumerate(track.runs) if run.centre >= 0]
    axes.plot(
        *zip(*centres, strict=True) if centres else ([], []),
        color=svg.INK,
        marker="o",
        ms=4 if len(track.runs) < 30 else 2,
        lw=1,
        label="centre",
    )


def _sink_lines(track: Track) -> Iterable[tuple[int, float, float]]:
    """(position, from, to) of each stretch of runs that reads a sink."""
    begun: dict[int, int] = {}
    for i, sinks in enumerate([*(set(run.sinks) for run in track.runs), set()]):
        for position in sorted(begun.keys() - sinks):
            yield position, begun.pop(position) - 0.45, i - 0.55
        for position in sinks - begun.keys():
            begun[position] = i
