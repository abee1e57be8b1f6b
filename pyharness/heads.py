"""Which heads follow the speech, and which positions are sinks of the model whatever the clip.

Both are read off the attention of full steps. They make padsink-track work for models without a preset: fine-tuned,
distilled, unknown ones.

Score of a head, per clip: c_t is its centre at step t, the position of its largest attention among the audio. Over the
steps of the clip,

    score = share * (forward - backward) / (forward + backward) * min(1, forward / n_audio)

with ``share`` the mean attention on the audio, ``forward`` and ``backward`` the sums of the centre's moves in each
direction: 1 for a head that looks at the audio only and walks through it once, 0 for one that stands still or jumps to
and fro. A head's score is the mean over clips of at least MIN_STEPS steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pyharness import audio, rules
from pyharness.errors import HarnessError
from pyharness.native import Decoding, Model, Step
from pyharness.speech import Clip

MIN_STEPS = 4  # shorter clips say nothing about movement
HEAD_SHARE = 0.5  # heads of at least this share of the best score are alignment heads ...
MAX_HEADS = 10  # ... but no more than these


@dataclass
class Observer:
    """Sums up the attention of the clips it is shown."""

    n_ctx: int = rules.N_CTX
    scores: list[np.ndarray] = field(default_factory=list)  # each [n_layer, n_head]
    first_mass: np.ndarray | None = None  # [n_ctx] sum over clips, where the position is padding
    n_padding: np.ndarray | None = None  # [n_ctx] clips in which the position is padding
    _centres: list[np.ndarray] = field(default_factory=list)
    _shares: list[np.ndarray] = field(default_factory=list)
    _n_audio: int = 0

    def begin(self) -> None:
        self._centres, self._shares = [], []

    def see(self, step: Step) -> None:
        """One run of the decoder over the full cache."""
        self._n_audio = step.n_audio
        if step.kind == "prompt":
            self._see_first(step)
        on_audio = step.mass[:, :, : step.n_audio]
        self._centres.append(on_audio.argmax(axis=2))
        self._shares.append(on_audio.sum(axis=2))

    def _see_first(self, step: Step) -> None:
        if self.first_mass is None:
            self.first_mass, self.n_padding = np.zeros(self.n_ctx), np.zeros(self.n_ctx, int)
        self.first_mass[step.n_audio :] += step.mass.mean(axis=(0, 1))[step.n_audio :]
        self.n_padding[step.n_audio :] += 1

    def end(self) -> None:
        if len(self._centres) > MIN_STEPS:
            self.scores.append(score(np.array(self._centres), np.array(self._shares), self._n_audio))


def score(centres: np.ndarray, shares: np.ndarray, n_audio: int) -> np.ndarray:
    """Score of each head on one clip, [n_layer, n_head]; ``centres`` and ``shares``: [n_steps, n_layer, n_head]."""
    moves = np.diff(centres, axis=0)
    forward, backward = moves.clip(min=0).sum(axis=0), (-moves).clip(min=0).sum(axis=0)
    direction = (forward - backward) / np.maximum(forward + backward, 1)
    return shares.mean(axis=0) * direction.clip(min=0) * np.minimum(1, forward / n_audio)


@dataclass(frozen=True)
class Found:
    heads: list[tuple[int, int, float]]  # layer, head, score; best first
    sinks: list[tuple[int, float]]  # position, mean first-step mass; strongest first
    n_clips: int


def find(model_path: Path, clips: Iterable[Clip], n_sinks: int = 64) -> Found:
    """Decode the clips over the full cache and rank heads and sinks. HarnessError if no clip is long enough."""
    observer = Observer()
    with Model(model_path) as model, model.state() as state:
        state.set_view(rules.Full())
        state.on_step(observer.see)
        for clip in clips:
            samples = audio.load(clip.audio)
            observer.begin()
            state.transcribe(samples, Decoding(language=clip.language, max_tokens=int(8 + 8 * len(samples) / 16000)))
            observer.end()
        state.on_step(None)
    if not observer.scores:
        raise HarnessError(f"no clip gave {MIN_STEPS} steps: give longer speech")
    return Found(alignment_heads(np.mean(observer.scores, axis=0)), _sinks(observer, n_sinks), len(observer.scores))


def alignment_heads(scores: np.ndarray) -> list[tuple[int, int, float]]:
    """The heads that stand out, best first."""
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
