"""Bytes that a decoder step cannot do without, by the model's file and the library's counters.

What a measurement is compared with; and the source where nothing can be measured. Activations and the rows of
self-attention, which stay in the inner caches, are not in it.
"""

import re
from pathlib import Path

from pyharness import ggml_file
from pyharness.bench.decode_steps import Build, Work
from pyharness.bench.libraries import Arm
from pyharness.bench.step import Pass
from pyharness.paths import REPOSITORY

NOT_IN_A_STEP = re.compile(r"cross_attn\.(key|value)\.|positional_embedding")


class Counted:
    name = "counted"
    default_build = REPOSITORY / "build"
    rounds = 1

    def __init__(self, build: Build, _folder: Path):
        self.files = build.files

    def read(self, arm: Arm, work: Work) -> dict[str, float]:
        return {"none": work.counted[arm] * len(work.tokens)}


def weights(model: Path) -> int:
    """Of the decoder's tensors, but for those that make the cross cache and the table of which a step reads one row."""
    tensors = ggml_file.read_tensors(model)
    return sum(one.n_bytes for one in tensors if one.name.startswith("decoder.") and not NOT_IN_A_STEP.search(one.name))


def cross(one: Pass, n_layer: int) -> float:
    """Of the cross cache: rows that are attended to, and rows that are copied into a ring, which reads them, too."""
    row = one.bytes_read / (one.positions * n_layer)
    return one.bytes_read + one.rows_copied * row


def runs(one: Pass, n_steps: int) -> float:
    """Runs of the decoder for each step."""
    return 1 + one.reexecuted / n_steps
