"""The CTranslate2 reader: damaged files, and which rows become which Whisper tensor."""

import struct

import numpy as np
import pytest

from pyharness import ct2, ggml_file, models
from pyharness.errors import HarnessError

N_STATE, N_VOCAB = 8, 51864
TYPE_IDS = {"float32": 0, "int8": 1, "int16": 2, "float16": 4}


def name_bytes(name):
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def model_bytes(variables, specification="WhisperSpec", version=6):
    """A model.bin with these arrays, laid out as CTranslate2 does."""
    out = struct.pack("<I", version) + name_bytes(specification) + struct.pack("<II", 3, len(variables))
    for name, values in variables.items():
        out += name_bytes(name) + struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
        out += struct.pack("<BI", TYPE_IDS[values.dtype.name], values.nbytes) + values.tobytes()
    last = list(variables)[-1]
    return out + struct.pack("<I", 1) + name_bytes("an/alias") + name_bytes(last)


def norm(prefix):
    return {f"{prefix}/gamma": np.full(N_STATE, 5), f"{prefix}/beta": np.full(N_STATE, 6)}


def stacked(prefix, *values, n_in=N_STATE):
    """A linear layer with one block of rows per value; biases are ten times it, and 0 for keys (2)."""
    weight = np.concatenate([np.full((N_STATE, n_in), value) for value in values])
    bias = np.concatenate([np.full(N_STATE, 0 if value == 2 else 10 * value) for value in values])
    return {f"{prefix}/weight": weight, f"{prefix}/bias": bias}


def layer(prefix, *, cross):
    arrays = norm(f"{prefix}/self_attention/layer_norm") | norm(f"{prefix}/ffn/layer_norm")
    arrays |= stacked(f"{prefix}/self_attention/linear_0", 1, 2, 3) | stacked(f"{prefix}/self_attention/linear_1", 4)
    arrays |= stacked(f"{prefix}/ffn/linear_0", 7, 7, 7, 7) | stacked(f"{prefix}/ffn/linear_1", 8, n_in=4 * N_STATE)
    if cross:
        arrays |= norm(f"{prefix}/attention/layer_norm") | stacked(f"{prefix}/attention/linear_0", 1)
        arrays |= stacked(f"{prefix}/attention/linear_1", 2, 3) | stacked(f"{prefix}/attention/linear_2", 4)
    return arrays


@pytest.fixture(scope="module")
def whisper_arrays():
    """A complete Whisper model, 8 wide, one layer per side; query is all 1, key 2, value 3, out 4."""
    arrays = {
        "encoder/position_encodings/encodings": np.ones((1500, N_STATE)),
        "encoder/conv1/weight": np.ones((N_STATE, 80, 3)),
        "encoder/conv1/bias": np.ones(N_STATE),
        "encoder/conv2/weight": np.ones((N_STATE, N_STATE, 3)),
        "encoder/conv2/bias": np.ones(N_STATE),
        "decoder/position_encodings/encodings": np.ones((448, N_STATE)),
        "decoder/embeddings/weight": np.ones((N_VOCAB, N_STATE)),
    }
    arrays |= norm("encoder/layer_norm") | layer("encoder/layer_0", cross=False)
    arrays |= norm("decoder/layer_norm") | layer("decoder/layer_0", cross=True)
    arrays = {name: values.astype(np.float16) for name, values in arrays.items()}
    return {"encoder/num_heads": np.int16(2), "decoder/num_heads": np.int16(2)} | arrays


def write(folder, arrays, **options):
    path = folder / "model.bin"
    path.write_bytes(model_bytes(arrays, **options))
    return path


SMALL = {
    "a/weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.int16(-1),
    "c": np.ones(2, np.float16),
}


def test_arrays_come_back_with_shape_type_and_alias(tmp_path):
    model = ct2.read_model(write(tmp_path, SMALL))
    for name, values in SMALL.items():
        read = model.array(name)
        assert read.dtype == values.dtype
        np.testing.assert_array_equal(read, values)
    np.testing.assert_array_equal(model.array("an/alias"), SMALL["c"])


def test_file_cut_at_any_byte_is_refused_by_name(tmp_path):
    whole = model_bytes(SMALL)
    path = tmp_path / "model.bin"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(HarnessError, match=r"model\.bin: .*(truncated|damaged)"):
            ct2.read_model(path)


