"""Rows of a run's ``summary.json``: one object per compared configuration."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from pyharness.errors import HarnessError
from pyharness.statistics import MARGIN


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
    clusters: str | None = None  # what they are: "speaker", "recording" or "clip"
    sinks: str | None = None  # where a rule takes them from: "first-step" or "model"
    speech: str | None = None
    synthetic: bool | None = None  # spoken by a machine
    cer: float | None = None
    substitutions: int | None = None  # words, as below
    deletions: int | None = None
    insertions: int | None = None
    empty_outputs: int | None = None  # clips
    latin_words: int | None = None  # in the output, as below
    cyrillic_words: int | None = None
    other_words: int | None = None  # in another script, in several, or without letters

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


def read_rows(run_dir: Path) -> list[Row]:
    """Rows of a finished run's summary. Raises HarnessError naming a file that is missing or broken."""
    path = Path(run_dir) / "summary.json"
    entries = read_object(path).get("rows")
    if not isinstance(entries, list) or not entries:
        raise HarnessError(f"{path}: 'rows' must be a list with at least one row")
    rows = []
    for i, entry in enumerate(entries):
        try:
            rows.append(Row.from_json(entry))
        except ValueError as error:
            raise HarnessError(f"{path}: row {i} {error}") from error
    return rows


def by_part(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows by model and speech, in order of first appearance."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.language, row.speech), []).append(row)
    return list(groups.values())


def group_name(group: Sequence[Row]) -> str:
    """ "base · tr · espeak-tr (synthetic)"."""
    row = group[0]
    speech = f" · {row.speech}" if row.speech else ""
    return f"{row.model} · {row.language}{speech}{' (synthetic)' if row.synthetic else ''}"


def read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HarnessError(f"{path}: {error.strerror}; a report needs a finished run") from error
    except ValueError as error:
        raise HarnessError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise HarnessError(f"{path}: must hold one JSON object")
    return content


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
