"""How a bench shows its rows: a table for each number of threads, or JSON."""

import json

import click
from rich.console import Console
from rich.text import Text

from pyharness.table import NOTHING, Column, number, print_table, ratio_with_spread


def with_interval(row: dict, key: str, low: str, high: str) -> str:
    if row[low] is None:
        return f"×{row[key]:.2f} (one clip)"
    return ratio_with_spread(row[key], row[low], row[high])


def median_ms(row: dict) -> str:
    digits = 2 if row["ms"] < 100 else 0
    return f"{row['ms']:.{digits}f} ({row['ms_low']:.{digits}f}–{row['ms_high']:.{digits}f})"


ARM = Column("arm", lambda row: row["arm"], numeric=False)
HOW = (
    Column("threads", lambda row: number(row["threads"])),
    Column("build", lambda row: row["build"], numeric=False),
)


def show(result: dict, columns: tuple[Column, ...], title: str, legend: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False, indent=1))
        return
    console = Console()
    for threads in result["env"]["threads"]:
        lines = [[Text(column.show(row)) for column in columns] for row in result["rows"] if row["threads"] == threads]
        print_table(f"{title} · threads {threads}", columns, lines, console)
    env = result["env"]
    known = (
        f"{env['cpu']}, {env['cores']} cores, governor {env['governor'] or NOTHING}, load {env['load']}, {env['date']}"
    )
    console.print(Text(f"{known}\n{legend}", style="dim"), soft_wrap=True)
