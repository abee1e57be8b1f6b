"""Tables and plots of a finished run, as one HTML page and in the terminal. Reads the run directory only.

``summary.json`` holds ``{"rows": [...]}``, one object per compared configuration (fields of `Row`).
``run.json`` may hold anything; these keys fill the header of the page, all others stay in its raw view:
``models`` [{name, sha256}], ``speech`` [{name, language, n, synthetic}], ``cpu``, ``threads``, ``date``,
``build``, ``command`` (text or list of words), ``settings`` {name: value}.
``utterances.jsonl`` may hold window tracks (`Track`).
"""

import html
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pyharness import plots
from pyharness.rules import N_CTX
from pyharness.rundir import json_text, write_text
from pyharness.statistics import INCONCLUSIVE, INFERIOR, NON_INFERIOR
from pyharness.summary import Row, by_part, group_name, read_object, read_rows
from pyharness.track import Track, read_tracks

NOTHING = "–"


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run directory from its run.json and summary.json; return its path.

    Raises HarnessError naming the file that is missing or broken.
    """
    run_dir = Path(run_dir)
    run = read_object(run_dir / "run.json")
    rows, tracks = read_rows(run_dir), read_tracks(run_dir)
    page = _PAGE.format(
        title=html.escape(f"Run {run_dir.resolve().name}"),
        style=_STYLE,
        header=_facts_html(_run_facts(run)),
        groups="\n".join(_group_html(i, group, tracks) for i, group in enumerate(by_part(rows))),
        meanings=_facts_html({name: [meaning] for name, meaning in LEGEND.items()}),
        run=html.escape(json_text(run)),
    )
    path = run_dir / "report.html"
    write_text(path, page)
    return path


def print_tables(
    rows: Iterable[Mapping[str, Any] | Row], console: Console, columns: Sequence["Column"] | None = None
) -> None:
    """Print one table per model and speech set. Lines longer than the console run on: no figure is cut."""
    columns = columns or COLUMNS
    parsed = [row if isinstance(row, Row) else Row.from_json(row) for row in rows]
    for group in by_part(parsed):
        lines = [[_cell_text(column, row) for column in columns] for row in group]
        print_table(group_name(group), columns, lines, console)
        console.print(Text(_caption(group), style="dim"))


def _cell_text(column: "Column", row: Row) -> Text:
    style = _VERDICT_COLOURS.get(row.verdict or "", "dim") if column.header == "verdict" else ""
    return Text(column.show(row), style=style)


def print_table(title: str, columns: Iterable["Column"], lines: Iterable[Iterable[Text]], console: Console) -> None:
    """One table, as wide as its content."""
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        table.add_column(column.header, justify="right" if column.numeric else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console.print(_FullWidth(table), crop=False)


def markdown(rows: Iterable[Row], columns: Sequence["Column"] | None = None) -> str:
    """One table for each model and speech set, for a README."""
    return "\n".join(
        f"**{group_name(group)}** ({_caption(group)})\n\n{markdown_table(columns or COLUMNS, group)}\n"
        for group in by_part(rows)
    )


def markdown_table(columns: Sequence["Column"], rows: Iterable[Any]) -> str:
    lines = [[column.header for column in columns], ["---:" if column.numeric else "---" for column in columns]]
    lines += [[column.show(row) for column in columns] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


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


def _sinks_text(row: Row) -> str:
    return number(row.sink_fraction, 2) + (" model" if row.sinks == "model" else "")


# --- columns, the same on paper and in the terminal ---


@dataclass(frozen=True)
class Column:
    header: str
    show: Callable[[Any], str]  # of a row
    numeric: bool = True


COLUMNS = (
    Column("rule", lambda row: row.rule, numeric=False),
    Column("budget", lambda row: number(row.budget)),
    Column("sinks", _sinks_text),
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
ERROR_COLUMNS = (
    *COLUMNS[:4],  # which arm
    Column("WER", lambda row: percent(row.wer)),
    Column("CER", lambda row: percent(row.cer)),
    Column("subst.", lambda row: number(row.substitutions)),
    Column("del.", lambda row: number(row.deletions)),
    Column("ins.", lambda row: number(row.insertions)),
    Column("runaway", lambda row: number(row.runaway_clips)),
    Column("empty", lambda row: number(row.empty_outputs)),
    Column("Latin", lambda row: number(row.latin_words)),
    Column("Cyrillic", lambda row: number(row.cyrillic_words)),
    Column("other", lambda row: number(row.other_words)),
    Column("n", lambda row: number(row.n)),
)

LEGEND = {
    "sinks": "sink fraction: share of the budget given to sinks; constant ones of the model, if it says so",
    "tau": "confidence below which a reduced step is re-executed over the full cache",
    "read/step": f"mean positions that a run through the view reads (full cache: {N_CTX})",
    "all steps": "mean positions that a step reads, everything included: prompts, full and re-executed steps",
    "re-exec.": "share of steps that were executed again over the full cache",
    "diff.": "WER minus WER of the full cache on the same clips, percentage points",
    "bound": "one-sided upper bound of difference minus margin, points; below 0 is Non-inferior",
    "runaway": "clips whose text is longer than speech can be, or was cut by the limit of tokens",
    "subst.": "words replaced; del.: left out; ins.: added",
    "empty": "clips without any text",
    "Latin": "words of the output in Latin letters; Cyrillic alike; other: in another script, in several or in none",
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


def _group_html(index: int, group: Sequence[Row], tracks: Sequence[Track]) -> str:
    name = html.escape(group_name(group))
    caption = html.escape(_caption(group))
    figures = "\n".join(_figures(index, group, tracks))
    tables = {"table": _table_html(group, COLUMNS), "errors": _table_html(group, ERROR_COLUMNS)}
    return _GROUP.format(name=name, figures=figures, caption=caption, **tables)


def _figures(index: int, group: Sequence[Row], tracks: Sequence[Track]) -> Iterator[str]:
    """Those plots for which the run has data."""
    if plot := plots.difference_against_margin(f"difference-{index}", group):
        yield _figure("WER difference against the margin", plot, _DIFFERENCE_NOTE)
    plot = plots.wer_against_positions(f"wer-{index}", group)
    yield _figure("WER against positions read", plot, _WER_NOTE)
    if plot := plots.reexecuted_share(f"reexecuted-{index}", group):
        yield _figure("Re-executed share", plot, "Steps executed again over the full cache.")
    for i, track in enumerate(tracks):
        if (track.model, track.language, track.speech) == (group[0].model, group[0].language, group[0].speech):
            plot = plots.window_track(f"track-{index}-{i}", track)
            yield _figure("Window track", plot, f"Clip {track.clip}, {track.arm}. {_TRACK_NOTE}")


def _figure(title: str, plot: str, note: str) -> str:
    return f"<figure><figcaption><strong>{title}</strong><br>{html.escape(note)}</figcaption>{plot}</figure>"


_WER_NOTE = (
    "Filled markers: Non-inferior, or the full cache itself. Hollow markers: Inferior or Inconclusive. "
    f"Band: WER of the full cache ± the margin. A WER of 0 % is drawn at {plots.LOWEST_WER} %."
)
_DIFFERENCE_NOTE = (
    "Marker: the difference; bar: up to its one-sided 95 % bound. Dashed line: the margin. "
    "Non-inferior is an arm whose whole bar is left of the line. Linear up to ±1 point, logarithmic beyond."
)
_TRACK_NOTE = "Each column is one run of the decoder; it read the window and the sinks, or everything."


def _table_html(group: Sequence[Row], columns: Sequence[Column]) -> str:
    head = "".join(f'<th scope="col"{_number_class(c)}{_tooltip(c)}>{html.escape(c.header)}</th>' for c in columns)
    body = "\n".join(f"<tr>{''.join(_cell_html(column, row) for column in columns)}</tr>" for row in group)
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
<div class="figures">
{figures}
</div>
<div class="scroll" role="region" aria-label="Results {name}" tabindex="0"><table>
{table}
</table></div>
<p class="caption">{caption}</p>
<details><summary>Kinds of errors</summary>
<div class="scroll" role="region" aria-label="Errors {name}" tabindex="0"><table>
{errors}
</table></div>
</details>
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
.figures { columns: 24rem; column-gap: 1.5rem; margin: 1rem 0; }
figure { break-inside: avoid; margin: 0 0 1.5rem; max-width: 36rem; }
figcaption { margin-bottom: .5rem; font-size: .875rem; overflow-wrap: anywhere; }
figure svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8125rem; white-space: nowrap; }
th, td { padding: .3rem; border-bottom: 1px solid var(--line); text-align: left; }
thead th { background: var(--soft); }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--paper); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { font-weight: 600; }
.non-inferior { color: var(--good); }
.inferior { color: var(--bad); }
.inconclusive { color: var(--open); }
.caption { color: var(--quiet); font-size: .875rem; overflow-wrap: anywhere; }
details { margin: 1.5rem 0; }
pre { background: var(--soft); padding: 1rem; overflow-x: auto; font-size: .8125rem; }
"""
