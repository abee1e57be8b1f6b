"""Speech from Hugging Face datasets: FLEURS and Common Voice, as streams of encoded recordings.

Needs the package ``datasets`` (``pip install 'padsink[hub]'``). Recordings are taken undecoded and decoded by
``audio``, so neither torch nor torchcodec is needed.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import soundfile
from rich.console import Console
from rich.progress import track

from pyharness import audio
from pyharness.errors import HarnessError

# Both datasets were published as loading scripts, which datasets >= 3 refuses to run. The hub keeps a conversion
# of every dataset to parquet on this branch; the commit that it names at the time is written into the manifest.
REVISION = "refs/convert/parquet"
LIMIT = 300  # clips
SHORTEST, LONGEST = 0.3, 30.0  # seconds; Whisper's window is 30 s
CONNECT_TIMEOUT = 10  # seconds
FILTERS = ("no_text", "no_audio", "too_short", "too_long")


@dataclass(frozen=True)
class HubSource:
    """The first clips of one split. ``fetch`` follows ``speech.Source``."""

    path: str  # name of a dataset on the hub, or a local folder that holds CONFIG/SPLIT/*.parquet
    config: str
    language: str  # ISO 639-1
    licence: str
    text_field: str
    speaker_field: str = ""  # "" = the dataset does not tell speakers apart
    recording_field: str = ""  # what clips share beside the speaker: FLEURS has several people read each sentence
    split: str = "test"
    revision: str = REVISION  # a branch, or a commit to have exactly the same data again
    limit: int = LIMIT  # clips kept at most
    note: str = ""  # what a user who cannot get this dataset should know about it

    def fetch(self, folder: Path) -> tuple[list[dict], dict[str, int]]:
        """Write one 16-bit FLAC per kept clip."""
        commit = self._commit()
        rows: list[dict] = []
        counts: Counter = Counter()
        ids: set[str] = set()
        for example in self._examples(commit):
            text = (example[self.text_field] or "").strip()
            samples = _decode(example["audio"]) if text else np.zeros(0, np.float32)
            reason = _problem(text, len(samples))
            if reason:
                counts[reason] += 1
                continue
            target = folder / f"{_new_id(example['audio'], ids)}.flac"
            soundfile.write(target, samples, audio.SAMPLE_RATE, subtype="PCM_16")
            rows.append(self._row(example, text, target, len(samples), commit))
            if len(rows) == self.limit:
                break
        if not rows:
            raise HarnessError(f"{self._subject}: none of its {counts.total()} clips can be used ({dict(counts)})")
        return rows, {"kept": len(rows)} | {name: counts[name] for name in FILTERS}

    def _row(self, example: dict, text: str, file: Path, n_samples: int, commit: str) -> dict:
        return {
            "id": file.stem,
            "audio": file,
            "text": text,
            "language": self.language,
            "duration": round(n_samples / audio.SAMPLE_RATE, 3),
            "speaker": (example[self.speaker_field] or "") if self.speaker_field else "",
            "recording": f"{self.recording_field} {example[self.recording_field]}" if self.recording_field else "",
            "source": f"{self.path} {self.config} {self.split} {commit}",
            "licence": self.licence,
            "synthetic": False,
        }

    # --- the stream ---

    @property
    def _subject(self) -> str:
        return f"dataset '{self.path}', config '{self.config}', split '{self.split}'"

    def _is_local(self) -> bool:
        return Path(self.path).is_dir()

    def _commit(self) -> str:
        """The commit that the revision names now. An unreachable hub is noticed here, at once and not after retries."""
        _require_datasets()
        if self._is_local():
            return "local"
        import huggingface_hub

        try:
            info = huggingface_hub.HfApi().dataset_info(self.path, revision=self.revision, timeout=CONNECT_TIMEOUT)
        except Exception as error:  # whatever the HTTP library of the day raises
            raise self._failure(error) from error
        return info.sha

    def _examples(self, commit: str) -> Iterator[dict]:
        """Rows with the fields that are used; ``audio`` is a dict of ``bytes`` and ``path``."""
        import datasets

        # The conversion has one folder per config and split; that of a large split is called partial-SPLIT.
        files = {self.split: f"{self.config}/*{self.split}/*.parquet"}
        revision = None if self._is_local() else commit
        try:
            data = datasets.load_dataset(
                self.path, data_files=files, split=self.split, revision=revision, streaming=True
            )
            self._check_fields(data.column_names or [])
            yield from _progress(data.cast_column("audio", datasets.Audio(decode=False)), self)
        except HarnessError:
            raise
        except Exception as error:  # datasets, huggingface_hub, fsspec, pyarrow and the HTTP library raise their own
            raise self._failure(error) from error

    def _check_fields(self, present: list[str]) -> None:
        needed = [name for name in ("audio", self.text_field, self.speaker_field, self.recording_field) if name]
        missing = [name for name in needed if name not in present]
        if missing:
            raise HarnessError(
                f"{self._subject}: it lacks the field {' and '.join(missing)} (it has {', '.join(present) or 'none'})"
            )

    def _failure(self, error: Exception) -> HarnessError:
        """Two lines: what cannot be had and why, and what to do."""
        reason, advice = _explain(error, self)
        own = "or put the recordings into a manifest of your own (.jsonl or .csv with audio and text) and pass its path"
        return HarnessError(f"cannot get {self._subject}: {reason}.\n{self.note}{advice}, {own}.")


def _progress(examples: Iterable[dict], source: HubSource) -> Iterable[dict]:
    console = Console(stderr=True)
    description = f"{source.path} {source.config}"
    return track(
        examples, description, total=source.limit, console=console, transient=True, disable=not console.is_terminal
    )


def _require_datasets() -> None:
    try:
        import datasets  # noqa: F401
    except ImportError as error:
        raise HarnessError(
            f"speech from the hub needs the package datasets ({error}): pip install 'padsink[hub]'"
        ) from error


# --- clips ------------------------------------------------------------------------------------------------


def _decode(recording: dict | None) -> np.ndarray:
    """Samples f32 ``[n]`` at 16 kHz; none if there is no recording or it cannot be decoded."""
    content, name = (recording or {}).get("bytes"), (recording or {}).get("path")
    try:
        if content is None:
            return audio.load(name or "")
        with tempfile.NamedTemporaryFile(suffix=PurePosixPath(name or "").suffix) as file:
            file.write(content)
            file.flush()
            return audio.load(file.name)
    except HarnessError:
        return np.zeros(0, np.float32)


def _problem(text: str, n_samples: int) -> str | None:
    """Name of the filter that drops the clip."""
    seconds = n_samples / audio.SAMPLE_RATE
    if not text:
        return "no_text"
    if not n_samples:
        return "no_audio"
    if seconds < SHORTEST:
        return "too_short"
    return "too_long" if seconds > LONGEST else None


def _new_id(recording: dict, ids: set[str]) -> str:
    """The recording's file name without suffix, made safe as a file name and unique; added to ``ids``.

    FLEURS has an ``id`` too, but that of the sentence, which several people read.
    """
    stem = re.sub(r"[^\w-]", "_", PurePosixPath(recording["path"] or "clip").stem)
    identity, number = stem, 2
    while identity in ids:
        identity, number = f"{stem}-{number}", number + 1
    ids.add(identity)
    return identity


# --- failures ---------------------------------------------------------------------------------------------


def _explain(error: Exception, source: HubSource) -> tuple[str, str]:
    """Reason and advice. Classes are told by name: those of the HTTP library differ between versions."""
    names = _class_names(error)
    page = f"https://huggingface.co/datasets/{source.path}"
    log_in = f"Accept its terms at {page} and log in with `hf auth login`"
    if "GatedRepoError" in names or "is a gated dataset" in str(error):
        return "it is gated and you are not logged in or not admitted", log_in
    if names & {"RepositoryNotFoundError", "DatasetNotFoundError"}:
        return "the hub has no such dataset, or shows it only to those who are logged in", log_in
    if "RevisionNotFoundError" in names:
        return f"it has no revision '{source.revision}'", f"Look at {page}"
    if names & {"ConnectionError", "ConnectError", "TimeoutException", "Timeout", "TimeoutError"}:
        return f"the hub cannot be reached ({_first_line(error)})", "Check the network, HF_ENDPOINT and HF_HUB_OFFLINE"
    if names & {"FileNotFoundError", "EntryNotFoundError"}:
        return "it has no such config or split", f"Look up the configs at {page}"
    return f"{type(error).__name__}: {_first_line(error)}", f"Look at {page}"


def _class_names(error: BaseException | None) -> set[str]:
    """Names of the classes of an error and of those that led to it."""
    names: set[str] = set()
    while error is not None:
        names |= {base.__name__ for base in type(error).__mro__}
        error = error.__cause__ or error.__context__
    return names


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


# --- the sets ---------------------------------------------------------------------------------------------

FLEURS = {"en": "en_us", "ru": "ru_ru", "tr": "tr_tr", "uz": "uz_uz"}  # language -> config


def fleurs(language: str) -> HubSource:
    text, sentence = "raw_transcription", "id"
    return HubSource("google/fleurs", FLEURS[language], language, "CC-BY-4.0", text, recording_field=sentence)


def common_voice(code: str) -> HubSource:
    """Common Voice 17 in any of its languages: ``code`` is Common Voice's own, such as uz or zh-CN."""
    return HubSource(
        "mozilla-foundation/common_voice_17_0",
        config=code,
        language=code.partition("-")[0],
        licence="CC0-1.0",
        text_field="sentence",
        speaker_field="client_id",
        note="Mozilla has moved Common Voice to https://datacollective.mozillafoundation.org. ",
    )
