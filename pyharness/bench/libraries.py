"""What a bench compares, each in a process of its own, of which never two work at once."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyharness import native, paths
from pyharness.errors import HarnessError
from pyharness.rules import Rule
from pyharness.runner import Worker

STOCK_PATH = paths.REPOSITORY / "build-stock" / "lib" / "libwhisper.so"
TIMEOUT = 1800  # seconds without an answer: far more than a pass of a large model takes on a slow core


@dataclass(frozen=True)
class Arm:
    """A rule of our build, or a build that is asked for no rule."""

    rule: Rule | None
    library: str = "ours"
    flash_attention: bool = True  # a rule needs it

    @property
    def name(self) -> str:
        if self.rule:
            return self.rule.plain.brief()
        return self.library if self.flash_attention else f"{self.library} flash attention off"

    def columns(self) -> dict:
        """What tells the arm from others in a row."""
        plain = self.rule.plain if self.rule else None
        return {
            "arm": self.name,
            "rule": plain.name if plain else None,
            "budget": getattr(plain, "budget", None),
            "tau": getattr(plain, "tau", None),
        }


STOCK = Arm(None, "stock")  # upstream with patch 0001, which knows no rules


@dataclass(frozen=True)
class Call:
    """What a process is asked to do: function(*args); both must be picklable."""

    function: Callable
    args: tuple
    timeout: float = TIMEOUT


def answer(call: Call) -> tuple:
    """In the process: (result, None), or (None, why there is none)."""
    try:
        return call.function(*call.args), None
    except HarnessError as error:
        return None, error.message
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


class Process:
    """A process that is asked to do one thing after the other. It waits for threads as any program does
    (OMP_WAIT_POLICY is left alone): those that have nothing to do spin for milliseconds, then sleep."""

    def __init__(self, name: str, environment: Mapping[str, str]):
        self.name = name
        self._worker = Worker(answer, {**os.environ, **environment})

    def call(self, function: Callable, *args):
        """function(*args) of the process, which has nothing else to do: this waits for the result."""
        call = Call(function, args)
        self._worker.give(call)
        answered = self._worker.result(call.timeout)
        if answered is None:
            raise HarnessError(f"the process of {self.name} died, or gave no answer for {call.timeout} s")
        result, error = answered
        if error:
            raise HarnessError(f"{self.name}: {error}")
        return result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._worker.end()


class Library(Process):
    """The process of a libwhisper."""

    def __init__(self, name: str, path: Path):
        super().__init__(name, {"PADSINK_LIB": str(path)})


def peak_mb() -> float:
    """In the process: the most memory that it had resident, MB.

    Not getrusage's ru_maxrss, which a process inherits: it is never less than what the parent had resident.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024 / 1e6


def check() -> None:
    """HarnessError unless both libraries were built."""
    native.library_path()
    if not STOCK_PATH.is_file():
        raise HarnessError(f"no stock library at '{STOCK_PATH}' to compare with: run ./build.sh stock")


def start(name: str) -> Library:
    """ "stock" or "ours"."""
    return Library(name, {"stock": STOCK_PATH, "ours": native.library_path()}[name])


@contextlib.contextmanager
def running(files: Mapping[str, Path]) -> Iterator[dict[str, Library]]:
    """The libraries in these files, by their names."""
    with contextlib.ExitStack() as stack:
        yield {name: stack.enter_context(Library(name, file)) for name, file in files.items()}


@contextlib.contextmanager
def both(others: Mapping[str, Path] | None = None) -> Iterator[dict[str, Library]]:
    """ "stock" and "ours", running, and other builds by their names."""
    check()
    with running({"stock": STOCK_PATH, "ours": native.library_path(), **(others or {})}) as libraries:
        yield libraries
