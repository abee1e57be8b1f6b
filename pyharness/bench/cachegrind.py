"""Bytes that pass the outer caches, simulated: valgrind's callgrind, which has cachegrind's caches and can begin late.

Its two levels stand for the last two of the machine. The inner one, which in callgrind holds data only, misses what
comes from the cache that cores share; the outer one misses what comes from memory. Every miss fetches a line, those of
writing too. Nothing is prefetched in the simulation: on a machine the same lines come, only earlier.
"""

import re
from pathlib import Path

from pyharness.bench import caches
from pyharness.bench.caches import Cache
from pyharness.bench.decode_steps import Build, DecodeSteps, Work, executable
from pyharness.bench.libraries import Arm
from pyharness.errors import HarnessError
from pyharness.paths import REPOSITORY


class Cachegrind:
    name = "cachegrind"
    default_build = REPOSITORY / "build-portable"  # valgrind shows programs a CPU without AVX-512
    rounds = 1  # it would be the same again

    def __init__(self, build: Build, folder: Path):
        self._valgrind = executable("valgrind")
        self._inner, self._outer = caches.outer()
        self._out = folder / "callgrind.out"
        self._program = DecodeSteps(build, folder, "-DDECODE_STEPS_CALLGRIND")

    def read(self, arm: Arm, work: Work) -> dict[str, float]:
        """Bytes that all steps fetch from beyond each cache."""
        command = [
            *(self._valgrind, "--tool=callgrind", "--instr-atstart=no", "--cache-sim=yes"),
            *(f"--D1={_option(self._inner)}", f"--LL={_option(self._outer)}"),
            *(f"--callgrind-out-file={self._out}", *self._program.command(arm, work)),
        ]
        self._program.run(command, arm)
        events = totals(self._out.read_text(encoding="utf-8", errors="replace"))
        return {
            str(self._inner): (events["D1mr"] + events["D1mw"]) * self._inner.line,
            str(self._outer): (events["DLmr"] + events["DLmw"]) * self._outer.line,
        }


def totals(out: str) -> dict[str, int]:
    """Of each event, from the text of callgrind's file."""
    lines = dict(re.findall(r"^(events|totals): (.*)$", out, re.M))
    if lines.keys() != {"events", "totals"}:
        raise HarnessError("callgrind has counted nothing")
    return dict(zip(lines["events"].split(), map(int, lines["totals"].split()), strict=True))


def _option(cache: Cache) -> str:
    return f"{cache.simulated.n_bytes},{cache.ways},{cache.line}"
