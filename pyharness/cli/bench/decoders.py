"""pyharness bench decoders"""

import click
from rich.console import Console
from rich.progress import Progress

from pyharness.bench import decoders as crews
from pyharness.bench import libraries
from pyharness.bench.step import MAX_STEPS
from pyharness.cli.bench.options import Several, json_option
from pyharness.cli.bench.reduced import reduced, reduced_options
from pyharness.cli.bench.table import show


@click.command()
@click.option("--model", help="Name or path.  [default: the profile's, else base]")
@click.option(
    "--n", "several", type=Several(click.IntRange(1, 512)), default="1,2,4,8,16", show_default=True, help="Decoders."
)
@click.option("--mode", type=click.Choice([crews.SYNTHETIC, crews.REAL, "both"]), default="both", show_default=True)
@click.option("--rounds", type=click.IntRange(2), default=6, show_default=True, help="Waves of each arm.")
@click.option(
    "--steps",
    type=click.IntRange(1, MAX_STEPS),
    default=24,
    show_default=True,
    help="Of each decoder in a synthetic wave.",
)
@reduced_options
@json_option
def decoders(model, several, mode, rounds, steps, speech, language, budget, tau, profile, as_json):
    """Time n decoders at once, one thread each.

    They share one loaded model; each has its own state and clip. In the mode synthetic all are fed the same tokens in
    every arm, and no step is re-executed; in the mode real they transcribe, and the time is that behind the encoder. A
    wave is one go of all decoders, and each round of real decoding has the next clips: --rounds times --n of them.

    \b
    Examples:
      pyharness bench decoders --model base-q5_0 --n 8
      pyharness bench decoders --profile calibration/base-en.json --mode real --n 1,8 --rounds 20 --json
    """
    libraries.check()
    chosen = reduced(budget, tau, profile)
    modes = (crews.SYNTHETIC, crews.REAL) if mode == "both" else (mode,)
    console = Console(stderr=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    needs_text = crews.REAL in modes
    (part,) = chosen.parts((model or chosen.model,), speech, language, None, say, needs_text)
    settings = crews.Settings(part, chosen.arm, chosen.limits, several, modes, rounds, steps)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"{settings.n_waves} waves", total=settings.n_waves)
        result = crews.run(settings, advance=lambda n: progress.advance(task, n), say=say)
    show(result, as_json)
