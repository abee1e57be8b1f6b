"""Files from Debian packages, without root and without touching the system's state.

apt-get downloads, dpkg-deb unpacks. The system's package lists are asked first; if they do not know the package
(a fresh container has none), private lists are fetched into the folder of the download.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from pyharness.errors import HarnessError


def require_tools(subject: str, instead: str) -> None:
    """Raise unless apt-get and dpkg-deb are there: "``subject`` need apt-get, ...: ``instead``"."""
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise HarnessError(f"{subject} need {' and '.join(missing)}, which this system lacks: {instead}")


def download(packages: list[str], folder: Path) -> dict[str, Path]:
    """The .deb file of each package, and of nothing it depends on."""
    _apt_get(["download", *packages], folder, " ".join(packages))
    return {package: _archive(package, folder) for package in packages}


def download_program(package: str, folder: Path) -> list[Path]:
    """The .deb files of a package and of every dependency that the system lacks."""
    install = ["-y", "--no-install-recommends", "--download-only", "install", package]
    # what the system has is not downloaded again: a second libc would not fit the system's loader
    _apt_get(["-o", "Dir::State::status=/var/lib/dpkg/status", *install], folder, package)
    archives = _archives_folder(folder)
    _archive(package, archives)
    return sorted(archives.glob("*.deb"))


def unpack(archives: Iterable[Path], folder: Path) -> Path:
    """The folder below ``folder`` that now holds the files of all archives."""
    root = folder / "root"
    for archive in archives:
        _run(["dpkg-deb", "-x", str(archive), str(root)], folder, f"unpacking {archive.name}")
    return root


def version(archive: Path) -> str:
    """``1.6.1-1`` from ``NAME_1.6.1-1_all.deb``; apt writes the colon of an epoch as %3a."""
    return archive.name.split("_")[1].replace("%3a", ":")


def _apt_get(arguments: list[str], folder: Path, what: str) -> None:
    """Download with apt-get inside ``folder``, by the system's package lists or else by private ones."""
    _archives_folder(folder).joinpath("partial").mkdir(parents=True, exist_ok=True)
    rootless = ["APT::Sandbox::User=root", "Debug::NoLocking=1", f"Dir::Cache={folder}/cache"]
    command = [option for setting in rootless for option in ("-o", setting)] + arguments
    with Console(stderr=True).status(f"downloading {what}"):
        if _attempt(["apt-get", *command], folder, "download") is None:
            return
        private = ["apt-get", "-c", str(_private_apt(folder))]
        updated = _attempt([*private, "update"], folder, "updating the private package lists")
        downloaded = _attempt([*private, *command], folder, f"downloading {what}")
    if downloaded:
        problems = "; ".join(str(problem) for problem in (updated, downloaded) if problem)
        raise HarnessError(
            f"{problems}. Check the network and that apt's sources name a Debian or Ubuntu "
            "mirror with the component main (Ubuntu: universe)"
        ) from downloaded


def _private_apt(folder: Path) -> Path:
    """Configuration that keeps all of apt's state in ``folder``; sources, keys and proxy stay the system's.

    The hooks are cleared because some systems use them to delete from the system's cache after an update.
    """
    (folder / "state/lists/partial").mkdir(parents=True, exist_ok=True)
    (folder / "state/status").touch()
    configuration = folder / "apt.conf"
    configuration.write_text(
        f'Dir::State "{folder}/state";\n'
        f'Dir::State::Lists "{folder}/state/lists";\n'
        f'Dir::State::status "{folder}/state/status";\n'
        f'Dir::Cache "{folder}/cache";\n'
        'Debug::NoLocking "1";\n'
        'APT::Sandbox::User "root";\n'
        "#clear APT::Update::Pre-Invoke;\n"
        "#clear APT::Update::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke-Success;\n"
    )
    return configuration


def _archives_folder(folder: Path) -> Path:
    """Where ``apt-get install --download-only`` leaves its files."""
    return folder / "cache/archives"


def _archive(package: str, folder: Path) -> Path:
    found = sorted(folder.glob(f"{package}_*.deb"))
    if not found:
        raise HarnessError(f"apt-get reported success but left no file {package}_*.deb: try again")
    return found[-1]


def _attempt(command: list[str], folder: Path, step: str) -> HarnessError | None:
    """The failure, if the command failed."""
    try:
        _run(command, folder, step)
    except HarnessError as error:
        return error
    return None


def _run(command: list[str], folder: Path, step: str) -> None:
    """Run a tool inside ``folder``; a failure names the step and the tool's last line."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise HarnessError(f"{step} failed: cannot start {command[0]}: {error.strerror}") from error
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise HarnessError(f"{step} failed: {lines[-1]}")
