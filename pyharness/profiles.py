"""What profiles choose and whether held-out speech confirmed it, as one table.

The verdict on held-out speech is read from ``evidence/NAME/summary.json`` beside the profile ``NAME.json``: what
``pyharness evaluate`` wrote (``calibration/configurations.sh`` puts it there).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyharness import calibrate, report
from pyharness.rules import Full, Rule
from pyharness.summary import Row, read_rows
from pyharness.table import NOTHING, Column, number, percent, points


@dataclass(frozen=True)
class Entry:
    """One profile."""

    name: str
    language: str
    synthetic: bool  # the speech it was calibrated on
    rule: Rule
    reason: str
    n: int | None  # clips it was calibrated on
    wer_full: float | None  # on them
    held_out: Row | None  # how it did on held-out clips
    stray: bool  # there is evidence, but of other settings


def read(path: Path) -> Entry:
    """HarnessError if the profile or its evidence is broken."""
    content = calibrate.read_profile(path)
    evidence = content.get("evidence", {})
    measured = evidence.get("candidates") or [{}]
    rule = calibrate.rule_of(content, path)
    folder = path.parent / "evidence" / path.stem
    held_out = _held_out_row(folder, rule)
    return Entry(
        name=path.stem,
        language=content.get("language", NOTHING),
        synthetic=evidence.get("synthetic", False),
        rule=rule,
        reason=evidence.get("reason", "no evidence"),
        n=measured[0].get("n"),
        wer_full=measured[0].get("wer_full"),
        held_out=held_out,
        stray=folder.is_dir() and not held_out,
    )


def _held_out_row(folder: Path, rule: Rule) -> Row | None:
    """The row of the rule with these very settings: what was measured for an older profile is no evidence."""
    if not folder.is_dir() or rule == Full():
        return None
    settings = ("budget", "sink_fraction", "sinks", "tau")
    wanted = [rule.name, *(getattr(rule, name, None) for name in settings)]
    rows = [row for row in read_rows(folder) if row.verdict]
    return next((row for row in rows if [row.rule, *(getattr(row, name) for name in settings)] == wanted), None)


def _held_out(show: Callable[[Row], str]) -> Callable[[Entry], str]:
    return lambda entry: show(entry.held_out) if entry.held_out else NOTHING


def _outcome(entry: Entry) -> str:
    if entry.rule == Full():
        return "model unusable" if (entry.wer_full or 0) >= 1 else "nothing to confirm"
    if not entry.held_out:
        return "evidence is of other settings" if entry.stray else "not evaluated"
    return calibrate.outcome({"verdict": entry.held_out.verdict})


COLUMNS = (
    Column("profile", lambda entry: entry.name + ("*" if entry.synthetic else ""), numeric=False),
    Column("n", lambda entry: number(entry.n)),
    Column("its WER", lambda entry: percent(entry.wer_full)),
    Column("choice", lambda entry: entry.rule.brief(), numeric=False),
    Column("held-out n", _held_out(lambda row: number(row.n))),
    Column("WER full", _held_out(lambda row: percent(row.wer_full))),
    Column("WER", _held_out(lambda row: percent(row.wer))),
    Column("diff.", _held_out(lambda row: points(row.difference))),
    Column("bound", _held_out(lambda row: points(row.bound_upper))),
    Column("outcome", _outcome, numeric=False),
    Column("read/step", _held_out(lambda row: number(row.positions_read))),
    Column("all steps", _held_out(lambda row: number(row.positions_read_all))),
    Column("re-exec.", _held_out(lambda row: percent(row.reexecuted_share))),
    Column("step time", _held_out(report.step_time)),
    Column("threads", _held_out(lambda row: number(row.threads))),
    Column("build", _held_out(lambda row: row.build or NOTHING), numeric=False),
)
