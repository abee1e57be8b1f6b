"""Where models come from: a package index, a model hub, a conversion, a quantization or a random generator.

Every model is one file ``ggml-NAME.bin`` in `paths.models_dir`. A file appears there under its name only
when it is complete, and one that is already there is checked and reused.
"""

import contextlib
import dataclasses
import difflib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.progress import Progress

from pyharness import ct2, ggml_file, paths
from pyharness.errors import HarnessError
from pyharness.ggml_file import Header, HParams
from pyharness.model_download import PACKAGES, fetch_packages, fetch_published, hub_names, progress_console
from pyharness.model_download import sha256 as sha256

QUANTIZED_TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
SYNTHETIC_PREFIX = "synth-"

N_VOCAB_ENGLISH, N_VOCAB_MULTILINGUAL, N_VOCAB_V3 = 51864, 51865, 51866


def _shape(state: int, head: int, audio_layer: int, text_layer: int, n_vocab: int, n_mels: int = 80) -> HParams:
    return HParams(n_vocab, 1500, state, head, audio_layer, 448, state, head, text_layer, n_mels)


SHAPES = {
    "tiny": _shape(384, 6, 4, 4, N_VOCAB_MULTILINGUAL),
    "tiny.en": _shape(384, 6, 4, 4, N_VOCAB_ENGLISH),
    "base": _shape(512, 8, 6, 6, N_VOCAB_MULTILINGUAL),
    "base.en": _shape(512, 8, 6, 6, N_VOCAB_ENGLISH),
    "small": _shape(768, 12, 12, 12, N_VOCAB_MULTILINGUAL),
    "small.en": _shape(768, 12, 12, 12, N_VOCAB_ENGLISH),
    "medium": _shape(1024, 16, 24, 24, N_VOCAB_MULTILINGUAL),
    "medium.en": _shape(1024, 16, 24, 24, N_VOCAB_ENGLISH),
    "large-v2": _shape(1280, 20, 32, 32, N_VOCAB_MULTILINGUAL),
    "large-v3": _shape(1280, 20, 32, 32, N_VOCAB_V3, n_mels=128),
    "large-v3-turbo": _shape(1280, 20, 32, 4, N_VOCAB_V3, n_mels=128),
}


# ---- names and files


def resolve(name_or_path: str | Path) -> Path:
    """A complete model file: an existing path, or what `get` finds for a name. Otherwise `HarnessError`."""
    path = Path(name_or_path).expanduser()
    if path.is_file():
        ggml_file.check(path)
        return path
    if path.suffix == ".bin" or len(path.parts) > 1:
        raise HarnessError(f"{name_or_path}: no such file")
    return get(str(name_or_path))


def get(name: str) -> Path:
    """The file of a named model; fetched or made if it is not in `paths.models_dir` yet.

    Raises `HarnessError` for an unknown name, a server that does not answer, or a damaged file.
    """
    _check_known(name)
    path = path_of(name)
    if path.exists():
        _check_cached(path)
    elif name in PACKAGES or name in hub_names():
        _fetch(name)
    elif _unquantized(name):
        binary("whisper-quantize")  # before a long download
        quantize(get(_unquantized(name)), name.rsplit("-", 1)[1], path)
    else:
        synthesize(name.removeprefix(SYNTHETIC_PREFIX))
    return path


def ct2_folder(name: str) -> Path:
    """The published weights of a model in CTranslate2's format: those that ``ggml-NAME.bin`` is converted from.

    Raises `HarnessError` for a name without them, or when they are not to be had.
    """
    if name not in PACKAGES:
        raise HarnessError(f"model '{name}' is not published in CTranslate2's format (known: {', '.join(PACKAGES)})")
    folder = paths.models_dir() / f"ct2-{name}"
    if not folder.is_dir():
        with _fetched_packages(name) as fetched:
            fetched.replace(folder)
    return folder


def published_name(path: Path) -> str:
    """Of the weights in a model file, by its name: ``base`` for ``ggml-base-q5_0.bin``."""
    name = path.stem.removeprefix("ggml-")
    return _unquantized(name) or name


def path_of(name: str) -> Path:
    return paths.models_dir() / f"ggml-{name}.bin"


