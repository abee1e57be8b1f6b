"""Tables: columns, numbers as text, and how they look in the terminal and in Markdown (in HTML: page.py)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

NOTHING = "–"


@dataclass(frozen=True)
class Column:
    header: str
    show: Callable[[Any], str]  # of a row
    numeric: bool = True


def print_table(title: str, columns: Iterable[Column], lines: Iterable[Iterable[Text]], console: Console) -> None:
    """One table, as wide as its content."""
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for column in columns:
        table.add_column(column.header, justify="right" if column.numeric else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console.print(_FullWidth(table), crop=False)


class _FullWidth:
    """Renders a table as wide as its content, whatever the width of the console."""

    def __init__(self, table: Table):
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unlimited = options.update(width=10_000)
        width = Measurement.get(console, unlimited, self.table).maximum
        yield from console.render(self.table, options.update(width=width))


def markdown_table(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    lines = [[column.header for column in columns], ["---:" if column.numeric else "---" for column in columns]]
    lines += [[column.show(row) for column in columns] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


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
