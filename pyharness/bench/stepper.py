"""A model whose decoder is fed given tokens, one in each step, and timed by whisper.cpp itself.

Arms that decode freely choose different tokens, and different numbers of them. Fed with the same ones, they all do the
same steps: the same prompt, the same self-attention, the same movement of the speech. Nothing is sampled.

The time is upstream's own "decode time", which both builds take at the same two places, around one run of the decoder:
building its graph, computing it, and what a view adds to both (moving the window, copying rows, tracking). Whether
a step was sure is decided outside, from the logits: here by a softmax over the raw ones, which costs far more than
what transcribing does at that place (the filters have made one anyway), and so would blur what is measured.
"""

from collections.abc import Sequence

import numpy as np

from pyharness.errors import HarnessError
from pyharness.native import Counters, Model, Times, ffi, read_counters, read_times
from pyharness.rules import Rule


class Stepper(Model):
    """A model with a state inside: upstream tells the times of such a state only. Any libwhisper will do, but for
    ``set_view``, ``counters`` and the times of nodes, which stock does not have."""

    _init = "whisper_init_from_file_with_params"

    def set_view(self, rule: Rule) -> None:
        """Read by this rule from the next prompt on."""
        self.check_view(rule)  # has the reason if it is refused
        if self._lib.whisper_kv_view_set(self.handle, self._params_of(rule, None)) != 0:
            raise HarnessError(f"the view {rule.name} cannot be set: out of memory")

    def encode(self, samples: np.ndarray, threads: int) -> None:
        """samples: f32 [n], mono, 16 kHz; the first 30 s are encoded."""
        data = ffi.from_buffer("float[]", samples)
        if (
            self._lib.whisper_pcm_to_mel(self.handle, data, len(samples), threads) != 0
            or self._lib.whisper_encode(self.handle, 0, threads) != 0
        ):
            raise HarnessError("the clip cannot be encoded")

    def prompt(self, language: str) -> list[int]:
        """The tokens that open a transcription without timestamps."""
        if not self.knows_language(language) or language == "auto":
            raise HarnessError(f"the model does not know the language '{language}'")
        lib, handle = self._lib, self.handle
        tokens = [lib.whisper_token_sot(handle)]
        if self.is_multilingual():
            language_id = lib.whisper_lang_id(language.encode())
            tokens += [lib.whisper_token_lang(handle, language_id), lib.whisper_token_transcribe(handle)]
        return [*tokens, lib.whisper_token_not(handle)]

    def decode(self, tokens: Sequence[int], n_past: int, threads: int) -> None:
        """One run of the decoder over the tokens that follow n_past others; and a second one, if the view is unsure."""
        self._n_run = len(tokens)
        if self._lib.whisper_decode(self.handle, list(tokens), self._n_run, n_past, threads) != 0:
            raise HarnessError("a step cannot be decoded")

    def best_text_token(self) -> int:
        """The most probable token behind the last run that is neither an end of text nor another special one."""
        n_vocab = self._lib.whisper_n_vocab(self.handle)
        buffer = ffi.buffer(self._lib.whisper_get_logits(self.handle), 4 * n_vocab * self._n_run)
        logits = np.frombuffer(buffer, np.float32).reshape(self._n_run, n_vocab)
        return int(np.argmax(logits[-1, : self.end_of_text]))

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
