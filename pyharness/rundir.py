"""The run directory: what is written when, so that nothing is lost and nothing is mixed.

run.json           resolved configuration, before the first clip
utterances.jsonl   one line per clip and arm; the lines of a clip are written together
summary.json       at the end
report.html        at the end
.lock              while a process writes the run
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import socket
from pathlib import Path

from pyharness.errors import HarnessError


class RunDirectory:
    """Opens ``folder`` for the run described by ``config``; continues one that was interrupted.

    ``identity`` names everything that decides the results: a folder made with another one is refused.
    """

    def __init__(self, folder: Path, config: dict, identity: dict):
        self.folder = folder
        self._identity = {name: _digest(value) for name, value in identity.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._check_empty()
            self._lock = _lock(folder / ".lock")
        except OSError as error:
            raise HarnessError(f"cannot write run directory '{folder}': {error.strerror}") from error
        try:
            self._write_config(config)
            self._lines = self._whole_clips(n_arms=len(identity["arms"]))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let other processes write the run."""
        with contextlib.suppress(OSError):
            (self.folder / ".lock").unlink()
        os.close(self._lock)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _check_empty(self) -> None:
        names = {path.name for path in self.folder.iterdir()}
        if names - {".lock", "run.json.part"} and "run.json" not in names:
            raise HarnessError(f"'{self.folder}' is not empty and holds no run.json: give another folder")

    def _write_config(self, config: dict) -> None:
        path = self.folder / "run.json"
        if path.exists():
            made = read_config(self.folder)
            theirs = made.get("identity")
            theirs = theirs if isinstance(theirs, dict) else {}
            differ = [name for name, digest in self._identity.items() if theirs.get(name) != digest]
            if differ:
                raise HarnessError(
                    f"'{self.folder}' holds a run with another configuration ({', '.join(differ)}): "
                    f"give its options again, or another folder. It was made by: {made.get('command')}"
                )
            return
        write_json(path, {"identity": self._identity, **config})

    @property
    def _utterances(self) -> Path:
        return self.folder / "utterances.jsonl"

    def _whole_clips(self, n_arms: int) -> list[dict]:
        """Rows of the clips that were written whole and without error; others are removed from the file, to be tried
        again."""
        if not self._utterances.exists():
            return []
        clips: dict[tuple, list[dict]] = {}
        for line in self._utterances.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            clips.setdefault(clip_key(row), []).append(row)
        whole = [clip for clip in clips.values() if len(clip) == n_arms and not any("error" in row for row in clip)]
        rows = [row for clip in whole for row in clip]
        write_text(self._utterances, "".join(_line(row) for row in rows))
        return rows

    @property
    def rows(self) -> list[dict]:
        """Everything written so far, in the order in which it was written."""
        return self._lines

    @property
    def date(self) -> str:
        """When the run was begun."""
        return str(read_config(self.folder).get("date", "unknown date"))

    def done(self) -> set[tuple]:
        return {clip_key(row) for row in self._lines}

    def append(self, rows: list[dict]) -> None:
        """Write the rows of one clip. HarnessError if the disk does not take them; those before stay whole."""
        try:
            with self._utterances.open("a", encoding="utf-8") as file:
                file.write("".join(_line(row) for row in rows))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise HarnessError(
                f"cannot write '{self._utterances}': {error.strerror}. What was written before is kept: "
                "run the same command again to continue"
            ) from error
        self._lines += rows

    def write_summary(self, summary: dict) -> None:
        write_json(self.folder / "summary.json", summary)


def read_config(folder: Path) -> dict:
    """What run.json holds."""
    path = folder / "run.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HarnessError(f"cannot read '{path}': {error}") from error


def read_utterances(folder: Path) -> list[dict]:
    """All rows of a finished run."""
    return [json.loads(line) for line in (folder / "utterances.jsonl").read_bytes().splitlines()]


def clip_key(row: dict) -> tuple[str, str, str]:
    return row["model"], row["speech"], row["id"]


def is_run(folder: Path) -> bool:
    return (folder / "run.json").is_file()


def write_json(path: Path, value: dict) -> None:
    write_text(path, json_text(value) + "\n")


def json_text(value: dict) -> str:
    """Indented, but lists of numbers each on one line."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    return re.sub(r"\[[\s\d,\[\]]+\]", lambda found: " ".join(found[0].split()), text)


def write_text(path: Path, text: str) -> None:
    """Whole or not at all. HarnessError if the disk does not take it."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise HarnessError(f"cannot write '{path}': {error.strerror}") from error


def _lock(path: Path) -> int:
    """A lock that ends with its process, however that ends. HarnessError names the process that has it."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 200, 0).decode("utf-8", "replace") or "another process"
            os.close(lock)
            raise HarnessError(
                f"'{path.parent}' is being written by {holder}: wait for it, or give another folder"
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(lock).st_ino:
                os.truncate(lock, 0)
                os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
                return lock
        os.close(lock)  # its holder has just ended and removed the file: try again with a new one


def _line(row: dict) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _digest(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
