"""The program whose memory is watched: ggml-patch/bench/decode-steps.c, compiled where it is needed.

Python itself would hide the steps behind its own traffic, and takes minutes to start in a simulator.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pyharness import models, paths
from pyharness.bench.libraries import Arm
from pyharness.errors import HarnessError

PATCH = paths.REPOSITORY / "ggml-patch"


@dataclass(frozen=True)
class Build:
    """Where build.sh puts our library, and next to it the stock one with the same kernels."""

    folder: Path

    @property
    def files(self) -> dict[str, Path]:
        """HarnessError unless both were built."""
        folders = {"stock": self.folder.with_name(f"{self.folder.name}-stock"), "ours": self.folder}
        files = {name: folder / "lib" / "libwhisper.so" for name, folder in folders.items()}
        for file in files.values():
            if not file.is_file():
                raise HarnessError(f"no library at '{file}': run ./build.sh stock or ./build.sh --portable stock")
        return files


@dataclass(frozen=True)
class Work:
    """What every arm does, and what it should cost."""

    model: Path
    samples: bytes  # f32, mono, 16 kHz
    prompt: list[int]
    tokens: list[int]  # one for each step
    counted: dict[Arm, float]  # bytes that each of these cannot do without


class DecodeSteps:
    """The program, in a folder of its own; ``options`` go to the compiler."""

    def __init__(self, build: Build, folder: Path, *options: str):
        self.files = build.files
        self._folder = folder
        self._program = folder / "decode-steps"
        ours, upstream = self.files["ours"].parent, models.upstream_source()
        includes = (PATCH / "include", upstream / "include", upstream / "ggml" / "include")
        command = [
            *(executable("cc"), *options, "-O1", "-o", self._program, PATCH / "bench" / "decode-steps.c"),
            *(f"-I{path}" for path in includes),
            *(f"-L{ours}", "-lwhisper", "-lggml-base"),
        ]
        compiled = output_of(command)
        if compiled.returncode:
            raise HarnessError(f"decode-steps.c does not compile: {first_error(compiled.stderr)}")

    def command(self, arm: Arm, work: Work) -> list:
        """Of a run with what the encoder left in the cache: the first one of all computes it."""
        samples, cross = self._folder / "samples", self._folder / "cross"
        rule = ("stock", 0) if arm.rule is None else (arm.rule.name, getattr(arm.rule, "budget", 1))
        command = [
            *(self._program, work.model, samples, cross, *rule),
            *(len(work.prompt), *work.prompt, *work.tokens),
        ]
        if not cross.exists():
            samples.write_bytes(work.samples)
            self.run(command, arm)
        return command

    def run(self, command: list, arm: Arm, more: dict[str, str] | None = None, fds: tuple[int, ...] = ()) -> None:
        """HarnessError with the reason if it fails. ``more``: of environment; ``fds``: that it inherits."""
        libraries = f"{self.files[arm.library].parent}:{self.files['ours'].parent}"  # stock takes ggml from ours
        done = output_of(command, {**(more or {}), "LD_LIBRARY_PATH": libraries}, fds)
        if "nrecognised instruction" in done.stderr:
            raise HarnessError(
                f"valgrind does not know an instruction of '{self.files[arm.library]}': give --build one without "
                "AVX-512, as ./build.sh --portable stock makes it"
            )
        if done.returncode:
            raise HarnessError(f"{Path(command[0]).name} failed with {done.returncode}: {first_error(done.stderr)}")


def executable(name: str) -> str:
    """Its path. HarnessError if it is not installed."""
    path = shutil.which(name)
    if not path:
        raise HarnessError(f"'{name}' is not installed")
    return path


def output_of(
    command: list, more: dict[str, str] | None = None, fds: tuple[int, ...] = ()
) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)),
        env={**os.environ, "LC_ALL": "C", **(more or {})},
        pass_fds=fds,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def first_error(stderr: str) -> str:
    """The line that says what is wrong, else the last one."""
    lines = stderr.strip().splitlines() or ["it does not say why"]
    return next((line for line in lines if "error:" in line or line.startswith("decode-steps:")), lines[-1])
