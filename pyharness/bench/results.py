"""What benches printed with --json, read again: as Markdown, and as one page of HTML with figures."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pyharness import page
from pyharness.bench.environment import build_name
from pyharness.bench.figures import FIGURES
from pyharness.bench.tables import MODEL, TABLES, conditions, parts, table_of, unused_sources, values
from pyharness.errors import HarnessError
from pyharness.summary import read_object
from pyharness.table import Column, markdown_table


def read(path: Path) -> dict:
    """{"env": ..., "rows": [...]}. HarnessError that names the file and the row, unless all can be shown in a table."""
    result = read_object(path)
    if not isinstance(result.get("env"), dict) or not isinstance(result.get("rows"), list) or not result["rows"]:
        raise HarnessError(f"{path}: no result of a bench, which has 'env' and at least one of 'rows'")
    if result["env"].get("bench") not in list(TABLES):
        raise HarnessError(f"{path}: 'env' has no 'bench' of these: {', '.join(TABLES)}; run that bench again")
    for i, row in enumerate(result["rows"]):
        with _named(f"{path}: row {i}"):
            _check(row, table_of(result).columns)
    return result


def markdown(results: Mapping[Path, dict]) -> str:
    """Their tables for a README, what they mean, and the commands that make them again."""
    shown = []
    for path, result in results.items():
        with _named(str(path)):
            shown.append(_markdown(result))
    return "\n".join(shown)


def html(results: Mapping[Path, dict]) -> str:
    """One page with everything in it."""
    sections = []
    for i, (path, result) in enumerate(results.items()):
        with _named(str(path)):
            sections.append(_section(f"bench-{i}", result))
    return page.document("Benches", *sections)


def _markdown(result: dict) -> str:
    env, table = result["env"], table_of(result)
    tables = (f"**{title}**\n\n{markdown_table(table.columns, rows)}\n" for title, rows in parts(result))
    return "\n".join((*tables, f"{table.legend}\n\n{conditions(env)}\n\n    {env['command']}\n"))


def _section(name: str, result: dict) -> str:
    table = table_of(result)
    shown = [page.facts(_facts(result))]
    for i, (title, rows) in enumerate(parts(result)):
        shown.append(page.heading(title))
        shown.append(page.figures(FIGURES[result["env"]["bench"]](f"{name}-{i}", rows)))
        shown.append(page.table(title, table.columns, rows, row_header="arm", meanings={}))
    return page.section(f"bench {result['env']['bench']}", *shown, page.caption(table.legend))


def _facts(result: dict) -> dict[str, list[str]]:
    """Where and with what it was measured: lines of text under each heading."""
    env = result["env"]
    return {
        "Models": [values(result, "model")],
        **{name: [str(env[name.lower()])] for name in ("Date", "CPU", "Cores", "Load")},
        "Governor": [env["governor"] or "the system does not tell"],
        "Threads": [", ".join(map(str, env["threads"]))],
        "Builds": [f"{name}: {_build(build)}" for name, build in env["builds"].items()],
        **({"Sources": unused_sources(env)} if unused_sources(env) else {}),
        "Command": [env["command"]],
    }


def _build(build: dict) -> str:
    """With the CPU features of a libwhisper."""
    return " ".join((build_name(build), build["features"])) if "features" in build else build_name(build)


# --- what a file may lack ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _named(place: str) -> Iterator[None]:
    """Errors of what is missing or of the wrong type become one line that says where."""
    try:
        yield
    except KeyError as error:
        raise HarnessError(f"{place} has no {error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise HarnessError(f"{place} cannot be shown: {error}") from error


def _check(row: dict, columns: Sequence[Column]) -> None:
    """That it can be shown. Figures show what columns do, and the model."""
    for column in (MODEL, *columns):
        column.show(row)
    for key, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} is {value}")
