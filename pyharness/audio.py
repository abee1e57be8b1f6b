"""Any recording -> what Whisper reads: float32, mono, 16 kHz."""

import stat
from pathlib import Path

import av
import numpy as np
import soundfile
import soxr

from pyharness.errors import HarnessError

SAMPLE_RATE = 16000  # Hz


def load(path: str | Path) -> np.ndarray:
    """Samples of a file: f32 ``[n]``, contiguous, mono, 16 kHz, nominally in [-1, 1] (not clipped).

    Channels are averaged, other rates resampled. Raises HarnessError naming the file when it is missing,
    a folder, empty, not audio, or holds no samples or samples that are not finite.
    """
    path = Path(path)
    _check_readable(path)
    samples, rate = _decode(path)
    if not np.isfinite(samples).all():
        raise unreadable(path, "it holds samples that are not finite numbers")
    mono = samples.mean(axis=1, dtype=np.float32)
    if rate != SAMPLE_RATE and mono.size:
        mono = soxr.resample(mono, rate, SAMPLE_RATE, quality="HQ")
    if not mono.size:
        raise unreadable(path, "it holds no samples")
    return np.ascontiguousarray(mono, dtype=np.float32)


def duration(path: str | Path) -> float:
    """Length in seconds, from the header where the format has one that soundfile reads, else by decoding."""
    path = Path(path)
    _check_readable(path)
    try:
        info = soundfile.info(path)
    except (soundfile.LibsndfileError, TypeError):
        return len(load(path)) / SAMPLE_RATE
    if not info.frames:
        raise unreadable(path, "it holds no samples")
    return info.frames / info.samplerate


def unreadable(path: Path, reason: str) -> HarnessError:
    return HarnessError(f"cannot read audio '{path}': {reason}")


def _check_readable(path: Path) -> None:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise unreadable(path, "it is a folder")
        if not stat.S_ISREG(mode):
            raise unreadable(path, "it is not a regular file")
        with path.open("rb") as file:
            if not file.read(1):
                raise unreadable(path, "the file is empty")
    except OSError as error:
        raise unreadable(path, (error.strerror or str(error)).lower()) from error
    except ValueError as error:  # a NUL in the name
        raise unreadable(path, str(error)) from error


def _decode(path: Path) -> tuple[np.ndarray, int]:
    """Samples f32 ``[n, channels]`` and their rate in Hz."""
    try:
        return soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, TypeError):  # TypeError: a name ending in .raw
        return _decode_with_ffmpeg(path)


def _decode_with_ffmpeg(path: Path) -> tuple[np.ndarray, int]:
    """The first audio track of any container or raw format that FFmpeg knows.

    ``file:`` keeps a colon in the name from being taken for a protocol.
    """
    to_float = av.AudioResampler(format="fltp")  # changes the format only, so it holds nothing back
    try:
        with av.open(f"file:{path}") as container:
            if not container.streams.audio:
                raise unreadable(path, "it has no audio track")
            frames = [out for frame in container.decode(audio=0) for out in to_float.resample(frame)]
    except (av.FFmpegError, ValueError) as error:
        raise unreadable(path, _reason(error)) from error
    if not frames:
        raise unreadable(path, "it holds no samples")
    return np.concatenate([frame.to_ndarray() for frame in frames], axis=1).T, frames[0].sample_rate


def _reason(error: Exception) -> str:
    if isinstance(error, av.InvalidDataError):
        return "not a recording in a known format, or damaged"
    return getattr(error, "strerror", None) or str(error)
