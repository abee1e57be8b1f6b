"""pyharness profiles"""

from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from pyharness import profiles as reader
from pyharness.table import markdown_table, print_table


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
def profiles(files, markdown):
    """Tell what profiles choose and whether held-out speech confirmed it.

    The verdict of a profile NAME.json is read from evidence/NAME beside it, a run directory of `evaluate`.

    \b
    Examples:
      pyharness profiles profile.json
      pyharness profiles calibration/*.json --markdown
    """
    entries = [reader.read(file) for file in files]
    if markdown:
        click.echo(markdown_table(reader.COLUMNS, entries))
    else:
        lines = [[Text(column.show(entry)) for column in reader.COLUMNS] for entry in entries]
        print_table("profiles", reader.COLUMNS, lines, Console())
    click.echo()
    for entry in entries:
        click.echo(f"- {entry.name}: {entry.reason}")
    if any(entry.synthetic for entry in entries):
        click.echo("\n\\* calibrated on synthetic speech" if markdown else "\n* calibrated on synthetic speech")
