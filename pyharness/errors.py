"""The one exception a user sees: what went wrong, where, and what to do."""

import click


class HarnessError(click.ClickException):
    """Anticipated failure (bad input, missing file, wrong value).

    Printed by click as one line ``Error: ...`` with exit code 2; code that uses pyharness as a
    library catches it like any exception. The message names the file or the flag and the reason.
    """

    exit_code = 2
