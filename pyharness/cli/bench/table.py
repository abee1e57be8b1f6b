"""How a bench shows its rows: a table for each number of threads, or JSON."""

import json

import click
from rich.console import Console
from rich.text import Text

from pyharness.bench.tables import conditions, parts, table_of
from pyharness.table import print_table


def show(result: dict, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False, indent=1))
        return
    console, table = Console(), table_of(result)
    for title, rows in parts(result):
        lines = [[Text(column.show(row)) for column in table.columns] for row in rows]
        print_table(title, table.columns, lines, console)
    console.print(Text(f"{conditions(result['env'])}\n{table.legend}", style="dim"), soft_wrap=True)
