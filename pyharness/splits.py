"""Which clips choose the settings and which confirm them: fixed by a hash, never by hand or by order."""

import hashlib
from pathlib import Path

from pyharness import paths
from pyharness.errors import HarnessError
from pyharness.rundir import write_json
from pyharness.speech import Clip

SPLITS = paths.REPOSITORY / "calibration" / "splits"
PARTS = ("validation", "held-out")
MIN_CLUSTERS = 8  # with fewer, a split by speaker would often leave a part without speech


def split(clips: list[Clip], part: str, validation_share: float = 0.5) -> list[Clip]:
    """The clips of one part, in their order.

    Whole speakers (or recordings, or clips of which neither is known) fall into one part, if there are at least
    MIN_CLUSTERS of them; else single clips do. The part depends on the name alone, so that adding clips moves others
    only where it adds the speaker who makes a split by speaker possible.
    """
    if part not in PARTS:
        raise ValueError(f"part must be one of {PARTS}, not {part!r}")
    by_cluster = len({clip.cluster for clip in clips}) >= MIN_CLUSTERS
    wanted = part == "validation"
    return [clip for clip in clips if (_place(clip.cluster if by_cluster else clip.id) < validation_share) == wanted]


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
