"""Which clips choose the settings and which confirm them: fixed by a hash, never by hand or by order."""

import hashlib
from pathlib import Path

from pyharness import paths
from pyharness.errors import HarnessError
from pyharness.rundir import write_json
from pyharness.speech import Clip

SPLITS = paths.REPOSITORY / "calibration" / "splits"
PARTS = ("validation", "held-out")
MIN_SPEAKERS = 4  # with fewer, a split by speaker would leave a part without speech


def split(clips: list[Clip], part: str, validation_share: float = 0.5) -> list[Clip]:
    """The clips of one part, in their order.

    Whole speakers fall into one part where at least MIN_SPEAKERS are known, else single clips do. The part of a unit
    depends on its name alone, so adding clips never moves others from one part to the other.
    """
    if part not in PARTS:
        raise ValueError(f"part must be one of {PARTS}, not {part!r}")
    by_speaker = all(clip.speaker for clip in clips) and len({clip.speaker for clip in clips}) >= MIN_SPEAKERS
    wanted = part == "validation"
    return [clip for clip in clips if (_place(clip.speaker if by_speaker else clip.id) < validation_share) == wanted]


def _place(name: str) -> float:
    """A number in [0, 1) that the name alone decides."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def write(path: Path, clips: list[Clip]) -> None:
    """Write the list of both parts, for the record."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"cannot write '{path}': {error.strerror}") from error
    write_json(path, {part: [clip.id for clip in split(clips, part)] for part in PARTS})
