"""Recordings with transcripts: manifests on disk and the registry of sets that can be fetched.

A manifest is a ``.jsonl`` file (one JSON object per line) or a ``.csv`` file (header row) with the fields of
``Clip``. Only ``audio`` (or ``audio_filepath``) and ``text`` are required, so a user's own list works as is.
"""

import csv
import difflib
import hashlib
import io
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pyharness import asterisk, audio, espeak, hub_speech, paths
from pyharness.errors import HarnessError

MAX_DURATION = 86_400  # seconds of one clip: a day
MANIFEST = "manifest.jsonl"  # written last: a set whose folder holds it is complete
FILTERS = "filters.json"  # how many prompts were kept, and dropped by which filter


@dataclass(frozen=True)
class Clip:
    """One recording and what is said in it, word for word."""

    id: str  # unique inside its manifest
    audio: Path
    text: str
    language: str = ""  # ISO 639-1 code; "" = not stated
    duration: float = 0.0  # seconds; 0 = unknown (only for manifests read with check_audio=False)
    speaker: str = ""  # "" = unknown
    source: str = ""
    licence: str = ""
    synthetic: bool = False  # spoken by a machine
    recording: str = ""  # that the clip was cut from, or the sentence that several people read; "" = its own

    @property
    def cluster(self) -> str:
        """What it shares with other clips, so that they do not count as independent ones."""
        return self.speaker or self.recording or self.id


# --- registry ---------------------------------------------------------------------------------------------


class Source(Protocol):
    """Where a set comes from."""

    def fetch(self, folder: Path) -> tuple[list[dict], dict[str, int]]:
        """Write the audio below ``folder``; return one dict of ``Clip`` fields per clip (absolute audio
        paths) and the counts for ``filters.json`` (``kept`` plus one entry per filter)."""


@dataclass(frozen=True)
class SpeechSet:
    """A set that ``fetch`` can produce; clips and minutes are what the published results used."""

    name: str
    language: str
    licence: str
    clips: int | None  # None = not known before the set is fetched
    minutes: float | None
    source: Source
    scoring: dict[str, bool] = field(default_factory=dict)  # strip_diacritics: see strip_diacritics()
    synthetic: bool = False  # spoken by a machine


def _asterisk_set(language: str, clips: int, minutes: float, **scoring: bool) -> SpeechSet:
    source = asterisk.SOURCES[language]
    return SpeechSet(f"asterisk-{language}", language, source.licence, clips, minutes, source, scoring)


def _espeak_set(language: str, clips: int, minutes: float) -> SpeechSet:
    source = espeak.EspeakSource(language)
    return SpeechSet(f"espeak-{language}", language, espeak.LICENCE, clips, minutes, source, synthetic=True)


def _hub_set(name: str, source: hub_speech.HubSource) -> SpeechSet:
    return SpeechSet(name, source.language, source.licence, None, None, source)


SETS: dict[str, SpeechSet] = {
    item.name: item
    for item in (
        _asterisk_set("en", 440, 14.8),
        _asterisk_set("es", 380, 17.8, strip_diacritics=True),
        _asterisk_set("fr", 404, 14.3),
        _asterisk_set("it", 434, 12.5),
        _asterisk_set("ru", 456, 13.7),
        _espeak_set("tr", 60, 3.7),
        _espeak_set("uz", 60, 3.6),
        *(_hub_set(f"fleurs-{language}", hub_speech.fleurs(language)) for language in hub_speech.FLEURS),
    )
}
COMMON_VOICE = "common-voice-XX"  # how the sets that SETS does not list are called; XX: a language code
COMMON_VOICE_NAME = re.compile(r"common-voice-([a-z]{2,3}(-[A-Za-z]{2,8})*)")


def find(name: str) -> SpeechSet | None:
    """The set of that name: one of SETS, or one of Common Voice, whose languages are too many to list."""
    code = COMMON_VOICE_NAME.fullmatch(name)
    return _hub_set(name, hub_speech.common_voice(code[1])) if code else SETS.get(name)


def listed() -> list[SpeechSet]:
    """SETS, and what was fetched of Common Voice."""
    cached = sorted(path.parent.name for path in paths.speech_dir().glob(f"*/{MANIFEST}"))
    return [*SETS.values(), *(find(name) for name in cached if COMMON_VOICE_NAME.fullmatch(name))]


