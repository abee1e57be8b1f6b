"""Reads little-endian binary files whose headers cannot be trusted."""

import struct
from pathlib import Path

from pyharness.errors import HarnessError


class BoundedReader:
    """Sequential reader that refuses to read, skip or allocate past the end of the file.

    ``kind`` names the expected format in error messages. Every failure is a `HarnessError` naming the file.
    """

    def __init__(self, path: Path, kind: str):
        self.path = Path(path)
        self.kind = kind
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise HarnessError(f"{path}: cannot read: {error.strerror}") from error
        self.size = self.path.stat().st_size

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    @property
    def offset(self) -> int:
        return self._file.tell()

    @property
    def remaining(self) -> int:
        return self.size - self.offset

    def take(self, count: int, what: str) -> bytes:
        self._require(count, what)
        return self._file.read(count)

    def skip(self, count: int, what: str) -> None:
        self._require(count, what)
        self._file.seek(count, 1)

    def unpack(self, layout: str, what: str) -> tuple:
        """Values of a `struct` layout without byte-order mark, e.g. ``"3I"``."""
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout), what))

    def text(self, count: int, what: str) -> str:
        try:
            return self.take(count, what).decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is not text") from None

    def error(self, reason: str) -> HarnessError:
        return HarnessError(f"{self.path}: not a usable {self.kind}: {reason}")

    def _require(self, count: int, what: str) -> None:
        if count < 0 or count > self.remaining:
            raise self.error(
                f"truncated or damaged: {what} needs {count} bytes at offset {self.offset}, {self.remaining} are left"
            )
