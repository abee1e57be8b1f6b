"""whisper.cpp's model file: header, mel filters, vocabulary, then tensors until the end of the file.

All numbers are little-endian. Shapes here are in numpy order (slowest dimension first); the file stores
them reversed.
"""

import math
import os
import struct
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from pyharness.binary_reader import BoundedReader

MAGIC = 0x67676D6C
F32, F16 = 0, 1
N_FREQUENCIES = 201  # bins of a 400-sample FFT
SAMPLE_RATE = 16_000

# ftype of a file, without what counts the versions of quantization: name of the type of most weights
FTYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 8: "q5_0", 9: "q5_1"}
FTYPES_PER_VERSION = 1000

# tensor type id: (values per block, bytes per block)
BLOCKS = {
    F32: (1, 4),
    F16: (1, 2),
    2: (32, 18),  # q4_0
    3: (32, 20),  # q4_1
    6: (32, 22),  # q5_0
    7: (32, 24),  # q5_1
    8: (32, 34),  # q8_0
    10: (256, 84),  # q2_k
    11: (256, 110),  # q3_k
    12: (256, 144),  # q4_k
    13: (256, 176),  # q5_k
    14: (256, 210),  # q6_k
}


@dataclass(frozen=True)
class HParams:
    """Model dimensions, in the order of the file. ``ftype``: 0 f32, 1 f16, others quantized."""

    n_vocab: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int
    n_mels: int
    ftype: int = F16

    @property
    def weights(self) -> str:
        """Name of the type of most weights."""
        return FTYPES.get(self.ftype % FTYPES_PER_VERSION, f"ftype {self.ftype}")


@dataclass(frozen=True)
class Header:
    hparams: HParams
    filters: np.ndarray  # [n_mels][201], f32
    vocab: list[bytes]  # text tokens by id; the loader appends the special ones up to n_vocab