def resolve(name_or_path: str | Path) -> tuple[str, list[Clip]]:
    """Name and clips of a registered set (fetched if not cached), a manifest file, or a folder with one."""
    text = str(name_or_path)
    if find(text):
        return text, read_manifest(fetch(text) / MANIFEST)
    path = Path(name_or_path)
    if path.is_dir():
        return path.resolve().name, read_manifest(path / MANIFEST)
    if path.is_file():
        return path.stem if path.name != MANIFEST else path.resolve().parent.name, read_manifest(path)
    raise HarnessError(f"unknown speech '{text}': {_suggestion(text)}")


def fetch(name: str, force: bool = False) -> Path:
    """Folder of a registered set, filled if it is not complete yet or ``force`` is set.

    The set is built beside its final place and moved there when complete, so an interrupted or failed fetch
    leaves no half set and does not touch an older one.
    """
    item = find(name)
    if not item:
        raise HarnessError(f"unknown speech '{name}': {_suggestion(name)}")
    folder = paths.speech_dir() / name
    if is_cached(name) and not force:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as temporary:
            complete = Path(temporary) / name
            _build(item, complete)
            if force or not is_cached(name):  # another process may have been faster
                shutil.rmtree(folder, ignore_errors=True)
                complete.replace(folder)
    except OSError as error:
        raise HarnessError(f"cannot write speech '{name}' to '{folder}': {error.strerror or error}") from error
    return folder


def is_cached(name: str) -> bool:
    return (paths.speech_dir() / name / MANIFEST).is_file()


def strip_diacritics(name: str) -> bool:
    """Whether scoring must ignore accents because the set's transcripts lack them; False for other names."""
    item = find(name)
    return item is not None and item.scoring.get("strip_diacritics", False)


def sample(clips: Iterable[Clip], n: int, seed: int) -> list[Clip]:
    """``n`` clips (all, if there are fewer) in id order; the choice depends only on ids and seed."""
    if n < 1:
        raise HarnessError(f"cannot sample {n} clips: the number must be at least 1")

    def draw(clip: Clip) -> str:
        return hashlib.sha256(f"{seed}:{clip.id}".encode()).hexdigest()

    return sorted(sorted(clips, key=draw)[:n], key=lambda clip: clip.id)


def _build(item: SpeechSet, folder: Path) -> None:
    folder.mkdir()
    rows, counts = item.source.fetch(folder)
    (folder / FILTERS).write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    write_manifest(folder / MANIFEST, [Clip(**row) for row in rows])


