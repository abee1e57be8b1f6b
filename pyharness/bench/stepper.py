"""A decoder that is fed given tokens, one in each step.

Arms that decode freely choose different tokens, and different numbers of them. Fed with the same ones, they all do the
same steps: the same prompt, the same self-attention, the same movement of the speech. Nothing is sampled.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from pyharness.errors import HarnessError
from pyharness.native import Counters, Model, State, Times, ffi, read_counters, read_times
from pyharness.rules import Rule


class Fed(ABC):
    """A decoder behind an encoded clip. Any libwhisper will do."""

    model: Model

    def encode(self, samples: np.ndarray, threads: int) -> None:
        """samples: f32 [n], mono, 16 kHz; the first 30 s are encoded."""
        data = ffi.from_buffer("float[]", samples)
        if self._call("whisper_pcm_to_mel", data, len(samples), threads) or self._call("whisper_encode", 0, threads):
            raise HarnessError("the clip cannot be encoded")

    def decode(self, tokens: Sequence[int], n_past: int, threads: int) -> None:
        """One run of the decoder over the tokens that follow n_past others; and a second one, if the view is unsure."""
        self._n_run = len(tokens)
        if self._call("whisper_decode", list(tokens), self._n_run, n_past, threads):
            raise HarnessError("a step cannot be decoded")

    def best_text_token(self) -> int:
        """The most probable token behind the last run that is neither an end of text nor another special one."""
        n_vocab = self.model.n_vocab
        buffer = ffi.buffer(self._logits(), 4 * n_vocab * self._n_run)
        logits = np.frombuffer(buffer, np.float32).reshape(self._n_run, n_vocab)
        return int(np.argmax(logits[-1, : self.model.end_of_text]))

    def choose(self, prompt: list[int], n: int, threads: int) -> list[int]:
        """The n text tokens that are most probable one after the other."""
        self.decode(prompt, 0, threads)
        tokens = [self.best_text_token()]
        while len(tokens) < n:
            self.decode(tokens[-1:], len(prompt) + len(tokens) - 1, threads)
            tokens.append(self.best_text_token())
        return tokens

    def follow(self, prompt: list[int], tokens: list[int], threads: int) -> list[int]:
        """What each step finds most probable that is fed with one of the tokens, [n tokens]."""
        best = []
        self.decode(prompt, 0, threads)
        for i, token in enumerate(tokens):
            self.decode([token], len(prompt) + i, threads)
            best.append(self.best_text_token())
        return best

    @abstractmethod
    def _call(self, name: str, *args) -> int:
        """The function of this name, on the decoder's state: 0 = done."""

    @abstractmethod
    def _logits(self):
        """float * [tokens of the last run][n_vocab]"""


class Stepper(Fed, Model):
    """A model with a state inside, timed by whisper.cpp itself, which tells the times of such a state only. Stock has
    neither ``set_view`` nor ``counters`` nor the times of nodes.

    The time is upstream's own "decode time", which both builds take at the same two places, around one run of the
    decoder: building its graph, computing it, and what a view adds to both (moving the window, copying rows, tracking).
    Whether a step was sure is decided outside, from the logits: here by a softmax over the raw ones, which costs far
    more than what transcribing does at that place (the filters have made one anyway), and so would blur what is
    measured.
    """

    _init = "whisper_init_from_file_with_params"

    @property
    def model(self) -> Model:
        return self

    def set_view(self, rule: Rule) -> None:
        """Read by this rule from the next prompt on."""
        self.check_view(rule)  # has the reason if it is refused
        if self._lib.whisper_kv_view_set(self.handle, self._params_of(rule, None)) != 0:
            raise HarnessError(f"the view {rule.name} cannot be set: out of memory")

    def _call(self, name: str, *args) -> int:
        return getattr(self._lib, name)(self.handle, *args)

    def _logits(self):
        return self._lib.whisper_get_logits(self.handle)

    def reset(self) -> None:
        """Times and counters."""
        self._lib.whisper_reset_timings(self.handle)

    def run_ms(self) -> float:
        """Mean time of the runs over a single token since the last reset."""
        timings = self._lib.whisper_get_timings(self.handle)  # 20 bytes that upstream has no function to free
        return timings.decode_ms

    def counters(self) -> Counters:
        return read_counters(self._lib, self.handle, ffi.NULL)

    def time_nodes(self, on: bool) -> None:
        """Compute the decoder's graph node by node from now on, slower, to find what ``times`` tells."""
        self._lib.whisper_kv_view_time_nodes(self.handle, ffi.NULL, on)

    def times(self) -> Times:
        return read_times(self._lib, self.handle, ffi.NULL)

    @property
    def n_ctx(self) -> int:
        """Positions encoded."""
        return self._lib.whisper_n_audio_ctx(self.handle)

    @property
    def row_size(self) -> int:
        """Bytes of the keys and values of one position in one layer: f16, but for models of f32 weights."""
        return (
            2
            * self._lib.whisper_model_n_text_state(self.handle)
            * (2 if self._lib.whisper_model_ftype(self.handle) else 4)
        )


class StepState(Fed, State):
    """One of any number of states of a model."""

    def _call(self, name: str, *args) -> int:
        return getattr(self._lib, f"{name}_with_state")(self.model.handle, self.handle, *args)

    def _logits(self):
        return self._lib.whisper_get_logits_from_state(self.handle)
