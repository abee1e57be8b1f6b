"""Command line: one file per command, this one only ties them together."""

import importlib

import click

import pyharness

COMMANDS = {
    "sweep": "compare selection rules on real recordings",
    "calibrate": "choose the settings of a view for a model and a language",
    "evaluate": "confirm a profile on held-out speech",
    "profiles": "tell what profiles choose and whether held-out speech confirmed it",
    "heads": "find a model's alignment heads and constant sinks",
    "bench": "time our build against stock whisper.cpp",
    "report": "print the tables of a finished run again",
    "transcribe": "transcribe audio files, with or without a reduced view",
    "models": "get, convert, quantize and synthesise models",
    "speech": "get recordings with transcripts",
}


class LazyGroup(click.Group):
    """Imports a command when it is used, so that ``--help`` is instant and a broken extra hurts only its user."""

    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, name):
        if name not in COMMANDS:
            return None
        return getattr(importlib.import_module(f"pyharness.cli.{name}"), name)

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pyharness.__version__)
def main():
    """padsink: reduced cross-attention views for Whisper on CPUs."""
