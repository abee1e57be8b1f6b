"""Transcripts as text, JSON and subtitles. Every format is a function of (path, transcript, options, counters)."""

import dataclasses
import json
from pathlib import Path

from pyharness.native import Counters, Transcript


def txt(_path: Path, transcript: Transcript, _options: dict, _counters: Counters) -> str:
    return transcript.text + "\n"


def jsonl(path: Path, transcript: Transcript, options: dict, counters: Counters) -> str:
    """One object on one line, with the options that made it and what the decoder read (counters of the view)."""
    return (
        json.dumps(
            {
                "audio_filepath": str(path),
                "language": transcript.language,
                "text": transcript.text,
                "segments": [dataclasses.asdict(segment) for segment in transcript.segments],
                "options": options,
                "counters": dataclasses.asdict(counters),
            },
            ensure_ascii=False,
        )
        + "\n"
    )


def srt(_path: Path, transcript: Transcript, _options: dict, _counters: Counters) -> str:
    blocks = [
        f"{i}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{s.text.strip()}\n"
        for i, s in enumerate(transcript.segments, 1)
    ]
    return "\n".join(blocks)


def vtt(_path: Path, transcript: Transcript, _options: dict, _counters: Counters) -> str:
    cues = [f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{s.text.strip()}\n" for s in transcript.segments]
    return "\n".join(["WEBVTT\n", *cues])


def _clock(seconds: float, mark: str) -> str:
    """hh:mm:ss and milliseconds behind ``mark``."""
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms // 1000 % 60:02d}{mark}{ms % 1000:03d}"


FORMATS = {"txt": txt, "json": jsonl, "srt": srt, "vtt": vtt}
