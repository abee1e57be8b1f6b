"""Where and with what a bench was run: the ``env`` of its output."""

import datetime
import os
import shlex
import sys
from pathlib import Path

from pyharness import native, sweep
from pyharness.bench.libraries import Library

GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def environment(bench: str, libraries: dict[str, Library], threads: tuple[int, ...]) -> dict:
    """``bench``: its name, by which a report finds what its rows show."""
    return {
        "bench": bench,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["pyharness", *sys.argv[1:]]),
        "cpu": sweep.cpu_name(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),  # mean of running processes in the minute before
        "governor": _governor(),
        "threads": list(threads),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),  # None = the OpenMP library's own
        "builds": {name: library.call(native.build_info) for name, library in libraries.items()},
    }


def build_names(env: dict) -> dict[str, str]:
    """Of each library, and of what else was compared, as tables show it."""
    return {name: build_name(build) for name, build in env["builds"].items()}


def build_name(build: dict) -> str:
    """Of a libwhisper, or of packages {name: version}."""
    if "sha256" in build:
        return f"libwhisper {build['sha256'][:8]}"
    return ", ".join(f"{package} {version}" for package, version in build.items())


def _governor() -> str | None:
    """None: the system does not tell, as in most virtual machines."""
    try:
        return GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return None
