"""pyharness bench step"""

from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from pyharness import rules
from pyharness.bench import libraries, real
from pyharness.bench import step as steps
from pyharness.bench.libraries import STOCK, Arm
from pyharness.cli.bench.options import budgets_option, clip_option, json_option, own_clip, threads_option
from pyharness.cli.bench.reduced import reduced
from pyharness.cli.bench.table import show


@click.command()
@click.option(
    "--mode",
    type=click.Choice([steps.SYNTHETIC, real.REAL]),
    default=steps.SYNTHETIC,
    show_default=True,
    help="Forced tokens behind one clip, or clips that are transcribed.",
)
@click.option("--model", help="Name or path; synth-* will do for synthetic steps.  [default: the profile's, else base]")
@click.option("--language", help="Of the clip, or of a manifest that does not state it.  [default: en]")
@budgets_option
@threads_option
@clip_option
@click.option(
    "--steps",
    "n_steps",
    type=click.IntRange(1, steps.MAX_STEPS),
    default=24,
    show_default=True,
    help="Synthetic: timed steps of a pass.",
)
@click.option("--rounds", type=click.IntRange(2), default=30, show_default=True, help="Synthetic: passes of each arm.")
@click.option("--speech", default="asterisk-en", show_default=True, help="Real: speech set by name, or a manifest.")
@click.option("--clips", type=click.IntRange(1), default=50, show_default=True, help="Real: of the set, at most.")
@click.option("--tau", type=click.FloatRange(0, 1), help="Real: steps less sure are re-executed.  [default: 0.4]")
@click.option(
    "--profile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Real: decode by this profile, in the way in which it was calibrated, instead of --budgets and --tau.",
)
@json_option
def step(mode, model, language, budgets, threads, clip, n_steps, rounds, speech, clips, tau, profile, as_json):
    """Time the decoder, by step or by token.

    Synthetic: every arm is fed the same tokens behind the same clip, so that all do the same steps. A pass is a prompt
    and --steps steps; its time is whisper.cpp's own "decode time" of these, without what chooses tokens. Nothing is
    transcribed, so there is no error rate: "same" is the share of steps whose most probable token is that of stock.

    Real: every arm transcribes the clips; the time is that behind the encoder, with prompt and choice of tokens.

    \b
    Examples:
      pyharness bench step
      pyharness bench step --model synth-medium-q5_0 --threads 1 --budgets 192 --json
      pyharness bench step --mode real --profile calibration/base-ru.json --speech asterisk-ru
    """
    libraries.check()
    if mode == real.REAL:
        _real(model, language, budgets, threads, speech, clips, tau, profile, as_json)
    else:
        _synthetic(model or "base", language or "en", budgets, threads, clip, n_steps, rounds, as_json)


def _synthetic(model, language, budgets, threads, clip, n_steps, rounds, as_json):
    settings = steps.Settings(
        model=model,
        clip=clip or own_clip(),
        language=language,
        budgets=budgets,
        threads=threads,
        steps=n_steps,
        rounds=rounds,
    )
    n_passes = len(settings.arms) * rounds * len(threads)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{n_passes} passes", total=n_passes)
        result = steps.run(settings, lambda n: progress.advance(task, n))
    show(result, as_json)


def _real(model, language, budgets, threads, speech, clips, tau, profile, as_json):
    chosen = reduced(None, tau, profile)
    console = Console(stderr=True)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    (part,) = chosen.parts((model or chosen.model,), speech, language, clips, say)
    arms = (chosen.arm,) if profile else (replace(chosen.arm, budget=budget) for budget in budgets)
    settings = real.Settings(
        part=part,
        arms=(STOCK, *map(Arm, dict.fromkeys((rules.Off(), rules.Full(), *arms)))),
        limits=chosen.limits,
        threads=threads,
    )
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("clips", total=len(part.clips) * len(threads))
        result = real.run(settings, advance=lambda: progress.advance(task), say=say)
    show(result, as_json)
