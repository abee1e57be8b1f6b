"""Whether the texts of an arm are worse than those of stock, which is the reference where both are benched."""

from collections.abc import Sequence

from pyharness import statistics, sweep
from pyharness.bench.clips import Scored
from pyharness.speech import Clip

NOT_COMPARED = dict.fromkeys(("difference", "bound_upper", "verdict", "n_clusters", "clips_needed"))  # with stock


def compare(mine: Sequence[Scored], stock: Sequence[Scored], clips: Sequence[Clip]) -> dict:
    """Columns of a row, of these clips under both; few clips are Inconclusive. Those of one speaker stay together, as
    in a sweep."""
    scored = [i for i, one in enumerate(stock) if one.words]
    if not scored:
        return NOT_COMPARED
    kind = sweep.clusters_are([{"cluster": clip.cluster, "speaker": clip.speaker} for clip in clips])
    verdict = statistics.non_inferiority(
        [mine[i].errors for i in scored],
        [stock[i].errors for i in scored],
        [stock[i].words for i in scored],
        clusters=None if kind == "clip" else [clips[i].cluster for i in scored],
    )
    return {key: getattr(verdict, key) for key in NOT_COMPARED}
