"""Tables and plots of a finished run, as one HTML page and in the terminal. Reads the run directory only.

``summary.json`` holds ``{"rows": [...]}``, one object per compared configuration (fields of `Row`).
``run.json`` may hold anything; these keys fill the header of the page, all others stay in its raw view:
``models`` [{name, sha256}], ``speech`` [{name, language, n, synthetic}], ``cpu``, ``threads``, ``date``,
``build``, ``command`` (text or list of words), ``settings`` {name: value}.
"""

import html
import io
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pyharness.errors import HarnessError
from pyharness.rundir import write_text
from pyharness.statistics import INCONCLUSIVE, INFERIOR, MARGIN, NON_INFERIOR

NOTHING = "–"
POSITIONS = 1500  # what a full step reads


@dataclass(frozen=True)
class Row:
    """One line of a table. None: does not apply or was not measured. Rates are fractions and may exceed 1."""

    model: str
    language: str
    rule: str
    n: int  # clips
    budget: float | None  # positions a reduced step may read
    sink_fraction: float | None
    tau: float | None
    wer: float | None
    wer_full: float | None
    difference: float | None  # wer - wer_full
    bound_upper: float | None  # of difference - margin; below 0: Non-inferior
    verdict: str | None
    positions_read: float | None  # mean per run through the view
    reexecuted_share: float | None  # of reduced steps
    runaway_clips: int | None
    step_ratio: float | None  # decoder step time / that of the full cache
    step_ratio_low: float | None
    step_ratio_high: float | None
    threads: int | None
    build: str | None
    margin: float = MARGIN  # relative to wer_full
    positions_read_all: float | None = None  # mean per decoder step, prompts, full and re-executed steps included
    n_clusters: int | None = None  # of the bootstrap
    clusters: str | None = None  # what they are: "speaker" or "clip"

    @classmethod
    def from_json(cls, entry: Any) -> "Row":
        """Raises ValueError that names the missing or ill-typed field; unknown fields are ignored."""
        if not isinstance(entry, Mapping):
            raise ValueError("is not an object")
        values = {}
        for field in fields(cls):
            if field.name in entry:
                values[field.name] = _typed(field.name, entry[field.name], field.type)
            elif field.default is MISSING:
                raise ValueError(f"has no {field.name!r}")
        return cls(**values)


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run directory from its run.json and summary.json; return its path.

    Raises HarnessError naming the file that is missing or broken.
    """
    run_dir = Path(run_dir)
    run = _read_object(run_dir / "run.json")
    rows = _read_rows(run_dir / "summary.json")
    page = _PAGE.format(
        title=html.escape(f"Run {run_dir.resolve().name}"),
        style=_STYLE,
        header=_facts_html(_run_facts(run)),
        groups="\n".join(_group_html(i, group) for i, group in enumerate(_groups(rows))),
        meanings=_facts_html({name: [meaning] for name, meaning in LEGEND.items()}),
        run=html.escape(json.dumps(run, indent=2, ensure_ascii=False)),
    )
    path = run_dir / "report.html"
    write_text(path, page)
    return path


def print_tables(rows: Iterable[Mapping[str, Any] | Row], console: Console) -> None:
    """Print one table per model and language. Lines longer than the console run on: no figure is cut."""
    parsed = [row if isinstance(row, Row) else Row.from_json(row) for row in rows]
    for group in _groups(parsed):
        table = Table(
            title=Text(_group_name(group)),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=0,
        )
        for column in COLUMNS:
            table.add_column(column.header, justify="right" if column.numeric else "left", no_wrap=True)
        for row in group:
            cells = [Text(column.show(row)) for column in COLUMNS]
            cells[VERDICT].stylize(_VERDICT_COLOURS.get(row.verdict or "", "dim"))
            table.add_row(*cells)
        console.print(_FullWidth(table), crop=False)
        console.print(Text(_caption(group), style="dim"))


def read_rows(run_dir: Path) -> list[Row]:
    """Rows of a finished run's summary. Raises HarnessError naming a file that is missing or broken."""
    return _read_rows(run_dir / "summary.json")


