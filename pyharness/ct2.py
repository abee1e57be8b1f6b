"""Reads Whisper models in CTranslate2's format and hands out their tensors under whisper.cpp's names.

``model.bin`` is little-endian: version u32, specification name, revision u32, variable count u32, then per
variable name, rank u8, dimensions u32[rank], type u8, byte count u32, data; then aliases (count u32, pairs of
names). A name is its length u16 (with the closing NUL) and that many bytes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyharness.binary_reader import BoundedReader
from pyharness.errors import HarnessError
from pyharness.ggml_file import HParams, tensor_shapes

BINARY_VERSION = 6
SPECIFICATION = "WhisperSpec"
MAX_RANK = 8
DTYPES = {0: np.dtype("<f4"), 1: np.dtype("i1"), 2: np.dtype("<i2"), 3: np.dtype("<i4"), 4: np.dtype("<f2")}

# whisper.cpp's name inside a block -> (variable, part, parts): which of so many equal groups of its rows
BLOCK_SOURCES = {
    "attn_ln": ("self_attention/layer_norm", 0, 1),
    "attn.query": ("self_attention/linear_0", 0, 3),
    "attn.key": ("self_attention/linear_0", 1, 3),
    "attn.value": ("self_attention/linear_0", 2, 3),
    "attn.out": ("self_attention/linear_1", 0, 1),
    "cross_attn_ln": ("attention/layer_norm", 0, 1),
    "cross_attn.query": ("attention/linear_0", 0, 1),
    "cross_attn.key": ("attention/linear_1", 0, 2),
    "cross_attn.value": ("attention/linear_1", 1, 2),
    "cross_attn.out": ("attention/linear_2", 0, 1),
    "mlp_ln": ("ffn/layer_norm", 0, 1),
    "mlp.0": ("ffn/linear_0", 0, 1),
    "mlp.2": ("ffn/linear_1", 0, 1),
}
TOP_SOURCES = {
    "encoder.positional_embedding": "encoder/position_encodings/encodings",
    "encoder.conv1.weight": "encoder/conv1/weight",
    "encoder.conv1.bias": "encoder/conv1/bias",
    "encoder.conv2.weight": "encoder/conv2/weight",
    "encoder.conv2.bias": "encoder/conv2/bias",
    "encoder.ln_post.weight": "encoder/layer_norm/gamma",
    "encoder.ln_post.bias": "encoder/layer_norm/beta",
    "decoder.positional_embedding": "decoder/position_encodings/encodings",
    "decoder.token_embedding.weight": "decoder/embeddings/weight",
    "decoder.ln.weight": "decoder/layer_norm/gamma",
    "decoder.ln.bias": "decoder/layer_norm/beta",
}


@dataclass(frozen=True)
class Variable:
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int  # of the data, bytes from the start of the file


@dataclass(frozen=True)
class Ct2Model:
    """Index of a ``model.bin``; data is read from the file one variable at a time."""

    path: Path
    variables: dict[str, Variable]

    def array(self, name: str) -> np.ndarray:
        """One variable with its stored shape and type; `HarnessError` when the model has no such variable."""
        variable = self._variable(name)
        count = math.prod(variable.shape)
        values = np.fromfile(self.path, variable.dtype, count, offset=variable.offset)
        return values.reshape(variable.shape)

    def weights(self, name: str) -> np.ndarray:
        """A variable of f32 or f16 numbers; `HarnessError` for quantized ones."""
        dtype = self._variable(name).dtype
        if dtype.kind != "f":
            raise HarnessError(f"{self.path}: {name} is {dtype.name}: convert a float16 or float32 model instead")
        return self.array(name)

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        shape = self._variable(name).shape
        if len(shape) != rank:
            raise HarnessError(f"{self.path}: {name} has {len(shape)} dimensions, expected {rank}")
        return shape

    def _variable(self, name: str) -> Variable:
        if name not in self.variables:
            raise HarnessError(f"{self.path}: not a complete Whisper model: no variable {name}")
        return self.variables[name]


# ---- reading


def read_model(path: Path) -> Ct2Model:
    """Index ``model.bin``; `HarnessError` when it is foreign, truncated or has trailing bytes."""
    with BoundedReader(path, "CTranslate2 model") as reader:
        (version,) = reader.unpack("I", "version")
        if version != BINARY_VERSION:
            raise reader.error(f"binary version {version}, only {BINARY_VERSION} is understood")
        specification = _read_name(reader)
        if specification != SPECIFICATION:
            raise reader.error(f"it holds a {specification!r} model, not {SPECIFICATION!r}")
        _revision, count = reader.unpack("2I", "variable count")
        variables = dict(_read_variable(reader) for _ in range(count))
        _read_aliases(reader, variables)
        if reader.remaining:
            raise reader.error(f"{reader.remaining} bytes after its end")
    return Ct2Model(Path(path), variables)


def _read_name(reader: BoundedReader) -> str:
    return reader.text(*reader.unpack("H", "name length"), "name").rstrip("\0")


def _read_variable(reader: BoundedReader) -> tuple[str, Variable]:
    name = _read_name(reader)
    (rank,) = reader.unpack("B", f"rank of {name}")
    if rank > MAX_RANK:
        raise reader.error(f"{name} has {rank} dimensions")
    shape = reader.unpack(f"{rank}I", f"shape of {name}")
    type_id, n_bytes = reader.unpack("BI", f"type of {name}")
    if type_id not in DTYPES:
        raise reader.error(f"{name} has unknown type {type_id}")
    dtype = DTYPES[type_id]
    if math.prod(shape) * dtype.itemsize != n_bytes:
        raise reader.error(f"{name} of shape {shape} and type {dtype.name} cannot take {n_bytes} bytes")
    offset = reader.offset
    reader.skip(n_bytes, f"variable {name}")
    return name, Variable(shape, dtype, offset)


def _read_aliases(reader: BoundedReader, variables: dict[str, Variable]) -> None:
    (count,) = reader.unpack("I", "alias count")
    for _ in range(count):
        alias, name = _read_name(reader), _read_name(reader)
        if name not in variables:
            raise reader.error(f"alias {alias} points to {name}, which is not there")
        variables[alias] = variables[name]


# ---- Whisper's tensors


def whisper_hparams(model: Ct2Model) -> HParams:
    """Dimensions of a Whisper model, from the shapes of its variables."""
    n_audio_ctx, n_audio_state = model.shape("encoder/position_encodings/encodings", 2)
    n_text_ctx, n_text_state = model.shape("decoder/position_encodings/encodings", 2)
    return HParams(
        n_vocab=model.shape("decoder/embeddings/weight", 2)[0],
        n_audio_ctx=n_audio_ctx,
        n_audio_state=n_audio_state,
        n_audio_head=_scalar(model, "encoder/num_heads"),
        n_audio_layer=_count_layers(model, "encoder"),
        n_text_ctx=n_text_ctx,
        n_text_state=n_text_state,
        n_text_head=_scalar(model, "decoder/num_heads"),
        n_text_layer=_count_layers(model, "decoder"),
        n_mels=model.shape("encoder/conv1/weight", 3)[1],
    )


def whisper_tensors(model: Ct2Model) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor that whisper.cpp loads, in its shape there; `HarnessError` where the model differs."""
    for name, shape in tensor_shapes(whisper_hparams(model)).items():
        values = _whisper_tensor(model, name)
        if values.size != math.prod(shape):
            raise HarnessError(f"{model.path}: {name} has shape {values.shape}, expected {shape}")
        if name.endswith(".key.weight"):
            _check_no_bias(model, name)
        yield name, values.reshape(shape)


