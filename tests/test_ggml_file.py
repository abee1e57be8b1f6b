"""whisper.cpp's file format: what is written is what upstream loads, and damaged files are refused."""

import re

import numpy as np
import pytest

from pyharness import ggml_file, models
from pyharness.errors import HarnessError
from pyharness.ggml_file import Header, HParams

SMALL = HParams(
    n_vocab=9,
    n_audio_ctx=5,
    n_audio_state=4,
    n_audio_head=2,
    n_audio_layer=1,
    n_text_ctx=3,
    n_text_state=4,
    n_text_head=2,
    n_text_layer=2,
    n_mels=7,
)
VOCAB = [b"a", b"", "é".encode(), b"\xff"]


@pytest.fixture
def written(tmp_path):
    """(path, header, tensors) of a small model on disk."""
    header = Header(SMALL, np.linspace(0, 1, 7 * 201, dtype=np.float32).reshape(7, 201), VOCAB)
    tensors = {
        name: np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for name, shape in ggml_file.tensor_shapes(SMALL).items()
    }
    path = tmp_path / "model.bin"
    ggml_file.write_model(path, header, tensors.items())
    return path, header, tensors


def upstream_model(name):
    return models.upstream_source() / "models" / f"for-tests-ggml-{name}.bin"


def test_header_round_trip(written):
    path, header, _ = written
    read = ggml_file.read_header(path)
    assert read.hparams == ggml_file.read_hparams(path) == header.hparams
    assert read.vocab == header.vocab
    np.testing.assert_array_equal(read.filters, header.filters)


def test_header_is_written_byte_for_byte_as_upstream_does(tmp_path):
    original = upstream_model("base").read_bytes()
    header = ggml_file.read_header(upstream_model("base"))
    path = tmp_path / "model.bin"
    with pytest.raises(ValueError, match="missing tensors"):
        ggml_file.write_model(path, header, [])
    assert path.read_bytes() == original


def test_tensors_round_trip(written):
    path, _, tensors = written
    data = path.read_bytes()
    for info in ggml_file.read_tensors(path):
        dtype = "<f2" if info.type_id == ggml_file.F16 else "<f4"
        values = np.frombuffer(data[info.offset : info.offset + info.n_bytes], dtype).reshape(info.shape)
        np.testing.assert_array_equal(values, tensors.pop(info.name).astype(dtype))
    assert not tensors


def test_only_matrices_and_convolutions_are_f16(written):
    types = {info.name: info.type_id for info in ggml_file.read_tensors(written[0])}
    for name, type_id in types.items():
        is_small = name.endswith(("bias", "positional_embedding")) or "ln" in name
        assert type_id == (ggml_file.F32 if is_small else ggml_file.F16), name


@pytest.mark.parametrize("size", ["tiny.en", "tiny", "base", "small", "medium", "large"])
def test_shapes_have_upstreams_dimensions(size):
    shape = models.SHAPES["large-v2" if size == "large" else size]
    assert ggml_file.read_hparams(upstream_model(size)) == shape


def test_tensor_names_are_those_in_upstreams_source():
    source = (models.upstream_source() / "src" / "whisper-arch.h").read_text()
    patterns = re.findall(r'"((?:encoder|decoder)\.[a-z0-9_.%]+)"', source)
    assert len(patterns) > 40
    shape = models.SHAPES["tiny"]
    expected = {pattern.replace("%d", str(i)) for pattern in patterns for i in range(shape.n_audio_layer)}
    assert set(ggml_file.tensor_shapes(shape)) == expected


def test_own_mel_filters_equal_upstreams():
    stored = ggml_file.read_header(upstream_model("tiny")).filters
    np.testing.assert_allclose(ggml_file.mel_filterbank(80), stored, rtol=0, atol=1e-8)
    assert stored.max() > 0.02


def test_mel_filters_of_large_v3_are_128_triangles_of_equal_area():
    filters = ggml_file.mel_filterbank(128)
    assert filters.shape == (128, 201)
    peaks = filters.argmax(axis=1)
    assert (np.diff(peaks) >= 0).all() and peaks[0] == 1 and peaks[-1] > 190
    areas = filters[64:].sum(axis=1) * 40  # Hz per bin; the narrow ones below fall between bins
    np.testing.assert_allclose(areas, 1, atol=0.1)


def test_file_cut_at_any_length_is_refused_by_name(written):
    path = written[0]
    whole = path.read_bytes()
    for length in [*range(200), *range(200, len(whole), 61), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(HarnessError, match=r"model\.bin: not a usable whisper\.cpp model"):
            ggml_file.check(path)


@pytest.mark.parametrize("damage", [0x00, 0x7F, 0xFF])
def test_one_wrong_byte_never_crashes_the_reader(written, damage):
    path = written[0]
    whole = path.read_bytes()
    vocab = 56 + 4 * 7 * 201
    for position in [*range(56), *range(vocab, vocab + 200), *range(vocab + 200, len(whole), 7)]:
        path.write_bytes(whole[:position] + bytes([damage]) + whole[position + 1 :])
        try:
            ggml_file.check(path)
        except HarnessError as error:
            assert "model.bin" in error.message


def test_wrong_magic_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"<!doctype html>" * 20)
    with pytest.raises(HarnessError, match="it starts with 0x"):
        ggml_file.read_hparams(path)


def test_header_without_weights_is_not_a_model():
    with pytest.raises(HarnessError, match="no weights"):
        ggml_file.check(upstream_model("tiny"))


@pytest.mark.parametrize("change", ["missing", "repeated", "wrong shape"])
def test_writer_refuses_an_incomplete_set_of_tensors(written, change):
    path, header, tensors = written
    items = list(tensors.items())
    changed = {
        "missing": items[1:],
        "repeated": [*items, items[0]],
        "wrong shape": [(items[0][0], np.ones((2, 2))), *items[1:]],
    }
    with pytest.raises(ValueError, match=re.escape(items[0][0])):
        ggml_file.write_model(path, header, changed[change])