def known_names() -> list[str]:
    """Names that `get` accepts; each also with ``-TYPE`` appended, which quantizes it."""
    return [*PACKAGES, *hub_names(), *(SYNTHETIC_PREFIX + shape for shape in SHAPES)]


def is_synthetic(path: str | Path) -> bool:
    """Whether a model file holds random weights, by its name: such a model is for timing only."""
    return Path(path).name.startswith(f"ggml-{SYNTHETIC_PREFIX}")


def binary(name: str) -> Path:
    """A program of the native build, from folder ``$PADSINK_BIN``, else ``build/bin`` of the repository."""
    folder = Path(os.environ.get("PADSINK_BIN") or paths.REPOSITORY / "build" / "bin")
    if not os.access(folder / name, os.X_OK):
        raise HarnessError(f"{folder / name} is missing: run ./build.sh")
    return folder / name


def upstream_source() -> Path:
    """The whisper.cpp tree: folder ``$WHISPER_CPP_SRC``, else the one that ./build.sh unpacks."""
    return Path(os.environ.get("WHISPER_CPP_SRC") or paths.REPOSITORY / "whisper_cpp" / "src")


@dataclasses.dataclass(frozen=True)
class Listed:
    """One row of ``models list``."""

    name: str
    source: str
    path: Path
    n_bytes: int | None  # None: not on disk
    problem: str | None  # why the file on disk cannot be used


def list_models() -> list[Listed]:
    """Every known model, then every other model file in `paths.models_dir`."""
    rows = [_listed(name, _source_of(name), path_of(name)) for name in known_names()]
    known = {row.path for row in rows}
    others = sorted(path for path in paths.models_dir().glob("*.bin") if path not in known)
    return rows + [_listed(path.stem.removeprefix("ggml-"), "file", path) for path in others]


def _listed(name: str, source: str, path: Path) -> Listed:
    if not path.is_file():
        return Listed(name, source, path, None, None)
    try:
        ggml_file.check(path)
    except HarnessError as error:
        return Listed(name, source, path, path.stat().st_size, error.message)
    return Listed(name, source, path, path.stat().st_size, None)


def _source_of(name: str) -> str:
    if name in PACKAGES:
        return "package index"
    return "model hub" if name in hub_names() else "random weights"


def _unquantized(name: str) -> str | None:
    """``base`` for ``base-q5_0``; None for a name without a type."""
    stem, _, type_ = name.rpartition("-")
    return stem if type_ in QUANTIZED_TYPES else None


def _check_known(name: str) -> None:
    if name in known_names() or _unquantized(name) in known_names():
        return
    close = difflib.get_close_matches(name, known_names(), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise HarnessError(f"unknown model {name!r}{hint} ('pyharness models list' shows all)")


def _check_cached(path: Path) -> None:
    try:
        ggml_file.check(path)
    except HarnessError as error:
        raise HarnessError(f"{error.message}; delete the file to get it again") from None


def _fetch(name: str) -> None:
    path = path_of(name)
    try:
        if name in PACKAGES:
            _fetch_and_convert(name)
        else:
            with _written_whole(path) as part:
                fetch_published(name, part)
    except HarnessError as error:
        raise HarnessError(f"{error.message}\nOr place the file by hand: {path}") from error


def _fetch_and_convert(name: str) -> None:
    header_for(SHAPES[name], name)  # fails before the download where ./build.sh has not run
    with _fetched_packages(name) as folder:
        convert(folder, path_of(name))


@contextlib.contextmanager
def _fetched_packages(name: str) -> Iterator[Path]:
    """A folder with the model in CTranslate2's format, which disappears unless it is moved."""
    paths.models_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.models_dir(), prefix=".get-") as temporary:
        folder = Path(temporary) / name
        folder.mkdir()
        fetch_packages(name, folder)
        yield folder


