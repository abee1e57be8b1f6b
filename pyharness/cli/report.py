"""pyharness report"""

from pathlib import Path

import click
from rich.console import Console

from pyharness import report as reports
from pyharness.cli.budget import Budget
from pyharness.errors import HarnessError


@click.command()
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown; write nothing.")
@click.option("--errors", is_flag=True, help="Print kinds of errors, CER and scripts instead of speed and verdicts.")
@click.option("--rule", "wanted", multiple=True, help="Only these rules (may be given several times).")
@click.option("--budget", type=Budget(), multiple=True, help="Only these budgets, and rules without one.")
def report(run, markdown, errors, wanted, budget):
    """Print the tables of a finished run and write its report.html again. Reads the run directory only.

    \b
    Examples:
      pyharness report runs/sweep-20260101-120000
      pyharness report calibration/evidence/default-sweep --markdown --budget 192
    """
    rows = [
        row
        for row in reports.read_rows(run)
        if (not wanted or row.rule in wanted) and (not budget or row.budget is None or row.budget in budget)
    ]
    if not rows:
        raise HarnessError(f"no row of '{run}' is of the given --rule and --budget")
    columns = reports.ERROR_COLUMNS if errors else reports.COLUMNS
    if markdown:
        click.echo(reports.markdown(rows, columns))
        return
    reports.print_tables(rows, Console(), columns)
    click.echo(f"report: {reports.write_report(run)}", err=True)
