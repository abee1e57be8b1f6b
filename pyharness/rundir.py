"""The run directory: what is written when, so that nothing is lost and nothing is mixed.

run.json           resolved configuration, before the first clip
utterances.jsonl   one line per clip and arm; the lines of a clip are written together
summary.json       at the end
report.html        at the end
"""

import hashlib
import json
import os
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
            self._write_config(config)
        except OSError as error:
            raise HarnessError(f"cannot write run directory '{folder}': {error.strerror}") from error
        self._lines = self._whole_clips(n_arms=len(identity["arms"]))

    def _write_config(self, config: dict) -> None:
        path = self.folder / "run.json"
        if path.exists():
            theirs = _read_json(path).get("identity")
            theirs = theirs if isinstance(theirs, dict) else {}
            differ = [name for name, digest in self._identity.items() if theirs.get(name) != digest]
            if differ:
                raise HarnessError(
                    f"'{self.folder}' holds a run with another configuration ({', '.join(differ)}): give another folder"
                )
            return
        if any(self.folder.iterdir()):
            raise HarnessError(f"'{self.folder}' is not empty and holds no run.json: give another --out")
        write_json(path, {"identity": self._identity, **config})

    @property
    def _utterances(self) -> Path:
        return self.folder / "utterances.jsonl"

    def _whole_clips(self, n_arms: int) -> list[dict]:
        """Rows of the clips that were written whole; what an interruption tore off is removed from the file."""
        if not self._utterances.exists():
            return []
        clips: dict[tuple, list[dict]] = {}
        for line in self._utterances.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            clips.setdefault(clip_key(row), []).append(row)
        rows = [row for clip in clips.values() if len(clip) == n_arms for row in clip]
        _replace(self._utterances, "".join(_line(row) for row in rows))
        return rows

    @property
    def rows(self) -> list[dict]:
        """Everything written so far, in the order in which it was written."""
        return self._lines

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
                f"run again with --out {self.folder} to continue"
            ) from error
        self._lines += rows

    def write_summary(self, summary: dict) -> None:
        write_json(self.folder / "summary.json", summary)


def read_utterances(folder: Path) -> list[dict]:
    """All rows of a finished run."""
    return [json.loads(line) for line in (folder / "utterances.jsonl").read_text(encoding="utf-8").splitlines()]


def clip_key(row: dict) -> tuple[str, str, str]:
    return row["model"], row["speech"], row["id"]


def write_json(path: Path, value: dict) -> None:
    """Whole or not at all."""
    _replace(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _line(row: dict) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise HarnessError(f"cannot read '{path}': {error}") from error


def _digest(value) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
