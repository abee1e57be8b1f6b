"""Tables and plots of a finished run, as one HTML page and in the terminal. Reads the run directory only.

``summary.json`` holds ``{"rows": [...]}``, one object per compared configuration (fields of `Row`).
``run.json`` may hold anything; these keys fill the header of the page, all others stay in its raw view:
``models`` [{name, sha256}], ``speech`` [{name, language, n, synthetic}], ``cpu``, ``threads``, ``date``,
``build``, ``command`` (text or list of words), ``settings`` {name: value}.
``utterances.jsonl`` may hold window tracks (`Track`).
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from pyharness import page, plots
from pyharness.rules import N_CTX
from pyharness.rundir import json_text, write_text
from pyharness.statistics import INCONCLUSIVE, INFERIOR, NON_INFERIOR
from pyharness.summary import Row, by_part, group_name, read_object, read_rows
from pyharness.table import NOTHING, Column, markdown_table, number, percent, points, print_table, ratio_with_spread
from pyharness.track import Track, read_tracks


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run directory from its run.json and summary.json; return its path.

    Raises HarnessError naming the file that is missing or broken.
    """
    run_dir = Path(run_dir)
    run = read_object(run_dir / "run.json")
    rows, tracks = read_rows(run_dir), read_tracks(run_dir)
    document = page.document(
        f"Run {run_dir.resolve().name}",
        page.facts(_run_facts(run)),
        *(_group_html(i, group, tracks) for i, group in enumerate(by_part(rows))),
        page.details("What the columns mean", page.facts({name: [meaning] for name, meaning in LEGEND.items()})),
        page.details("run.json", page.raw(json_text(run))),
    )
    path = run_dir / "report.html"
    write_text(path, document)
    return path


def print_tables(
    rows: Iterable[Mapping[str, Any] | Row], console: Console, columns: Sequence[Column] | None = None
) -> None:
    """Print one table per model and speech set. Lines longer than the console run on: no figure is cut."""
    columns = columns or COLUMNS
    parsed = [row if isinstance(row, Row) else Row.from_json(row) for row in rows]
    for group in by_part(parsed):
        lines = [[_cell_text(column, row) for column in columns] for row in group]
        print_table(group_name(group), columns, lines, console)
        console.print(Text(_caption(group), style="dim"))


def _cell_text(column: Column, row: Row) -> Text:
    style = _VERDICT_COLOURS.get(row.verdict or "", "dim") if column.header == "verdict" else ""
    return Text(column.show(row), style=style)


def markdown(rows: Iterable[Row], columns: Sequence[Column] | None = None) -> str:
    """One table for each model and speech set, for a README."""
    return "\n".join(
        f"**{group_name(group)}** ({_caption(group)})\n\n{markdown_table(columns or COLUMNS, group)}\n"
        for group in by_part(rows)
    )


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
    name = group_name(group)
    return page.section(
        name,
        page.figures(_figures(index, group, tracks)),
        page.table(f"Results {name}", COLUMNS, group, "rule", LEGEND),
        page.caption(_caption(group)),
        page.details("Kinds of errors", page.table(f"Errors {name}", ERROR_COLUMNS, group, "rule", LEGEND)),
    )


def _figures(index: int, group: Sequence[Row], tracks: Sequence[Track]) -> Iterator[str]:
    """Those plots for which the run has data."""
    if plot := plots.difference_against_margin(f"difference-{index}", group):
        yield page.figure("WER difference against the margin", plot, _DIFFERENCE_NOTE)
    plot = plots.wer_against_positions(f"wer-{index}", group)
    yield page.figure("WER against positions read", plot, _WER_NOTE)
    if plot := plots.reexecuted_share(f"reexecuted-{index}", group):
        yield page.figure("Re-executed share", plot, "Steps executed again over the full cache.")
    for i, track in enumerate(tracks):
        if (track.model, track.language, track.speech) == (group[0].model, group[0].language, group[0].speech):
            plot = plots.window_track(f"track-{index}-{i}", track)
            yield page.figure("Window track", plot, f"Clip {track.clip}, {track.arm}. {_TRACK_NOTE}")


_WER_NOTE = (
    "Filled markers: Non-inferior, or the full cache itself. Hollow markers: Inferior or Inconclusive. "
    f"Band: WER of the full cache ± the margin. A WER of 0 % is drawn at {plots.LOWEST_WER} %."
)
_DIFFERENCE_NOTE = (
    "Marker: the difference; bar: up to its one-sided 95 % bound. Dashed line: the margin. "
    "Non-inferior is an arm whose whole bar is left of the line. Linear up to ±1 point, logarithmic beyond."
)
_TRACK_NOTE = "Each column is one run of the decoder; it read the window and the sinks, or everything."
