"""The libraries that a bench compares, each in a process of its own, of which never two work at once."""

import contextlib
import os
from collections.abc import Callable, Iterator
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
    """A rule of our build, or stock."""

    rule: Rule | None  # None = stock: upstream with patch 0001, which knows no rules

    @property
    def name(self) -> str:
        return self.rule.plain.brief() if self.rule else "stock"

    @property
    def library(self) -> str:
        return "ours" if self.rule else "stock"

    def columns(self) -> dict:
        """What tells the arm from others in a row."""
        plain = self.rule.plain if self.rule else None
        return {
            "arm": self.name,
            "rule": plain.name if plain else None,
            "budget": getattr(plain, "budget", None),
            "tau": getattr(plain, "tau", None),
        }


STOCK = Arm(None)


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


class Library:
    """A libwhisper in a process of its own. It waits for threads as it does in any program (OMP_WAIT_POLICY is left
    alone): those of a process that has nothing to do spin for milliseconds, then sleep."""

    def __init__(self, name: str, path: Path):
        self.name = name
        self._worker = Worker(answer, {**os.environ, "PADSINK_LIB": str(path)})

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


def check() -> None:
    """HarnessError unless both libraries were built."""
    native.library_path()
    if not STOCK_PATH.is_file():
        raise HarnessError(f"no stock library at '{STOCK_PATH}' to compare with: run ./build.sh stock")


@contextlib.contextmanager
def both() -> Iterator[dict[str, Library]]:
    """ "stock" and "ours", running."""
    check()
    with Library("stock", STOCK_PATH) as stock, Library("ours", native.library_path()) as ours:
        yield {"stock": stock, "ours": ours}