@contextlib.contextmanager
def _written_whole(path: Path) -> Iterator[Path]:
    """Yields a temporary neighbour that becomes ``path`` on success and disappears on failure."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise HarnessError(f"{path}: cannot write: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


# ---- made here


def convert(ct2_dir: str | Path, out: str | Path) -> Path:
    """Convert a CTranslate2 Whisper model (a folder with ``model.bin``) to an f16 file ``out``.

    Raises `HarnessError` when the model is foreign, damaged or quantized, or the upstream tree is missing.
    """
    model = ct2.read_model(Path(ct2_dir) / "model.bin")
    header = header_for(ct2.whisper_hparams(model), model.path)
    _write(Path(out), header, ct2.whisper_tensors(model))
    return Path(out)


def quantize(source: str | Path, type_: str, out: str | Path | None = None) -> Path:
    """Quantize a model (name or path) to ``type_``, into ``out`` or next to it as ``STEM-TYPE.bin``.

    Raises `HarnessError` for an unknown type, a model that is quantized already, or a missing native build.
    """
    if type_ not in QUANTIZED_TYPES:
        raise HarnessError(f"unknown type {type_!r}: choose from {', '.join(QUANTIZED_TYPES)}")
    path = resolve(source)
    if ggml_file.read_hparams(path).ftype > ggml_file.F16:
        raise HarnessError(f"{path}: quantized already; start from its f16 file")
    target = Path(out) if out else path.with_name(f"{path.stem}-{type_}.bin")
    if is_synthetic(path) and not is_synthetic(target):
        raise HarnessError(f"{target}: a copy of random weights must be named ggml-{SYNTHETIC_PREFIX}*")
    with _written_whole(target) as part, progress_console().status(f"quantizing {path.name} to {type_}"):
        command = [binary("whisper-quantize"), path, part, type_]
        finished = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if finished.returncode:
            lines = finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"]
            raise HarnessError(f"{path}: whisper-quantize failed: {lines[-1]}")
        ggml_file.check(part)
    return target


def synthesize(shape: str, seed: int = 0) -> Path:
    """Write ``ggml-synth-SHAPE.bin``: random f16 weights in the shape of a published model, for timing only.

    Matrices and biases are normal with deviation 0.02, norm weights are 1. The same seed gives the same file.
    """
    if shape not in SHAPES:
        raise HarnessError(f"unknown shape {shape!r}: choose from {', '.join(SHAPES)}")
    path = path_of(SYNTHETIC_PREFIX + shape)
    _write(path, header_for(SHAPES[shape], shape), _random_tensors(SHAPES[shape], seed))
    return path


def header_for(hparams: HParams, what: str | Path) -> Header:
    """Header with upstream's vocabulary and mel filters; ``what`` names the model in errors.

    Models with 51866 tokens use the multilingual text tokens too: the loader adds the special ones itself.
    """
    if hparams.n_vocab not in (N_VOCAB_ENGLISH, N_VOCAB_MULTILINGUAL, N_VOCAB_V3):
        raise HarnessError(f"{what}: {hparams.n_vocab} tokens: not a published Whisper vocabulary")
    donor = "tiny.en" if hparams.n_vocab == N_VOCAB_ENGLISH else "tiny"
    path = upstream_source() / "models" / f"for-tests-ggml-{donor}.bin"
    if not path.is_file():
        raise HarnessError(f"{path} is missing: run ./build.sh")
    upstream = ggml_file.read_header(path)
    same_filters = upstream.hparams.n_mels == hparams.n_mels
    filters = upstream.filters if same_filters else ggml_file.mel_filterbank(hparams.n_mels)
    return Header(hparams, filters, upstream.vocab)


def _random_tensors(hparams: HParams, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    for name, shape in ggml_file.tensor_shapes(hparams).items():
        if name.endswith(".weight") and len(shape) == 1:
            yield name, np.ones(shape, np.float32)
        else:
            values = generator.standard_normal(shape, np.float32)
            values *= 0.02
            yield name, values


def _write(path: Path, header: Header, tensors: Iterator[tuple[str, np.ndarray]]) -> None:
    """Write a model file whole or not at all, with a progress bar."""
    n_tensors = len(ggml_file.tensor_shapes(header.hparams))
    with _written_whole(path) as part, Progress(console=progress_console()) as progress:
        shown = progress.track(tensors, total=n_tensors, description=f"writing {path.name}")
        ggml_file.write_model(part, header, shown)
