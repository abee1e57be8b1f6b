"""What the benches' options share."""

from collections.abc import Callable
from pathlib import Path

import click

from pyharness import models
from pyharness.cli.budget import Budget


class Several(click.ParamType):
    """Values of one type, separated by commas."""

    def __init__(self, one: click.ParamType):
        self.one = one
        self.name = f"{one.name},..."

    def convert(self, value, param, ctx):
        if isinstance(value, tuple):
            return value
        values = tuple(self.one.convert(part.strip(), param, ctx) for part in value.split(","))
        if len(set(values)) < len(values):
            self.fail(f"{value}: the same value twice", param, ctx)
        return values


clip_option = click.option(
    "--clip",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Recording that is encoded for synthetic steps, its first 30 s.  [default: 11 s of English]",
)
budgets_option = click.option(
    "--budgets", type=Several(Budget()), default="384,192,96", show_default=True, help="Of padsink-track."
)


def together(*options: Callable) -> Callable:
    """One decorator of several."""

    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


speech_options = together(
    click.option("--speech", default="asterisk-en", show_default=True, help="Speech set by name, or a manifest."),
    click.option("--language", help="Language of a manifest that does not state it."),
)
length_options = together(
    click.option(
        "--lengths", type=Several(click.FloatRange(0, 60, min_open=True)), default="1,2,4,8,15", show_default=True
    ),
    click.option("--clips", type=click.IntRange(1), default=5, show_default=True, help="Of each length, at most."),
    click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help="Of each clip and arm."),
)
threads_option = click.option(
    "--threads", type=Several(click.IntRange(1, 512)), default="1,2", show_default=True, help="One table for each."
)
json_option = click.option("--json", "as_json", is_flag=True, help='Print {"env": {...}, "rows": [...]}.')


def own_clip() -> Path:
    """The default of --clip."""
    return models.upstream_source() / "samples" / "jfk.wav"
