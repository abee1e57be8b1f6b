"""Bytes read from memory, by the CPU's counters: what `perf stat` makes of them."""

import os
from dataclasses import dataclass
from pathlib import Path

from pyharness.bench.decode_steps import Build, DecodeSteps, Work, executable, output_of
from pyharness.bench.libraries import Arm
from pyharness.errors import HarnessError
from pyharness.paths import REPOSITORY

LINE = 64  # bytes of a cache line, on every CPU that has these counters
UNITS = {"": LINE, "MiB": 2**20}


@dataclass(frozen=True)
class Counter:
    event: str
    told: str  # beyond what is read
    options: tuple[str, ...] = ()


COUNTERS = (  # best first
    Counter("uncore_imc/cas_count_read/", "all caches, by everything that runs", ("--all-cpus",)),  # servers
    Counter("uncore_imc_free_running/data_read/", "all caches, by everything that runs", ("--all-cpus",)),
    Counter("LLC-load-misses", "the last level, without what is prefetched"),
)


class Perf:
    name = "perf"
    default_build = REPOSITORY / "build"
    rounds = 9  # whatever else runs is counted, too

    def __init__(self, build: Build, folder: Path, counters: tuple[Counter, ...] = COUNTERS):
        self._perf = executable("perf")
        self._out = folder / "perf.out"
        self._counter = self._first_of(counters)
        self._program = DecodeSteps(build, folder)

    def read(self, arm: Arm, work: Work) -> dict[str, float]:
        """Bytes that all steps read from memory."""
        command = self._program.command(arm, work)
        control, answer = os.pipe(), os.pipe()
        try:
            self._program.run(
                [*self._stat(self._counter), "--delay=-1", f"--control=fd:{control[0]},{answer[1]}", "--", *command],
                arm,
                {"DECODE_STEPS_PERF": f"{control[1]},{answer[0]}"},
                (*control, *answer),
            )
        finally:
            for fd in (*control, *answer):
                os.close(fd)
        return {self._counter.told: self._count()}

    def _first_of(self, counters: tuple[Counter, ...]) -> Counter:
        for counter in counters:
            if output_of([*self._stat(counter), "--", "true"]).returncode == 0 and self._count() is not None:
                return counter
        raise HarnessError(f"perf can count none of {', '.join(one.event for one in counters)} here")

    def _stat(self, counter: Counter) -> list:
        return [self._perf, "stat", "-x;", "-o", self._out, *counter.options, "-e", counter.event]

    def _count(self) -> float | None:
        return n_bytes(self._out.read_text(encoding="utf-8"))


def n_bytes(out: str) -> float | None:
    """From what `perf stat -x;` wrote; None if it could not count."""
    lines = [line.split(";") for line in out.splitlines() if line.count(";") > 1]
    try:
        return sum(float(value) * UNITS[unit] for value, unit, *_ in lines) if lines else None
    except (KeyError, ValueError):  # an unknown unit, "<not supported>"
        return None