@dataclass(frozen=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int  # of the data, bytes from the start of the file
    n_bytes: int


# ---- reading


def read_hparams(path: Path) -> HParams:
    """Dimensions of a model file; `HarnessError` when it is not one."""
    with _open(path) as reader:
        return _read_hparams(reader)


def read_header(path: Path) -> Header:
    """Everything before the tensors; `HarnessError` when damaged."""
    with _open(path) as reader:
        return _read_header(reader)


def read_tensors(path: Path) -> list[TensorInfo]:
    """Index of the tensors, without their data; `HarnessError` when the file ends inside one."""
    with _open(path) as reader:
        _read_header(reader)
        return _read_tensors(reader)


def check(path: Path) -> HParams:
    """Dimensions of a complete model: every tensor that whisper.cpp asks for is there in full."""
    with _open(path) as reader:
        hparams = _read_header(reader).hparams
        found = {tensor.name: tensor.shape for tensor in _read_tensors(reader)}
        if not found:
            raise reader.error("it has a header but no weights")
        if hparams.n_audio_layer + hparams.n_text_layer > len(found):
            raise reader.error(f"it has {len(found)} tensors, too few for its layers")
        for name, shape in tensor_shapes(hparams).items():
            if found.pop(name, None) != shape:
                raise reader.error(f"tensor {name} of shape {shape} is missing")
        if found:
            raise reader.error(f"unexpected tensor {next(iter(found))}")
    return hparams


def _open(path: Path) -> BoundedReader:
    return BoundedReader(path, "whisper.cpp model")


def _read_header(reader: BoundedReader) -> Header:
    hparams = _read_hparams(reader)
    n_mels, n_frequencies = reader.unpack("2i", "filter size")
    if (n_mels, n_frequencies) != (hparams.n_mels, N_FREQUENCIES):
        raise reader.error(f"mel filters are {n_mels}x{n_frequencies}, not {hparams.n_mels}x{N_FREQUENCIES}")
    data = reader.take(4 * n_mels * n_frequencies, "mel filters")
    filters = np.frombuffer(data, "<f4").reshape(n_mels, n_frequencies)
    return Header(hparams, filters, _read_vocab(reader, hparams))


def _read_hparams(reader: BoundedReader) -> HParams:
    (magic,) = reader.unpack("I", "magic")
    if magic != MAGIC:
        raise reader.error(f"it starts with 0x{magic:08x}, not 0x{MAGIC:08x}")
    hparams = HParams(*reader.unpack("11i", "dimensions"))
    for field in fields(hparams):
        value = getattr(hparams, field.name)
        if value < (field.name != "ftype"):
            raise reader.error(f"{field.name} is {value}")
    if hparams.n_text_state != hparams.n_audio_state:
        raise reader.error(f"n_text_state {hparams.n_text_state} differs from n_audio_state {hparams.n_audio_state}")
    return hparams


def _read_vocab(reader: BoundedReader, hparams: HParams) -> list[bytes]:
    (count,) = reader.unpack("i", "vocabulary size")
    if not 0 <= count <= hparams.n_vocab:
        raise reader.error(f"vocabulary of {count} tokens where the model has {hparams.n_vocab}")
    return [reader.take(*reader.unpack("I", "token length"), "token") for _ in range(count)]


def _read_tensors(reader: BoundedReader) -> list[TensorInfo]:
    tensors = []
    while reader.remaining:
        tensors.append(_read_tensor(reader))
    return tensors


def _read_tensor(reader: BoundedReader) -> TensorInfo:
    n_dims, name_length, type_id = reader.unpack("3i", "tensor header")
    if not 1 <= n_dims <= 4:
        raise reader.error(f"tensor with {n_dims} dimensions at offset {reader.offset}")
    if type_id not in BLOCKS:
        raise reader.error(f"tensor of unknown type {type_id} at offset {reader.offset}")
    shape = reader.unpack(f"{n_dims}i", "tensor shape")[::-1]
    name = reader.text(name_length, "tensor name")
    block_values, block_bytes = BLOCKS[type_id]
    if min(shape) < 1 or shape[-1] % block_values:
        raise reader.error(f"tensor {name} has shape {shape}")
    n_bytes = math.prod(shape) // block_values * block_bytes
    offset = reader.offset
    reader.skip(n_bytes, f"tensor {name}")
    return TensorInfo(name, shape, type_id, offset, n_bytes)


# ---- what a model consists of


def tensor_shapes(hparams: HParams) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that whisper.cpp loads for these dimensions."""
    d_audio, d_text = hparams.n_audio_state, hparams.n_text_state
    shapes = {
        "encoder.positional_embedding": (hparams.n_audio_ctx, d_audio),
        "encoder.conv1.weight": (d_audio, hparams.n_mels, 3),
        "encoder.conv1.bias": (d_audio, 1),
        "encoder.conv2.weight": (d_audio, d_audio, 3),
        "encoder.conv2.bias": (d_audio, 1),
        **_norm("encoder.ln_post", d_audio),
    }
    for i in range(hparams.n_audio_layer):
        shapes |= _block(f"encoder.blocks.{i}", d_audio, ["attn"])
    shapes |= {
        "decoder.positional_embedding": (hparams.n_text_ctx, d_text),
        "decoder.token_embedding.weight": (hparams.n_vocab, d_text),
        **_norm("decoder.ln", d_text),
    }
    for i in range(hparams.n_text_layer):
        shapes |= _block(f"decoder.blocks.{i}", d_text, ["attn", "cross_attn"])
    return shapes


def _block(prefix: str, d: int, attentions: list[str]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for attention in attentions:
        shapes |= _norm(f"{prefix}.{attention}_ln", d)
        for part in ("query", "key", "value", "out"):
            shapes |= _linear(f"{prefix}.{attention}.{part}", d, d)
        del shapes[f"{prefix}.{attention}.key.bias"]  # Whisper has none
    return (
        shapes
        | _norm(f"{prefix}.mlp_ln", d)
        | _linear(f"{prefix}.mlp.0", d, 4 * d)
        | _linear(f"{prefix}.mlp.2", 4 * d, d)
    )


def _norm(prefix: str, d: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.weight": (d,), f"{prefix}.bias": (d,)}


def _linear(prefix: str, n_in: int, n_out: int) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.weight": (n_out, n_in), f"{prefix}.bias": (n_out,)}


def stored_type(name: str) -> int:
    """Type of a tensor in an f16 model: matrices and convolutions f16, vectors and positions f32."""
    is_matrix = name.endswith(".weight") and "ln" not in name.split(".")[-2]
    return F16 if is_matrix else F32


def mel_filterbank(n_mels: int) -> np.ndarray:
    """Triangular filters of equal area on the Slaney mel scale, 0..8000 Hz -> [n_mels][201], f32.

    Below 1000 Hz the scale is linear (15 mel per 1000 Hz), above it is logarithmic (27 mel per factor 6.4).
    """
    nyquist = SAMPLE_RATE / 2
    top_mel = 15 + 27 * math.log(nyquist / 1000) / math.log(6.4)
    mels = np.linspace(0, top_mel, n_mels + 2)
    edges = np.where(mels < 15, mels * 1000 / 15, 1000 * 6.4 ** ((mels - 15) / 27))  # Hz
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    frequencies = np.linspace(0, nyquist, N_FREQUENCIES)
    rising = (frequencies - left) / (centre - left)
    falling = (right - frequencies) / (right - centre)
    triangles = np.maximum(0, np.minimum(rising, falling))
    return (triangles * 2 / (right - left)).astype(np.float32)


# ---- writing


def write_model(path: Path, header: Header, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write an f16 model tensor by tensor: memory stays at one tensor however large the model.

    ``tensors`` yields every name of `tensor_shapes` once, in any order, with that shape.
    The file is on disk when this returns. Raises `ValueError` for a wrong, missing or repeated tensor.
    """
    expected = tensor_shapes(header.hparams)
    with Path(path).open("wb") as file:
        _write_header(file, header)
        for name, values in tensors:
            shape = expected.pop(name, None)
            if shape != values.shape:
                raise ValueError(f"tensor {name} has shape {values.shape}, expected {shape}")
            _write_tensor(file, name, values)
        if expected:
            raise ValueError(f"missing tensors: {', '.join(expected)}")
        file.flush()
        os.fsync(file.fileno())


def _write_header(file, header: Header) -> None:
    file.write(struct.pack("<I11i", MAGIC, *astuple(header.hparams)))
    file.write(struct.pack("<2i", *header.filters.shape))
    file.write(header.filters.astype("<f4").tobytes())
    file.write(struct.pack("<i", len(header.vocab)))
    for token in header.vocab:
        file.write(struct.pack("<I", len(token)) + token)


def _write_tensor(file, name: str, values: np.ndarray) -> None:
    type_id = stored_type(name)
    encoded = name.encode()
    file.write(struct.pack("<3i", values.ndim, len(encoded), type_id))
    file.write(struct.pack(f"<{values.ndim}i", *values.shape[::-1]))
    file.write(encoded)
    file.write(np.ascontiguousarray(values, "<f2" if type_id == F16 else "<f4").data)