def markdown(rows: Iterable[Row]) -> str:
    """One table for each model and language, for a README."""
    blocks = []
    for group in _groups(rows):
        lines = [[column.header for column in COLUMNS], ["---:" if column.numeric else "---" for column in COLUMNS]]
        lines += [[column.show(row) for column in COLUMNS] for row in group]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        blocks.append(f"**{_group_name(group)}** ({_caption(group)})\n\n{table}\n")
    return "\n".join(blocks)


class _FullWidth:
    """Renders a table as wide as its content, whatever the width of the console."""

    def __init__(self, table: Table):
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(width=10_000)
        width = Measurement.get(console, unlimited, self.table).maximum
        yield from console.render(self.table, options.update(width=width))


# --- numbers as text ---


def percent(fraction: float | None) -> str:
    """0.0645 -> "6.45 %", 6.45 -> "645 %"."""
    if fraction is None:
        return NOTHING
    value = 100 * fraction
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} %"


def points(fraction: float | None) -> str:
    """Difference of two rates in percentage points: 0.0123 -> "+1.23", -0.004 -> "−0.40", 0 -> "0.00"."""
    if fraction is None:
        return NOTHING
    text = f"{100 * fraction:+.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")


def number(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def ratio_with_spread(ratio: float, low: float, high: float) -> str:
    """ "×0.62 (0.60–0.66)"."""
    return f"×{ratio:.2f} ({low:.2f}–{high:.2f})"


def step_time(row: Row) -> str:
    """Ratio with spread, or why there is none: no speed without error rate, n, spread, threads and build."""
    if row.step_ratio is None:
        return "not measured"
    if None in (row.wer, row.step_ratio_low, row.step_ratio_high, row.threads, row.build):
        return "not shown (incomplete)"
    return ratio_with_spread(row.step_ratio, row.step_ratio_low, row.step_ratio_high)


def _verdict_text(row: Row) -> str:
    return row.verdict or ("reference" if row.rule == "full" else NOTHING)


# --- columns, the same on paper and in the terminal ---


@dataclass(frozen=True)
class Column:
    header: str
    show: Callable[[Row], str]
    numeric: bool = True


COLUMNS = (
    Column("rule", lambda row: row.rule, numeric=False),
    Column("budget", lambda row: number(row.budget)),
    Column("sinks", lambda row: number(row.sink_fraction, 2)),
    Column("tau", lambda row: number(row.tau, 2)),
    Column("read/step", lambda row: number(row.positions_read)),
    Column("all steps", lambda row: number(row.positions_read_all)),
    Column("re-exec.", lambda row: percent(row.reexecuted_share)),
    Column("WER", lambda row: percent(row.wer)),
    Column("diff.", lambda row: points(row.difference)),
    Column("bound", lambda row: points(row.bound_upper)),
    Column("verdict", _verdict_text, numeric=False),
    Column("runaway", lambda row: number(row.runaway_clips)),
    Column("step time", step_time),
    Column("n", lambda row: number(row.n)),
    Column("threads", lambda row: number(row.threads)),
    Column("build", lambda row: row.build or NOTHING, numeric=False),
)
VERDICT = [column.header for column in COLUMNS].index("verdict")

LEGEND = {
    "sinks": "sink fraction: share of the budget given to sinks",
    "tau": "confidence below which a reduced step is re-executed over the full cache",
    "read/step": f"mean positions that a run through the view reads (full cache: {POSITIONS})",
    "all steps": "mean positions that a step reads, everything included: prompts, full and re-executed steps",
    "re-exec.": "share of steps that were executed again over the full cache",
    "diff.": "WER minus WER of the full cache on the same clips, percentage points",
    "bound": "one-sided upper bound of difference minus margin, points; below 0 is Non-inferior",
    "runaway": "clips whose text is longer than speech can be, or was cut by the limit of tokens",
    "step time": "decoder step time relative to the full cache (spread in brackets)",
}

_VERDICT_COLOURS = {NON_INFERIOR: "green", INFERIOR: "red", INCONCLUSIVE: "yellow"}


def _caption(group: Sequence[Row]) -> str:
    """ "n 100 in 12 clusters by speaker · threads 1 · build abc · margin 0.2 × WER of full (2.20 %) = 0.44 points"."""

    def values(name: str) -> str:
        return ", ".join(dict.fromkeys(str(v) for row in group if (v := getattr(row, name)) is not None)) or NOTHING

    margins = dict.fromkeys((row.margin, row.wer_full) for row in group if row.wer_full is not None)
    deltas = (f"{m:g} × WER of full ({percent(full)}) = {100 * m * full:.2f} points" for m, full in margins)
    return (
        f"n {values('n')}{_clusters(group)} · threads {values('threads')} · build {values('build')}"
        f" · margin {'; '.join(deltas) or NOTHING}"
    )


def _clusters(group: Sequence[Row]) -> str:
    """How the bootstrap grouped the clips, if it did."""
    found = dict.fromkeys((row.n_clusters, row.clusters) for row in group if row.clusters and row.clusters != "clip")
    return "".join(f" in {n} clusters by {what}" for n, what in found)


# --- reading ---


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}; a report needs a finished run") from error
    except ValueError as error:
        raise HarnessError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise HarnessError(f"{path}: must hold one JSON object")
    return content


