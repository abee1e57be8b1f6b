"""What the native tests share: real clips, and decoding in fresh processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from pyharness import audio, paths, speech

TESTS = Path(__file__).parent
OURS = paths.REPOSITORY / "build"
STOCK = paths.REPOSITORY / "build-stock"
JFK = paths.REPOSITORY / "whisper_cpp" / "src" / "samples" / "jfk.wav"


def clips(name: str, n: int) -> list[speech.Clip]:
    """n clips of a fetched set, the same ones every time."""
    _, all_clips = speech.resolve(name)
    return speech.sample(all_clips, n, seed=1)


def start_decoding(
    build: Path, model: Path, requests: list[dict], folder: Path, fresh: bool = False
) -> subprocess.Popen:
    """Decode the requests, one after the other, in a fresh process with the library of ``build``: on one state, or on
    a fresh one each."""
    job = folder / f"{build.name}-{len(list(folder.iterdir()))}.json"
    job.write_text(
        json.dumps({"model": str(model), "fresh": fresh, "requests": requests}, default=str), encoding="utf-8"
    )
    return subprocess.Popen(
        [sys.executable, str(TESTS / "digest.py"), str(job)],
        env={**os.environ, "PADSINK_LIB": str(build / "lib" / "libwhisper.so")},
        stdout=subprocess.PIPE,
        text=True,
    )


def results(process: subprocess.Popen) -> list[dict]:
    out, _ = process.communicate()
    assert process.returncode == 0, f"decoding ended with {process.returncode}"
    return [json.loads(line) for line in out.splitlines()]


def request(audio, rule=None, **decoding) -> dict:
    return {"audio": audio, "rule": rule, "decoding": decoding}


def audio_of(name: str):
    """Samples of one clip of a fetched set."""
    return audio.load(clips(name, 1)[0].audio)
