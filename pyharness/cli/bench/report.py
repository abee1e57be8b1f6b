"""pyharness bench report"""

from pathlib import Path

import click

from pyharness.bench import results
from pyharness.rundir import write_text


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default="bench.html", show_default=True, help="The page."
)
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown; write nothing.")
def report(files, out, markdown):
    """Make one page of tables and figures from what benches print with --json.

    Needs no build. Each file gets a section: where and with what it was measured, figures, and the table of the bench.

    \b
    Examples:
      pyharness bench step --json > step.json
      pyharness bench report step.json peers.json --out bench.html
      pyharness bench report step.json --markdown
    """
    found = {file: results.read(file) for file in files}
    if markdown:
        click.echo(results.markdown(found))
        return
    write_text(out, results.html(found))
    click.echo(f"report: {out}", err=True)