def _read_rows(path: Path) -> list[Row]:
    entries = _read_object(path).get("rows")
    if not isinstance(entries, list) or not entries:
        raise HarnessError(f"{path}: 'rows' must be a list with at least one row")
    rows = []
    for i, entry in enumerate(entries):
        try:
            rows.append(Row.from_json(entry))
        except ValueError as error:
            raise HarnessError(f"{path}: row {i} {error}") from error
    return rows


def _typed(name: str, value: Any, annotation: Any) -> Any:
    """`value` if it fits the annotation of a Row field; numbers that are not finite become None."""
    allowed = get_args(annotation) or (annotation,)
    numeric = float in allowed or int in allowed
    if numeric and isinstance(value, float) and not math.isfinite(value):
        value = None
    fits = type(value) in allowed or (numeric and type(value) in (int, float))
    if not fits:
        raise ValueError(f"has {name} = {value!r}, which is not a {'number' if numeric else 'text'}")
    return value


def _groups(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows by model and language, in order of first appearance."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.language), []).append(row)
    return list(groups.values())


def _group_name(group: Sequence[Row]) -> str:
    return f"{group[0].model} · {group[0].language}"


# --- page ---


def _run_facts(run: Mapping[str, Any]) -> dict[str, list[str]]:
    """What was run: lines of text under each heading; what run.json does not tell is said to be missing."""
    facts = {
        "Models": [_model_text(entry) for entry in _entries(run.get("models"))],
        "Speech": [_speech_text(entry) for entry in _entries(run.get("speech"))],
    }
    for name in ("CPU", "Threads", "Build", "Date", "Settings"):
        facts[name] = [_plain(run[name.lower()])] if name.lower() in run else []
    facts["Command"] = [_command_text(run["command"])] if "command" in run else []
    return facts


def _facts_html(facts: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{'<br>'.join(map(html.escape, lines)) or 'not recorded'}</dd>"
        for name, lines in facts.items()
    )


def _entries(value: Any) -> list[dict[str, Any]]:
    """A list of named objects from [{name, ...}], {name: {...}}, {name: sha256}, ["name"] or "name"."""
    if isinstance(value, Mapping):
        if "name" in value:
            return [dict(value)]
        return [
            {"name": name, **(content if isinstance(content, Mapping) else {"sha256": content})}
            for name, content in value.items()
        ]
    if isinstance(value, list):
        return [dict(item) if isinstance(item, Mapping) else {"name": item} for item in value]
    return [] if value is None else [{"name": value}]


def _model_text(entry: Mapping[str, Any]) -> str:
    sha256 = entry.get("sha256")
    return f"{entry.get('name', '?')} · sha256 {str(sha256)[:12] if sha256 else 'not recorded'}"


def _speech_text(entry: Mapping[str, Any]) -> str:
    synthetic = entry.get("synthetic")
    origin = "synthetic" if synthetic is True else "not synthetic" if synthetic is False else "origin not recorded"
    language = f" · {entry['language']}" if "language" in entry else ""
    return f"{entry.get('name', '?')}{language} · n {entry.get('n', 'not recorded')} · {origin}"


def _command_text(command: Any) -> str:
    return shlex.join(map(str, command)) if isinstance(command, list) else str(command)


def _plain(value: Any) -> str:
    """One line for any JSON value."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {_plain(content)}" for name, content in value.items())
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return str(value)


def _group_html(index: int, group: Sequence[Row]) -> str:
    name = html.escape(_group_name(group))
    caption = html.escape(_caption(group))
    return _GROUP.format(name=name, plot=_plot_svg(index, group), table=_table_html(group), caption=caption)


def _table_html(group: Sequence[Row]) -> str:
    head = "".join(f'<th scope="col"{_number_class(c)}{_tooltip(c)}>{html.escape(c.header)}</th>' for c in COLUMNS)
    body = "\n".join(f"<tr>{''.join(_cell_html(column, row) for column in COLUMNS)}</tr>" for row in group)
    return f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"


def _cell_html(column: Column, row: Row) -> str:
    text = html.escape(column.show(row))
    if column.header == "rule":
        return f'<th scope="row">{text}</th>'
    if column.header == "verdict" and row.verdict in _VERDICT_COLOURS:
        return f'<td><span class="verdict {row.verdict.lower()}">{text}</span></td>'
    return f"<td{_number_class(column)}>{text}</td>"


def _number_class(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


def _tooltip(column: Column) -> str:
    meaning = LEGEND.get(column.header)
    return f' title="{html.escape(meaning)}"' if meaning else ""


# --- plot ---

# Okabe and Ito's colours for colour-blind readers, without black and yellow, then violet and grey: visible on
# black and on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#8A8A8A")
_MARKERS = "os^DvPX<>*"
_INK = "#010203"  # stands for the page's text colour until the SVG is embedded
_LOWEST_WER = 0.05  # percent; where 0 % is drawn on the logarithmic axis


def _plot_svg(index: int, group: Sequence[Row]) -> str:
    """WER against positions read, one colour and marker per rule; filled markers are Non-inferior."""
    import matplotlib  # here, because it takes longer to load than everything else in the harness
    from matplotlib.figure import Figure

    options = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": f"plot-{index}",
        "text.parse_math": False,
        "font.family": ["DejaVu Sans"],
        "font.size": 12,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    }
    with matplotlib.rc_context(options):
        figure = Figure(figsize=(5.2, 4.8), layout="constrained")
        axes = figure.add_subplot()
        _draw_reference(axes, group)
        _draw_rules(axes, group)
        _scale_axes(axes, group)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=11)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _embeddable(buffer.getvalue(), index)


def _draw_reference(axes: Any, group: Sequence[Row]) -> None:
    """Line at the WER of the full cache inside a band of +- margin."""
    label = "full cache ± margin"
    for margin, wer_full in dict.fromkeys((row.margin, row.wer_full) for row in group if row.wer_full):
        level = 100 * wer_full
        axes.axhspan(level * (1 - margin), level * (1 + margin), color="#888888", alpha=0.3, lw=0, label=label)
        axes.axhline(level, color=_INK, lw=1, ls="--")
        label = None


def _draw_rules(axes: Any, group: Sequence[Row]) -> None:
    """One series per rule; a thin line joins rows that differ in the budget only."""
    rules = list(dict.fromkeys(row.rule for row in group))
    for i, rule in enumerate(rules):
        colour, marker = _COLOURS[i % len(_COLOURS)], _MARKERS[i % len(_MARKERS)]
        rows = [row for row in group if row.rule == rule and row.wer is not None and row.positions_read]
        axes.plot([], [], color=colour, marker=marker, ls="", label=rule)
        for settings in dict.fromkeys((row.sink_fraction, row.tau) for row in rows):
            line = [row for row in rows if (row.sink_fraction, row.tau) == settings]
            line.sort(key=lambda row: row.positions_read)
            axes.plot(*zip(*map(_point, line), strict=True), color=colour, lw=1, alpha=0.5)
        for row in rows:
            face = colour if row.verdict == NON_INFERIOR or row.rule == "full" else "none"
            axes.plot(*_point(row), color=colour, marker=marker, ls="", markerfacecolor=face, ms=8, mew=1.5)


def _point(row: Row) -> tuple[float, float]:
    return row.positions_read, max(100 * row.wer, _LOWEST_WER)


def _scale_axes(axes: Any, group: Sequence[Row]) -> None:
    """Logarithmic axes with plain numbers, at least a factor of four high."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    levels = [max(100 * wer, _LOWEST_WER) for row in group for wer in (row.wer, row.wer_full) if wer is not None]
    reads = [row.positions_read for row in group if row.positions_read]
    axes.set_yscale("log")
    axes.set_ylim(min(levels, default=1) / 2, max(levels, default=1) * 2)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(reads, default=64) / 1.3, max([*reads, POSITIONS]) * 1.15)
    axes.xaxis.set_major_locator(FixedLocator([16, 32, 64, 128, 256, 512, POSITIONS]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("positions read per step (log)")
    axes.set_ylabel("WER (log)")
    axes.grid(color=_INK, alpha=0.15)


def _embeddable(svg: str, index: int) -> str:
    """The <svg> element alone, scaled by the page, in the page's text colour, with ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", svg)
    svg = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>plot-{index}-", svg)
    return svg.replace(_INK, "currentColor").replace("<svg", '<svg role="img"', 1)


# --- templates ---

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<dl class="facts">
{header}
</dl>
{groups}
<details><summary>What the columns mean</summary>
<dl class="facts">
{meanings}
</dl>
</details>
<details><summary>run.json</summary><pre tabindex="0">{run}</pre></details>
</main>
</body>
</html>
"""

_GROUP = """<section>
<h2>{name}</h2>
<p>Filled markers: Non-inferior, or the full cache itself. Hollow markers: Inferior or Inconclusive. Band: WER
of the full cache ± the margin. A WER of 0 % is drawn at 0.05 %.</p>
<div class="plot">{plot}</div>
<div class="scroll" role="region" aria-label="Results {name}" tabindex="0"><table>
{table}
</table></div>
<p class="caption">{caption}</p>
</section>"""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #f3f4f6; --line: #d0d5dc;
        --quiet: #57606a; --good: #11632c; --bad: #a40e26; --open: #7a4b00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #14171b; --soft: #1f242a; --line: #3a424c;
          --quiet: #a4adb8; --good: #6fdc8c; --bad: #ff8f9c; --open: #f0bf5a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 84rem; margin: 0 auto; padding: 1rem; }
h1, h2, dd, summary { overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; margin: 1rem 0; }
.facts dt { color: var(--quiet); }
.facts dd { margin: 0; }
.plot { max-width: 36rem; }
.plot svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8125rem; white-space: nowrap; }
th, td { padding: .3rem .45rem; border-bottom: 1px solid var(--line); text-align: left; }
thead th { background: var(--soft); }
tbody th { font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { font-weight: 600; }
.non-inferior { color: var(--good); }
.inferior { color: var(--bad); }
.inconclusive { color: var(--open); }
.caption { color: var(--quiet); font-size: .875rem; overflow-wrap: anywhere; }
details { margin: 1.5rem 0; }
pre { background: var(--soft); padding: 1rem; overflow-x: auto; font-size: .8125rem; }
"""
