"""pyharness transcribe"""

import dataclasses
import os
from pathlib import Path

import click

from pyharness import audio, models, output, rules
from pyharness.cli.budget import Budget
from pyharness.errors import HarnessError
from pyharness.native import Decoding, Model


@click.command()
@click.argument("files", metavar="AUDIO...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--model", "-m", required=True, help="Name (base, tiny.en, ...) or path of a ggml model.")
@click.option("--profile", type=click.Path(path_type=Path), help="Calibrated settings of the view.")
@click.option("--kv-rule", type=str, help=f"Rule that chooses the positions a step reads: {', '.join(rules.RULES)}.")
@click.option("--kv-budget", type=Budget(), help="Positions a step may read, 1..1500, or their share of 1500: 12.5%.")
@click.option("--kv-sink-frac", type=float, help="Share of the budget given to sinks, 0..1.")
@click.option("--kv-tau", type=float, help="Steps less confident than this are executed again, 0..1.")
@click.option(
    "--language", "-l", default=None, help="Code like en, or auto.  [default: auto; en for English-only models]"
)
@click.option("--translate", is_flag=True, help="Translate to English.")
@click.option("--beam-size", type=click.IntRange(1, 8), default=5, show_default=True, help="1 = greedy.")
@click.option("--threads", "-t", type=click.IntRange(1, 512), default=os.cpu_count() or 1, help="[default: all cores]")
@click.option("--format", "-f", "form", type=click.Choice(list(output.FORMATS)), default="txt", show_default=True)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write NAME.FORMAT into this folder instead of printing.",
)
def transcribe(
    files, model, profile, kv_rule, kv_budget, kv_sink_frac, kv_tau, language, translate, beam_size, threads, form, out
):
    """Transcribe audio files.

    A file that cannot be read is reported, the others are done all the same, and the exit code is 2.

    \b
    Examples:
      pyharness transcribe clip.wav --model base
      pyharness transcribe *.flac --model base --kv-budget 192 --kv-tau 0.4 --format srt --out subtitles
      pyharness transcribe clip.mp3 --model tiny.en --profile calibration/tiny.en-en.json --format json
    """
    rule = _rule(kv_rule, budget=kv_budget, sink_fraction=kv_sink_frac, tau=kv_tau)
    if rule and profile:
        raise HarnessError("give either --profile or --kv-* flags")
    if out:
        _check_names(files, form)
    n_failed = 0
    with Model(models.resolve(model)) as loaded, loaded.state() as state:
        if profile:
            state.set_profile(profile)
        elif rule:
            state.set_view(rule)
        decoding = Decoding(
            language=language or ("auto" if loaded.is_multilingual() else "en"),
            beam_size=beam_size,
            best_of=5,
            temperature_inc=0.2,
            timestamps=True,
            translate=translate,
            threads=threads,
        )
        _check_language(decoding.language, loaded)
        for path in files:
            try:
                state.reset_counters()
                transcript = state.transcribe(audio.load(path), decoding)
            except HarnessError as error:
                click.echo(
                    f"Error: {path}: {error.message}" if str(path) not in error.message else f"Error: {error.message}",
                    err=True,
                )
                n_failed += 1
                continue
            options = {
                "model": model,
                **dataclasses.asdict(decoding),
                "view": str(profile) if profile else rule and rule.describe(),
            }
            text = output.FORMATS[form](path, transcript, options, state.counters())
            _deliver(text, path, form, out)
    if n_failed:
        raise SystemExit(2)


def _rule(name, **settings):
    """The rule of the flags, or None without any; settings alone mean padsink-track."""
    settings = {key: value for key, value in settings.items() if value is not None}
    if name is None and not settings:
        return None
    return rules.make(name or "padsink-track", **settings)


def _check_names(files, form):
    """HarnessError if two transcripts would be the same file."""
    named = {}
    for path in files:
        name = f"{path.stem}.{form}"
        if name in named:
            raise HarnessError(f"'{named[name]}' and '{path}' would both be written to '{name}': rename one of them")
        named[name] = path


def _check_language(language, loaded):
    if not loaded.knows_language(language):
        raise HarnessError(f"--language {language}: the model does not know it")


def _deliver(text, path, form, out):
    if out is None:
        click.echo(text, nl=False)
        return
    target = out / f"{path.stem}.{form}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HarnessError(f"cannot write '{target}': {error.strerror}") from error
    click.echo(f"{path} -> {target}", err=True)
