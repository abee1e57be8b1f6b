"""The caches between a core and its memory, as the system states them."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from pyharness.errors import HarnessError

CPU = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Cache:
    level: int  # 1 is next to the core
    n_bytes: int
    ways: int
    line: int  # bytes

    @property
    def simulated(self) -> "Cache":
        """With the nearest power of two as its number of sets: simulators take no other."""
        way = self.ways * self.line
        return replace(self, n_bytes=way * 2 ** round(math.log2(self.n_bytes / way)))

    def __str__(self) -> str:
        told = f"L{self.level} {self.n_bytes / 2**20:g} MB {self.ways}-way"
        same = self.simulated == self
        return told if same else f"{told}, as {self.simulated.n_bytes / 2**20:g} MB"


def outer(cpu: Path = CPU) -> tuple[Cache, Cache]:
    """The last two that hold data, which in most machines are a core's last own one and the one that cores share."""
    found = [_read(folder) for folder in cpu.glob("index*") if _text(folder, "type") != "Instruction"]
    known = sorted((cache for cache in found if cache.n_bytes and cache.ways and cache.line), key=lambda one: one.level)
    if len(known) < 2:
        raise HarnessError(f"the system does not state two levels of cache in '{cpu}'")
    return known[-2], known[-1]


def _read(folder: Path) -> Cache:
    size = _text(folder, "size") or "0K"
    level, ways, line = (
        int(_text(folder, name) or 0) for name in ("level", "ways_of_associativity", "coherency_line_size")
    )
    return Cache(level, int(size.removesuffix("K")) * 1024, ways, line)


def _text(folder: Path, name: str) -> str:
    """Empty where the system does not tell, as some virtual machines."""
    try:
        return (folder / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
