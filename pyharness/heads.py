"""Which heads follow the speech, and which positions are sinks of the model whatever the clip.

Both are read off the attention of full steps. They make padsink-track work for models without a preset: fine-tuned,
distilled, unknown ones.

Score of a head, from -1 to 1: how much of its attention on the audio lies where the heads together say the speech is,
beyond what it would put there without moving. For each clip, a[t, h, i] is the share of head h at step t on the audio
positions within NEAR of i. The speech is at the path that never steps back and collects the largest sum of
sum_h w[h] a[t, h, path[t]]; then

    score[h] = mean_t a[t, h, path[t]] - mean_t mean_s a[s, h, path[t]]        w[h] = max(0, score[h])^2

and so on from equal weights for ROUNDS rounds: heads that agree win, those that stand still or wander lose, and no
transcript with times is needed. Only the upper half of the layers says where the speech is: lower heads can be as
sharp, but some look back at the token just read instead of the one to come. A head's score is the mean over the steps
of all clips of at least MIN_STEPS.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyharness import audio, rules
from pyharness.errors import HarnessError
from pyharness.grid import Limits
from pyharness.native import Decoding, Model, Step
from pyharness.rules import ModelLists
from pyharness.speech import Clip

MIN_STEPS = 5  # shorter clips say nothing about movement
NEAR = 3  # positions (20 ms each) to either side of the path
ROUNDS = 4
HEAD_SHARE = 0.25  # heads of at least this share of the best score are alignment heads ...
MAX_HEADS = 10  # ... but no more than these


@dataclass
class Observer:
    """Sums up the attention of the clips it is shown."""

    n_ctx: int = rules.N_CTX
    scores: list[np.ndarray] = field(default_factory=list)  # each [n_layer, n_head], one per clip
    n_steps: list[int] = field(default_factory=list)  # of the same clips
    first_mass: np.ndarray | None = None  # [n_ctx] sum over clips, where the position is padding
    n_padding: np.ndarray | None = None  # [n_ctx] clips in which the position is padding
    _shares: list[np.ndarray] = field(default_factory=list)  # each [n_layer, n_head, n_audio], one per step

    def begin(self) -> None:
        self._shares = []

    def see(self, step: Step) -> None:
        """One run of the decoder over the full cache."""
        if step.kind == "prompt":
            self._see_first(step)
        self._shares.append(shares_near(step.mass[:, :, : step.n_audio]))

    def _see_first(self, step: Step) -> None:
        if self.first_mass is None:
            self.first_mass, self.n_padding = np.zeros(self.n_ctx), np.zeros(self.n_ctx, int)
        self.first_mass[step.n_audio :] += step.mass.mean(axis=(0, 1))[step.n_audio :]
        self.n_padding[step.n_audio :] += 1

    def end(self) -> None:
        if len(self._shares) >= MIN_STEPS:
            self.scores.append(score(np.array(self._shares)))
            self.n_steps.append(len(self._shares))


def score(shares: np.ndarray) -> np.ndarray:
    """Score of each head on one clip, [n_layer, n_head]; ``shares``: [n_steps, n_layer, n_head, n_audio]."""
    n_steps, n_layer, n_head, n_audio = shares.shape
    shares = shares.reshape(n_steps, n_layer * n_head, n_audio)
    standing = shares.mean(axis=0)  # [n_heads, n_audio]
    upper = n_layer // 2 * n_head
    scores = np.ones(n_layer * n_head)
    for _ in range(ROUNDS):
        together = np.tensordot(scores[upper:].clip(min=0) ** 2, shares[:, upper:], axes=(0, 1))  # [n_steps, n_audio]
        path = forward_path(together)
        scores = shares[np.arange(n_steps), :, path].mean(axis=0) - standing[:, path].mean(axis=1)
    return scores.reshape(n_layer, n_head)


def shares_near(attention: np.ndarray) -> np.ndarray:
    """Share of the attention that lies within NEAR of each position of the last axis, the audio."""
    total = np.pad(attention.cumsum(axis=-1), [(0, 0)] * (attention.ndim - 1) + [(1, 0)])
    n = attention.shape[-1]
    high, low = np.minimum(np.arange(n) + NEAR + 1, n), np.maximum(np.arange(n) - NEAR, 0)
    return (total[..., high] - total[..., low]) / np.maximum(total[..., -1:], np.finfo(np.float32).tiny)


def forward_path(gain: np.ndarray) -> np.ndarray:
    """The positions p[0] <= p[1] <= ... of largest sum of gain[t, p[t]]; ``gain``: [n_steps, n_positions]."""
    best = [gain[0]]  # best[t][i]: largest sum of a path that ends at i
    for row in gain[1:]:
        best.append(np.maximum.accumulate(best[-1]) + row)
    path = [int(best[-1].argmax())]
    for sums in reversed(best[:-1]):
        path.append(int(sums[: path[-1] + 1].argmax()))
    return np.array(path[::-1])


@dataclass(frozen=True)
class Found:
    heads: list[tuple[int, int, float]]  # layer, head, score; best first; empty if every clip was too short
    preset: list[tuple[int, int]]  # layer, head: what padsink-track uses without a list; empty for unknown shapes
    sinks: list[tuple[int, float]]  # position, mean first-step mass; strongest first
    n_clips: int  # that the heads were scored on

    @property
    def lists(self) -> ModelLists:
        """What a profile carries. Upstream's preset counts for more than what few clips show."""
        heads = self.preset or [(layer, head) for layer, head, _ in self.heads]
        return ModelLists(tuple(heads), tuple(position for position, _ in self.sinks))