def _whisper_tensor(model: Ct2Model, name: str) -> np.ndarray:
    variable, part, parts = _source(name)
    values = np.atleast_1d(model.weights(variable))
    if len(values) % parts:
        raise HarnessError(f"{model.path}: {variable} has {len(values)} rows, not a multiple of {parts}")
    n_rows = len(values) // parts
    return values[part * n_rows : (part + 1) * n_rows]


def _source(name: str) -> tuple[str, int, int]:
    """(variable, part, parts) of a tensor named as in whisper.cpp."""
    if name in TOP_SOURCES:
        return TOP_SOURCES[name], 0, 1
    side, _blocks, layer, *inner, kind = name.split(".")
    variable, part, parts = BLOCK_SOURCES[".".join(inner)]
    if variable.endswith("layer_norm"):
        kind = {"weight": "gamma", "bias": "beta"}[kind]
    return f"{side}/layer_{layer}/{variable}/{kind}", part, parts


def _check_no_bias(model: Ct2Model, key_weight: str) -> None:
    """Keys have no bias in Whisper; the stacked matrices store zeros in its place."""
    bias = _whisper_tensor(model, key_weight.removesuffix("weight") + "bias")
    if bias.any():
        raise HarnessError(f"{model.path}: {key_weight}: keys with a bias, which whisper.cpp has no place for")


def _scalar(model: Ct2Model, name: str) -> int:
    model.shape(name, 0)
    return int(model.array(name))


def _count_layers(model: Ct2Model, side: str) -> int:
    prefix = f"{side}/layer_"
    names = (name.removeprefix(prefix).split("/")[0] for name in model.variables if name.startswith(prefix))
    return len({name for name in names if name.isdecimal()})
