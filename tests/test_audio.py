"""Whatever the user hands over becomes f32 mono 16 kHz, or an error that names the file."""

import os
import re
import socket
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from pyharness import audio
from pyharness.errors import HarnessError

PITCH = 440  # Hz


def tone(seconds: float = 1.0, rate: int = 16000, amplitude: float = 0.5) -> np.ndarray:
    return (amplitude * np.sin(2 * np.pi * PITCH * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def encode(path: Path, codec: str, rate: int, seconds: float = 1.0) -> Path:
    """Write the tone with a codec that soundfile does not have."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream(codec, rate=rate)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(
            (tone(seconds, rate) * 32767).astype(np.int16)[None], format="s16", layout="mono"
        )
        frame.rate = rate
        resampler = av.AudioResampler(stream.format, "mono", rate, frame_size=stream.frame_size or None)
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            out.mux(stream.encode(part))
    return path


def pitch(samples: np.ndarray) -> float:
    return float(np.abs(np.fft.rfft(samples)).argmax() * audio.SAMPLE_RATE / len(samples))


def assert_error(path: Path, reason: str) -> None:
    for function in (audio.load, audio.duration):
        with pytest.raises(HarnessError, match=re.escape(f"cannot read audio '{path}': ") + f".*{reason}"):
            function(path)


def test_16_khz_mono_comes_back_sample_by_sample(tmp_path):
    pcm = np.array([0, 1, -32768, 32767, 100], np.int16)
    soundfile.write(tmp_path / "a.wav", pcm, 16000)
    loaded = audio.load(str(tmp_path / "a.wav"))
    assert loaded.dtype == np.float32 and loaded.flags.c_contiguous
    np.testing.assert_array_equal(loaded, pcm / 32768)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"])
def test_every_sample_width_gives_the_same_tone(tmp_path, subtype):
    soundfile.write(tmp_path / "a.wav", tone(), 16000, subtype=subtype)
    np.testing.assert_allclose(audio.load(tmp_path / "a.wav"), tone(), atol=0.02)


def test_channels_are_averaged(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.stack([tone(), -tone(), 0.6 * tone()], axis=1), 16000)
    loaded = audio.load(tmp_path / "a.wav")
    np.testing.assert_allclose(loaded, 0.2 * tone(), atol=1e-3)
    assert loaded.flags.c_contiguous


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000])
def test_other_rates_keep_length_pitch_and_level(tmp_path, rate):
    soundfile.write(tmp_path / "a.wav", np.stack([tone(1, rate)] * 2, axis=1), rate)
    loaded = audio.load(tmp_path / "a.wav")
    assert len(loaded) == 16000 and pitch(loaded) == PITCH and loaded.flags.c_contiguous
    np.testing.assert_allclose(loaded[1000:-1000], tone()[1000:-1000], atol=2e-3)


@pytest.mark.parametrize(
    ("name", "codec", "rate"),
    [
        ("a.g722", "g722", 16000),
        ("a.m4a", "aac", 44100),
        ("a.webm", "libopus", 48000),
        ("a.mp3", "mp3", 44100),
    ],
)
def test_compressed_formats_are_decoded(tmp_path, name, codec, rate):
    path = encode(tmp_path / name, codec, rate)
    loaded = audio.load(path)
    assert loaded.dtype == np.float32
    assert pitch(loaded) == pytest.approx(PITCH, abs=2)
    assert len(loaded) == pytest.approx(16000, abs=1600)
    assert np.abs(loaded).max() == pytest.approx(0.5, abs=0.1)
    assert audio.duration(path) == pytest.approx(len(loaded) / 16000, abs=1e-3)


def test_duration_is_in_seconds_at_any_rate(tmp_path):
    soundfile.write(tmp_path / "a.wav", tone(0.5, 44100), 44100)
    assert audio.duration(tmp_path / "a.wav") == 0.5


def test_colon_in_the_name_is_not_a_protocol(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encode(tmp_path / "call:1.g722", "g722", 16000)
    assert len(audio.load("call:1.g722")) == 16000


def test_missing_file(tmp_path):
    assert_error(tmp_path / "a.wav", "no such file")


def test_folder(tmp_path):
    assert_error(tmp_path, "it is a folder")


def test_pipe_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "a.wav")
    assert_error(tmp_path / "a.wav", "not a regular file")


def test_empty_file(tmp_path):
    (tmp_path / "a.wav").touch()
    assert_error(tmp_path / "a.wav", "the file is empty")


def test_text_renamed_to_wav(tmp_path):
    (tmp_path / "a.wav").write_text("this is not a recording\n" * 100)
    assert_error(tmp_path / "a.wav", "not a recording in a known format, or damaged")


def test_video_without_sound(tmp_path):
    with av.open(str(tmp_path / "a.mkv"), "w") as out:
        stream = out.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        out.mux([*stream.encode(frame), *stream.encode(None)])
    assert_error(tmp_path / "a.mkv", "it has no audio track")


def test_zero_samples(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(0, np.float32), 16000)
    assert_error(tmp_path / "a.wav", "it holds no samples")


def test_too_few_samples_to_resample(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.zeros(1, np.float32), 96000)
    with pytest.raises(HarnessError, match="it holds no samples"):
        audio.load(tmp_path / "a.wav")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite(tmp_path, bad):
    samples = tone()
    samples[5] = bad
    soundfile.write(tmp_path / "a.wav", samples, 16000, subtype="FLOAT")
    with pytest.raises(HarnessError, match=r"a\.wav.*not finite"):
        audio.load(tmp_path / "a.wav")


def test_playlist_never_opens_a_connection(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.ts"
        playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{url}\n#EXT-X-ENDLIST\n"
        (tmp_path / "a.m3u8").write_text(playlist)
        assert_error(tmp_path / "a.m3u8", "")
        with pytest.raises(TimeoutError):
            server.accept()
