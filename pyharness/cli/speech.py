"""``pyharness speech``: recordings with transcripts."""

import json as json_format
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from pyharness import paths
from pyharness import speech as sets


@click.group(
    epilog="""\b
Examples:
  pyharness speech list
  pyharness speech get asterisk-en
"""
)
def speech():
    """Get recordings with transcripts.

    Every command that takes --speech accepts a set from this list, or a manifest of your own: a .jsonl or
    .csv file with the fields audio and text (optional: id, language, speaker, recording, duration).
    """


@speech.command(
    "list",
    epilog="""\b
Examples:
  pyharness speech list
  pyharness speech list --json
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_(as_json):
    """Show the sets that can be fetched.

    Those of Common Voice, one per language, are listed when fetched.
    """
    rows = [_describe(item) for item in sets.listed()]
    if as_json:
        click.echo(json_format.dumps(rows, indent=2))
    else:
        click.echo(f"Besides these: {sets.COMMON_VOICE}, XX being a language code of Common Voice.")
        Console().print(_table(rows))


@speech.command(
    epilog="""\b
Examples:
  pyharness speech get asterisk-ru
  pyharness speech get espeak-tr
  pyharness speech get fleurs-uz
  pyharness speech get common-voice-uz
  pyharness speech get asterisk-en --force
  pyharness speech get asterisk-en --json | jq .filters
"""
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Fetch again, even if the set is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def get(name, force, as_json):
    """Fetch the set NAME unless it is cached, and show what it holds."""
    report = _report(name, sets.fetch(name, force))
    if as_json:
        click.echo(json_format.dumps(report, indent=2))
        return
    kind = "synthetic clips" if report["synthetic"] else "clips"
    click.echo(f"{name}: {report['clips']} {kind}, {report['minutes']} min, in {report['folder']}")
    dropped = [f"{reason} {n}" for reason, n in report["filters"].items() if n and reason != "kept"]
    click.echo(f"dropped prompts: {', '.join(dropped) or 'none'}")


def _describe(item: sets.SpeechSet) -> dict:
    """One row; clips and minutes are those on disk if the set is cached, else the published ones."""
    folder = paths.speech_dir() / item.name
    cached = sets.is_cached(item.name)
    size = _size(folder) if cached else {"clips": item.clips, "minutes": item.minutes}
    return {
        "name": item.name,
        "language": item.language,
        **size,
        "licence": item.licence,
        "synthetic": item.synthetic,
        "cached": cached,
        "folder": str(folder),
    }


def _report(name: str, folder: Path) -> dict:
    counts = json_format.loads((folder / sets.FILTERS).read_text(encoding="utf-8"))
    synthetic = sets.find(name).synthetic
    return {"name": name, "folder": str(folder), "synthetic": synthetic, **_size(folder), "filters": counts}


def _size(folder: Path) -> dict:
    clips = sets.read_manifest(folder / sets.MANIFEST, check_audio=False)
    return {"clips": len(clips), "minutes": round(sum(clip.duration for clip in clips) / 60, 1)}


def _table(rows: list[dict]) -> Table:
    table = Table(box=None)
    for title in ("name", "language", "clips", "minutes", "licence", "cached", "note"):
        wraps, right = title == "licence", title in ("clips", "minutes")
        table.add_column(title, justify="right" if right else "left", no_wrap=not wraps)
    for row in rows:
        known = row["clips"] is not None
        numbers = (str(row["clips"]), f"{row['minutes']:.1f}") if known else ("-", "-")
        marks = ("yes" if row["cached"] else "no", "synthetic" if row["synthetic"] else "")
        table.add_row(row["name"], row["language"], *numbers, row["licence"], *marks)
    return table