def find(model_path: Path, clips: Iterable[Clip], n_sinks: int = 128) -> Found:
    """Decode the clips over the full cache and rank heads and sinks.

    Clips that cannot be decoded are left out. HarnessError if none can, or if no heads are known then.
    """
    observer, failed = Observer(), None
    with Model(model_path) as model, model.state() as state:
        state.set_view(rules.Full())
        state.on_step(observer.see)
        for clip in clips:
            try:
                samples = audio.load(clip.audio)
                observer.begin()
                max_tokens = Limits().max_tokens(len(samples) / audio.SAMPLE_RATE)
                state.transcribe(samples, Decoding(language=clip.language, max_tokens=max_tokens))
                observer.end()
            except HarnessError as error:
                failed = error
        state.on_step(None)
        preset = state.alignment_heads()
    if observer.first_mass is None:
        raise failed or HarnessError("there are no clips to find sinks in")
    if not observer.scores and not preset:
        raise HarnessError(
            f"no alignment heads are known for a model of this shape, and no clip gave {MIN_STEPS} steps to find them: "
            "give longer speech"
        )
    return Found(alignment_heads(observer), preset, _sinks(observer, n_sinks), len(observer.scores))


def alignment_heads(observer: Observer) -> list[tuple[int, int, float]]:
    """The heads that stand out, best first."""
    if not observer.scores:
        return []
    scores = np.average(observer.scores, axis=0, weights=observer.n_steps)
    order = np.argsort(-scores, axis=None, kind="stable")[:MAX_HEADS]
    best = scores.flat[order[0]]
    heads = (np.unravel_index(i, scores.shape) for i in order if scores.flat[i] >= HEAD_SHARE * best)
    return [(int(layer), int(head), float(scores[layer, head])) for layer, head in heads]


def _sinks(observer: Observer, n: int) -> list[tuple[int, float]]:
    """Positions of the largest mean first-step mass, over the clips (at least half) in which they are padding."""
    enough = observer.n_padding * 2 >= observer.n_padding.max()
    mean = np.where(enough, observer.first_mass / np.maximum(observer.n_padding, 1), 0.0)
    order = np.argsort(-mean, kind="stable")[:n]
    return [(int(position), float(mean[position])) for position in order if mean[position] > 0]
