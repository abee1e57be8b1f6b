"""``pyharness models``: get, convert, quantize and synthesise models."""

import json
from pathlib import Path

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from pyharness import models as library
from pyharness import paths
from pyharness.errors import HarnessError
from pyharness.models import QUANTIZED_TYPES, SHAPES, Listed


class Group(click.Group):
    """Its commands write large files: a disk that does not take them is one line, too."""

    def invoke(self, ctx):
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise HarnessError(f"cannot use '{error.filename}': {error.strerror}") from error


@click.group(cls=Group)
def models():
    """Get, convert, quantize and synthesise models.

    \b
    Examples:
      pyharness models get tiny.en
      pyharness models quantize base q5_0
      pyharness models synth medium
    """


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array instead of a table.")
def list_(as_json: bool):
    """Show the known models and which are on this computer.

    \b
    Examples:
      pyharness models list
      pyharness models list --json
    """
    rows = library.list_models()
    if as_json:
        click.echo(json.dumps([_as_dict(row) for row in rows], indent=2))
        return
    table = Table("name", "from", "state", caption=f"files in {paths.models_dir()}", caption_justify="left")
    for row in rows:
        table.add_row(row.name, row.source, _state(row), style=None if row.n_bytes else "dim")
    Console().print(table, "Any name also takes a type, for example base-q5_0.", highlight=False)


def _as_dict(row: Listed) -> dict:
    return {
        "name": row.name,
        "from": row.source,
        "path": str(row.path),
        "bytes": row.n_bytes,
        "problem": row.problem,
    }


def _state(row: Listed) -> str:
    if row.n_bytes is None:
        return "not cached"
    return f"damaged: {row.problem}" if row.problem else decimal(row.n_bytes)


@models.command()
@click.argument("name")
def get(name: str):
    """Fetch model NAME unless it is here already, and print its path.

    \b
    Examples:
      pyharness models get tiny.en
      pyharness models get base-q5_0
      pyharness models get large-v3-turbo
    """
    _print_path(library.get(name))


@models.command()
@click.argument("ct2_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def convert(ct2_dir: Path, out: Path):
    """Convert the CTranslate2 Whisper model in folder CT2_DIR to a whisper.cpp file OUT (f16).

    \b
    Example:
      pyharness models convert ~/faster-whisper-small ggml-small.bin
    """
    click.echo(library.convert(ct2_dir, out))


@models.command()
@click.argument("in_", metavar="IN")
@click.argument("type_", metavar="TYPE", type=click.Choice(QUANTIZED_TYPES))
@click.argument("out", required=False, type=click.Path(dir_okay=False, path_type=Path))
def quantize(in_: str, type_: str, out: Path | None):
    """Quantize model IN (name or file) to TYPE: q4_0, q4_1, q5_0, q5_1 or q8_0.

    Writes OUT, or a file next to IN with the type in its name.

    \b
    Examples:
      pyharness models quantize base q5_0
      pyharness models quantize my-model.bin q8_0 my-model-small.bin
    """
    _print_path(library.quantize(in_, type_, out))


@models.command()
@click.argument("shape", metavar="SHAPE", type=click.Choice(list(SHAPES)))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the weights.")
@click.option(
    "--type",
    "type_",
    default="f16",
    show_default=True,
    type=click.Choice(["f16", *QUANTIZED_TYPES]),
    help="Type of the matrices.",
)
def synth(shape: str, seed: int, type_: str):
    """Write a model with random weights in the exact shape SHAPE: speed can be measured without real ones.

    SHAPE is the name of a published model: tiny, small.en, medium, large-v3-turbo ...

    \b
    Examples:
      pyharness models synth medium
      pyharness models synth small --type q5_0 --seed 7
    """
    path = library.synthesize(shape, seed)
    if type_ != "f16":
        path = library.quantize(path, type_)
    _print_path(path)


def _print_path(path: Path) -> None:
    if library.is_synthetic(path):
        click.echo("random weights: for timing only", err=True)
    click.echo(path)