@pytest.mark.parametrize("damage", [0x00, 0x7F, 0xFF])
def test_one_wrong_byte_never_crashes_or_reads_past_the_end(tmp_path, damage):
    whole = model_bytes(SMALL)
    path = tmp_path / "model.bin"
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([damage]) + whole[position + 1 :])
        try:
            model = ct2.read_model(path)
        except HarnessError:
            continue
        for name in model.variables:
            model.array(name)


def test_trailing_bytes_are_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(model_bytes(SMALL) + b"x")
    with pytest.raises(HarnessError, match="1 bytes after its end"):
        ct2.read_model(path)


def test_other_model_kind_is_refused(tmp_path):
    with pytest.raises(HarnessError, match="'TransformerSpec'"):
        ct2.read_model(write(tmp_path, SMALL, specification="TransformerSpec"))


def test_other_format_version_is_refused(tmp_path):
    with pytest.raises(HarnessError, match="binary version 5"):
        ct2.read_model(write(tmp_path, SMALL, version=5))


def test_whisper_cpp_model_is_not_taken_for_ct2():
    with pytest.raises(HarnessError, match="binary version"):
        ct2.read_model(models.upstream_source() / "models" / "for-tests-ggml-tiny.bin")


def test_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(HarnessError, match=r"model\.bin: cannot read: No such file"):
        models.convert(tmp_path, tmp_path / "out.bin")


def test_stacked_projections_are_split_into_query_key_value(tmp_path, whisper_arrays):
    tensors = dict(ct2.whisper_tensors(ct2.read_model(write(tmp_path, whisper_arrays))))
    attentions = ("encoder.blocks.0.attn", "decoder.blocks.0.attn", "decoder.blocks.0.cross_attn")
    for attention in attentions:
        for value, part in enumerate(("query", "key", "value", "out"), start=1):
            weight = tensors[f"{attention}.{part}.weight"]
            assert weight.shape == (N_STATE, N_STATE)
            assert (weight == value).all(), part
            if part != "key":
                assert (tensors[f"{attention}.{part}.bias"] == 10 * value).all(), part


def test_tensor_set_is_the_one_upstream_loads(tmp_path, whisper_arrays):
    model = ct2.read_model(write(tmp_path, whisper_arrays))
    shapes = {name: values.shape for name, values in ct2.whisper_tensors(model)}
    assert shapes == ggml_file.tensor_shapes(ct2.whisper_hparams(model))
    assert not [name for name in shapes if name.endswith("key.bias")]


def test_converted_file_is_a_complete_model(tmp_path, whisper_arrays):
    write(tmp_path, whisper_arrays)
    hparams = ggml_file.check(models.convert(tmp_path, tmp_path / "out.bin"))
    assert hparams == ggml_file.HParams(N_VOCAB, 1500, N_STATE, 2, 1, 448, N_STATE, 2, 1, 80, 1)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("decoder/layer_0/attention/linear_1/bias", np.ones(16, np.float16), "keys with a bias"),
        ("encoder/layer_0/self_attention/linear_0/weight", np.ones((25, 8), np.float16), "multiple of 3"),
        ("encoder/layer_0/ffn/linear_1/weight", np.ones((8, 31), np.float16), "expected"),
        ("encoder/layer_0/ffn/linear_1/weight", np.ones((8, 32), np.int8), "int8"),
        ("decoder/embeddings/weight", np.ones((51000, 8), np.float16), "51000 tokens"),
        ("encoder/conv1/weight", np.ones((8, 240), np.float16), "2 dimensions"),
    ],
)
def test_unusual_model_is_refused_and_nothing_is_left_behind(tmp_path, whisper_arrays, name, values, reason):
    write(tmp_path, whisper_arrays | {name: values})
    with pytest.raises(HarnessError, match=reason):
        models.convert(tmp_path, tmp_path / "out.bin")
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]


def test_missing_variable_is_named(tmp_path, whisper_arrays):
    name = "decoder/layer_0/ffn/layer_norm/gamma"
    write(tmp_path, {key: values for key, values in whisper_arrays.items() if key != name})
    with pytest.raises(HarnessError, match=f"no variable {name}"):
        models.convert(tmp_path, tmp_path / "out.bin")
