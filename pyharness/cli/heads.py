"""pyharness heads"""

import json
from dataclasses import replace

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from pyharness import heads as finder
from pyharness import models
from pyharness import speech as speeches
from pyharness.errors import HarnessError


@click.command()
@click.option("--model", required=True, help="Name or path of the model.")
@click.option("--speech", required=True, help="Speech set by name, or a manifest.")
@click.option("--language", help="Language of a manifest that does not state it.")
@click.option("--clips", type=click.IntRange(1), default=25, show_default=True, help="Clips to look at.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Which clips are drawn.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print what was found as alignment_heads and sink_positions, the keys of a profile.",
)
def heads(model, speech, language, clips, seed, as_json):
    """Find the alignment heads and the constant sinks of a model.

    A head's score is the share of its attention on the audio that lies where the heads together place the speech,
    less what it would put there without moving; heads of at least a quarter of the best score are listed, and those
    of upstream's preset for models of this shape are marked. Sinks are positions whose attention on the first step
    stands out over clips of many lengths.

    \b
    Examples:
      pyharness heads --model base --speech asterisk-en
      pyharness heads --model ./ggml-finetuned.bin --speech my/manifest.csv --clips 50 --json
    """
    path = models.resolve(model)
    _, all_clips = speeches.resolve(speech)
    chosen = [replace(clip, language=clip.language or language) for clip in speeches.sample(all_clips, clips, seed)]
    if not all(clip.language for clip in chosen):
        raise HarnessError(f"speech '{speech}' does not state its language: give --language")
    found = finder.find(path, track(chosen, "clips", console=Console(stderr=True), transient=True))
    if as_json:
        lists = {
            "alignment_heads": [[layer, head] for layer, head, _ in found.heads],
            "sink_positions": [position for position, _ in found.sinks],
        }
        click.echo(json.dumps(lists))
        return
    _print(found, len(chosen))


def _print(found, n_chosen):
    console = Console()
    table = Table(title=f"alignment heads, from {found.n_clips} of {n_chosen} clips (too short ones show no movement)")
    for column in ("layer", "head", "score", "preset"):
        table.add_column(column, justify="right")
    for layer, head, score in found.heads:
        table.add_row(str(layer), str(head), f"{score:.3f}", "yes" if (layer, head) in found.preset else "")
    console.print(table)
    shared = len({(layer, head) for layer, head, _ in found.heads} & set(found.preset))
    console.print(f"{shared} of the {len(found.preset)} heads of upstream's preset are among them", highlight=False)
    sinks = "  ".join(f"{position} ({mass:.1%})" for position, mass in found.sinks[:16])
    console.print(f"strongest constant sinks (mean first-step attention): {sinks}", highlight=False)
