"""faster-whisper (CTranslate2) made to do the work that stock and we do: the published weights, the same decoding.

Its defaults that are switched off, as they are in whisper.cpp with the settings of `native`: beams, temperature
fallback, the text so far as a prompt, and the suppression of tokens such as brackets (``suppress_tokens=[-1]``). What
both have stays: blanks are suppressed at the beginning, and silence (its probability above 0.6, the mean log
probability of the text below -1) is left out.

What still differs is what makes it another program. It pads the spectrogram with zeros, where whisper.cpp pads the
samples; computes in float32 what is not an int8 product, and quantizes activations with these; fills and ranks beams in
its own way; and may choose any timestamp or language token, which whisper.cpp rules out.
"""

import functools
import importlib.metadata
import time
from dataclasses import dataclass
from pathlib import Path

from pyharness import audio
from pyharness.bench.clips import Decoded
from pyharness.errors import HarnessError
from pyharness.native import Decoding

PACKAGES = ("faster-whisper", "ctranslate2")
MOST_TOKENS = 220  # of a window, in whisper.cpp


@dataclass(frozen=True)
class Peer:
    """An arm: faster-whisper with weights and products of this type."""

    compute_type: str

    library = "faster-whisper"

    @property
    def name(self) -> str:
        return f"{self.library} {self.compute_type}"

    def columns(self) -> dict:
        """As those of a rule, of which it has none."""
        return {"arm": self.name, "rule": None, "budget": None, "tau": None}


INT8, FLOAT32 = Peer("int8"), Peer("float32")


def versions() -> dict[str, str]:
    """Of the packages. HarnessError if one is missing."""
    try:
        return {package: importlib.metadata.version(package) for package in PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise HarnessError(
            f"no package {error.name}: in padsink's folder, .venv/bin/pip install -e '.[peers]'"
        ) from error


# --- in its process ---------------------------------------------------------------------------------------------------


def environment(threads: int) -> dict[str, str]:
    """Of the process: NumPy computes the spectrogram, and asks here how many threads it may use."""
    return {"OMP_NUM_THREADS": str(threads)}


def transcribe(folder: Path, compute_type: str, clip: Path, decoding: Decoding) -> Decoded:
    """Reading the file is not timed; nor is loading the model, if it is not the first clip."""
    model, samples = _model(folder, compute_type, decoding.threads), audio.load(clip)
    options = _options(model, decoding)
    begin = time.perf_counter()
    segments, _ = model.transcribe(samples, **options)
    text = "".join(segment.text for segment in segments).strip()
    return Decoded(text, 1e3 * (time.perf_counter() - begin))


@functools.cache
def _model(folder: Path, compute_type: str, threads: int):
    from faster_whisper import WhisperModel

    return WhisperModel(str(folder), device="cpu", compute_type=compute_type, cpu_threads=threads, num_workers=1)


def _options(model, decoding: Decoding) -> dict:
    """Of a transcription. A list with one special token suppresses all of them, and nothing else."""
    start = model.hf_tokenizer.token_to_id("<|startoftranscript|>")
    n_prompt = (3 if model.model.is_multilingual else 1) + (not decoding.timestamps)
    return {
        "language": decoding.language,
        "beam_size": decoding.beam_size,
        "temperature": 0.0,
        "without_timestamps": not decoding.timestamps,
        "condition_on_previous_text": False,
        "suppress_tokens": [start],
        "max_new_tokens": _max_new_tokens(decoding.max_tokens, n_prompt),
    }


def _max_new_tokens(max_tokens: int, n_prompt: int) -> int | None:
    """What to ask for. whisper.cpp stops behind the token that is one too many; CTranslate2 at half of what prompt and
    new tokens may have together."""
    return 2 * min(max_tokens + 1, MOST_TOKENS) - n_prompt if max_tokens else None
