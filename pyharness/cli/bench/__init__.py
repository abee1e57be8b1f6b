"""pyharness bench: one file per bench, this one only ties them together."""

import click

from pyharness.cli.bench.builds import builds
from pyharness.cli.bench.decoders import decoders
from pyharness.cli.bench.dram import dram
from pyharness.cli.bench.peers import peers
from pyharness.cli.bench.report import report
from pyharness.cli.bench.step import step
from pyharness.cli.bench.utterance import utterance


@click.group()
def bench():
    """Time our build against stock whisper.cpp, in one run.

    Needs both builds (`./build.sh stock`). Their arms take turns, one at a time; keep the machine idle otherwise.
    """


for command in (step, decoders, utterance, builds, peers, dram, report):
    bench.add_command(command)