def _suggestion(text: str) -> str:
    if Path(text).suffix or os.sep in text:
        return "no such manifest file or folder"
    close = difflib.get_close_matches(text, SETS, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    known = f"{', '.join([*SETS, COMMON_VOICE])} (XX: a language code)"
    return f"{hint}Known sets: {known}; or give the path of a manifest (.jsonl, .csv)"


# --- writing a manifest -----------------------------------------------------------------------------------


def write_manifest(path: str | Path, clips: Iterable[Clip]) -> None:
    """Write a ``.jsonl`` manifest in one step: readers see the old file or the whole new one.

    Audio paths are stored relative to the manifest, so its folder can be moved.
    """
    path = Path(path)
    lines = [json.dumps(_as_row(clip, path.parent), ensure_ascii=False) + "\n" for clip in clips]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _as_row(clip: Clip, folder: Path) -> dict[str, Any]:
    relative = os.path.relpath(clip.audio.absolute(), folder.absolute())
    return {**asdict(clip), "audio": Path(relative).as_posix()}


# --- reading a manifest -----------------------------------------------------------------------------------


class BadLine(Exception):
    """What is wrong with one line of a manifest; the reader adds file and line."""


def read_manifest(path: str | Path, check_audio: bool = True) -> list[Clip]:
    """Clips of a ``.jsonl`` or ``.csv`` manifest, in file order.

    Relative audio paths are relative to the manifest. A missing id is the file's stem, numbered where it
    repeats; a missing duration is read from the file. ``check_audio=False`` accepts audio that is not there.
    Raises HarnessError naming file and line.
    """
    path = Path(path)
    clips, line_of_id = [], {}
    for line, row in _rows(path):
        try:
            clip = _clip(row, path.parent, check_audio)
            if clip.id and clip.id in line_of_id:
                raise BadLine(f"id '{clip.id}' was already used on line {line_of_id[clip.id]}")
        except (BadLine, HarnessError) as error:
            raise HarnessError(f"manifest '{path}', line {line}: {error}") from error
        line_of_id[clip.id] = line
        clips.append(clip)
    if not clips:
        raise HarnessError(f"manifest '{path}' lists no clips")
    return _with_ids(clips)


def _rows(path: Path) -> Iterator[tuple[int, dict]]:
    """Line number (from 1) and raw fields of every entry."""
    readers = {".jsonl": _jsonl_rows, ".csv": _csv_rows}
    if path.suffix.lower() not in readers:
        raise HarnessError(f"manifest '{path}': the name must end in {' or '.join(readers)}")
    return readers[path.suffix.lower()](path, _text_of(path))


def _text_of(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise HarnessError(f"cannot read manifest '{path}': {(error.strerror or str(error)).lower()}") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise HarnessError(f"manifest '{path}', line {line}: not UTF-8 text") from error


def _jsonl_rows(path: Path, text: str) -> Iterator[tuple[int, dict]]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise HarnessError(f"manifest '{path}', line {line}: broken JSON: {error}") from error
        if not isinstance(row, dict):
            raise HarnessError(f"manifest '{path}', line {line}: not a JSON object")
        yield line, row


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if None in row:
                raise BadLine("more cells than the header has columns (quote texts that hold commas)")
            yield reader.line_num, {name: cell for name, cell in row.items() if cell}
    except (csv.Error, BadLine) as error:
        raise HarnessError(f"manifest '{path}', line {reader.reader.line_num}: {error}") from error


def _clip(row: dict, folder: Path, check_audio: bool) -> Clip:
    """A clip whose id is still "" where the row gives none."""
    name = _string(row, "audio") or _string(row, "audio_filepath")
    if not name:
        raise BadLine("field 'audio' (or 'audio_filepath') is missing or empty")
    text = _string(row, "text")
    if not text.strip():
        raise BadLine("field 'text' is missing or empty")
    file = folder / name
    try:
        exists = file.is_file()
    except OSError as error:
        raise BadLine(f"audio file '{file}': {(error.strerror or str(error)).lower()}") from error
    if check_audio and not exists:
        raise BadLine(f"audio file '{file}' does not exist")
    optional = {key: _string(row, key) for key in ("id", "language", "speaker", "recording", "source", "licence")}
    return Clip(
        audio=file,
        text=text,
        duration=_duration(row, file),
        synthetic=_flag(row, "synthetic"),
        **optional,
    )


def _string(row: dict, key: str) -> str:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise BadLine(f"field '{key}' must be a string, not {json.dumps(value)}")
    if value and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadLine(f"field '{key}' holds half a character: {json.dumps(value)}")
    return value or ""


def _duration(row: dict, file: Path) -> float:
    value = row.get("duration")
    if value is None:
        return round(audio.duration(file), 3) if file.is_file() else 0.0
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds <= MAX_DURATION:  # NaN fails, too
        raise BadLine(f"field 'duration' must be 0 to {MAX_DURATION} seconds, not {json.dumps(value)}")
    return seconds


def _flag(row: dict, key: str) -> bool:
    value = row.get(key)
    values = {"": False, "none": False, "false": False, "0": False, "true": True, "1": True}
    if str(value).lower() not in values:
        raise BadLine(f"field '{key}' must be true or false, not {json.dumps(value)}")
    return values[str(value).lower()]


def _with_ids(clips: list[Clip]) -> list[Clip]:
    """The clips, where an empty id becomes the file's stem, or stem-2, stem-3, ... if that is taken."""
    taken = {clip.id for clip in clips}
    result = []
    for clip in clips:
        identity, number = clip.id or clip.audio.stem, 2
        while not clip.id and identity in taken:
            identity, number = f"{clip.audio.stem}-{number}", number + 1
        taken.add(identity)
        result.append(replace(clip, id=identity))
    return result
