"""libwhisper through cffi: a model, its states, and what a decoding of a clip gives.

    with Model("ggml-base.bin") as model, model.state() as state:
        state.set_view(rules.PadsinkTrack(budget=192))
        print(state.transcribe(audio.load("clip.wav"), Decoding(language="en")).text)

The declarations come from the two C headers at run time, so that there is one truth about every struct. One thread
may use a state at a time; a model may have any number of states.
"""

import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import cffi
import numpy as np

from pyharness import paths
from pyharness.errors import HarnessError
from pyharness.rules import ModelLists, Profile, Rule

ffi = cffi.FFI()

# the declarations of ggml that whisper.h needs
GGML_TYPES = """
    typedef void (*ggml_log_callback)(int level, const char * text, void * user_data);
    typedef bool (*ggml_abort_callback)(void * data);
"""
GGML_LOG_LEVEL_ERROR = 4


@dataclass(frozen=True)
class Decoding:
    """How a clip is decoded; the same for every arm of a comparison."""

    language: str = "en"  # ISO 639-1 code, or "auto"
    beam_size: int = 1  # 1 = greedy
    best_of: int = 1  # samples per temperature above 0
    timestamps: bool = False
    temperature_inc: float = 0.0  # 0 = no temperature fallback
    logprob_thold: float = -1.0  # mean log probability below which a temperature counts as failed
    max_tokens: int = 0  # per window, 0 = no limit
    translate: bool = False
    threads: int = 1


@dataclass(frozen=True)
class Segment:
    start: float  # seconds
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    segments: tuple[Segment, ...]
    tokens: tuple[int, ...]  # ids, end-of-text and timestamps included
    language: str

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()


@dataclass(frozen=True)
class Counters:
    """struct whisper_kv_view_counters: what the decoder read since the last reset."""

    row_size: int
    n_prompts: int
    n_steps: int
    n_reduced: int
    n_full: int
    n_reexec: int
    n_reexec_tau: int
    n_reexec_eot: int
    n_full_runaway: int
    n_rows_view: int
    n_rows_read: int
    n_bytes_read: int
    n_rows_copied: int
    t_prompts_us: int
    t_steps_us: int
    t_tracking_us: int


@dataclass(frozen=True)
class Times:
    """struct whisper_kv_view_times: where the time of the decoder's graph went, nanoseconds."""

    t_weights_ns: int
    t_cross_ns: int
    t_signals_ns: int
    t_text_ns: int
    t_other_ns: int


@dataclass(frozen=True)
class Step:
    """struct whisper_kv_view_step: one run of the decoder, copied out of the callback."""

    kind: str  # "prompt", "reduced", "full" or "reexec"
    cause: str  # "none", "tau", "eot" or "runaway"
    n_audio: int
    centre: int
    window: tuple[int, int]  # first position, number of positions
    positions: np.ndarray | None  # [n] int32, ascending; None in full runs
    confidence: float
    sink_mass: float
    mass: np.ndarray | None  # [n_layer, n_head, positions encoded] float32; None in reduced runs


KINDS = ("prompt", "reduced", "full", "reexec")
CAUSES = ("none", "tau", "eot", "runaway")


# --- library ----------------------------------------------------------------------------------------------------------


def library_path() -> Path:
    """``$PADSINK_LIB``, else the library that build.sh made."""
    path = Path(os.environ.get("PADSINK_LIB") or paths.REPOSITORY / "build" / "lib" / "libwhisper.so")
    if not path.is_file():
        raise HarnessError(f"no library at '{path}': run ./build.sh, or set PADSINK_LIB")
    return path


def _declarations(header: Path) -> str:
    """What cffi can parse of a C header: no preprocessor lines, no macros, no deprecated functions."""
    try:
        text = header.read_text(encoding="utf-8")
    except OSError as error:
        raise HarnessError(f"cannot read '{header}': {error.strerror}; run ./build.sh") from error
    marked = re.search(r"// cffi: begin\n(.*)// cffi: end\n", text, re.S)
    if marked:
        return marked[1]
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    text = re.sub(r"WHISPER_DEPRECATED\(.*?\);", "", text, flags=re.S)
    text = text.replace("WHISPER_API", "")
    return text.replace('extern "C" {', "").rsplit("}", 1)[0]


def build_info() -> dict[str, str]:
    """Which library this is: its path, `build_sha256()`, and the CPU features it was built for."""
    features = ffi.string(library().whisper_print_system_info()).decode()
    return {
        "library": str(library_path()),
        "sha256": build_sha256(),
        "features": " ".join(re.findall(r"(\w+) = [1-9]", features)),
    }


def build_sha256() -> str:
    """Of the library's file and of its ggml. Loads neither, if the ggml lies beside the library."""
    path = library_path()
    digest = hashlib.sha256()
    for file in [path, *(sorted(path.parent.glob("libggml*.so")) or _loaded_ggml())]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _loaded_ggml() -> list[Path]:
    """The files of the ggml that the library loads from elsewhere: stock is linked to that of our build."""
    library()
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return sorted({Path(line.split(maxsplit=5)[5]) for line in lines if "/libggml" in line})


@functools.cache
def library():
    """The loaded library; its messages go to ``_log``."""
    path = library_path()
    ffi.cdef(GGML_TYPES)
    ffi.cdef(_declarations(paths.REPOSITORY / "whisper_cpp" / "src" / "include" / "whisper.h"))
    ffi.cdef(_declarations(paths.REPOSITORY / "ggml-patch" / "include" / "whisper-kv-view.h"))
    try:
        lib = ffi.dlopen(str(path))
    except OSError as error:
        raise HarnessError(f"cannot load '{path}': {error}") from error
    lib.whisper_log_set(_on_log, ffi.NULL)
    return lib


_log = threading.local()  # .errors: the library's error lines in this thread


@ffi.callback("void(int, const char *, void *)")
def _on_log(level, text, _):
    if level == GGML_LOG_LEVEL_ERROR:
        _log.errors = [*getattr(_log, "errors", [])[:9], ffi.string(text).decode("utf-8", "replace").strip()]


def _first_error() -> str:
    """The cause: what follows it in the log are only the callers giving up."""
    errors, _log.errors = getattr(_log, "errors", []), []
    # "function: reason" -> "reason"
    return re.sub(r"^\w+: ", "", errors[0]) if errors else "unknown reason"


# --- model and state --------------------------------------------------------------------------------------------------


class Model:
    """A loaded model without a state of its own. Close it after its states; use after close raises ValueError."""

    _init = "whisper_init_from_file_with_params_no_state"

    def __init__(self, path: str | Path, flash_attention: bool = True):
        self.path = Path(path)
        self._lib = library()
        if not self.path.is_file():
            raise HarnessError(f"no model file at '{self.path}'")
        params = self._lib.whisper_context_default_params()
        params.use_gpu = False
        params.flash_attn = flash_attention  # a view needs it
        _log.errors = []
        self._handle = getattr(self._lib, self._init)(os.fsencode(self.path), params)
        if not self._handle:
            raise HarnessError(f"cannot load model '{self.path}': {_first_error()}")

    @property
    def handle(self):
        if not self._handle:
            raise ValueError("the model is closed")
        return self._handle

    def state(self) -> "State":
        return State(self)

    def is_multilingual(self) -> bool:
        return bool(self._lib.whisper_is_multilingual(self.handle))

    def knows_language(self, code: str) -> bool:
        """``auto`` counts as known to multilingual models."""
        if not self.is_multilingual():
            return code == "en"
        known = (self._lib.whisper_lang_str(i) for i in range(self._lib.whisper_lang_max_id() + 1))
        return code == "auto" or code in {ffi.string(name).decode() for name in known}

    @property
    def end_of_text(self) -> int:
        """Id of the token that ends a text."""
        return self._lib.whisper_token_eot(self.handle)

    @property
    def n_layer(self) -> int:
        """Layers of the decoder."""
        return self._lib.whisper_model_n_text_layer(self.handle)

    @property
    def n_vocab(self) -> int:
        """Tokens that it knows, text and special ones."""
        return self._lib.whisper_n_vocab(self.handle)

    def prompt(self, language: str) -> list[int]:
        """The tokens that open a transcription without timestamps."""
        if not self.knows_language(language) or language == "auto":
            raise HarnessError(f"the model does not know the language '{language}'")
        lib, handle = self._lib, self.handle
        tokens = [lib.whisper_token_sot(handle)]
        if self.is_multilingual():
            language_id = lib.whisper_lang_id(language.encode())
            tokens += [lib.whisper_token_lang(handle, language_id), lib.whisper_token_transcribe(handle)]
        return [*tokens, lib.whisper_token_not(handle)]

    def check_view(self, rule: Rule, lists: ModelLists | None = None) -> None:
        """HarnessError unless the model can be read by this rule."""
        message = ffi.new("char[512]")
        if self._lib.whisper_kv_view_check(self.handle, self._params_of(rule, lists), message, 512) != 0:
            raise HarnessError(f"the view {rule.name} is refused: {ffi.string(message).decode('utf-8', 'replace')}")

    def _params_of(self, rule: Rule, lists: ModelLists | None):
        """struct whisper_kv_view_params of a rule."""
        if isinstance(rule, Profile):
            return self._params_in(rule.path)
        params = _sized("struct whisper_kv_view_params")
        self._lib.whisper_kv_view_default_params(params)
        params.rule = self._lib.whisper_kv_rule_from_name(rule.name.encode())
        for field in fields(rule):
            if field.name != "sinks":
                setattr(params, field.name, getattr(rule, field.name))
        if getattr(rule, "sinks", None) == "model":
            params.sinks = self._lib.WHISPER_KV_SINKS_MODEL
        if lists:
            params.aheads, params.n_aheads = lists.alignment_heads, len(lists.alignment_heads)
            params.sink_pos, params.n_sink_pos = lists.sink_positions, len(lists.sink_positions)
        return params

    def _params_in(self, profile: str | Path):
        """struct whisper_kv_view_params that a profile holds. HarnessError if it is none, or of another model."""
        params, message = _sized("struct whisper_kv_view_params"), ffi.new("char[512]")
        if self._lib.whisper_kv_view_load_profile(self.handle, os.fsencode(profile), params, message, 512) != 0:
            raise HarnessError(ffi.string(message).decode("utf-8", "replace"))
        return params

    def close(self):
        if self._handle:
            self._lib.whisper_free(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class State:
    """Decodes one clip at a time. Close it before its model."""

    def __init__(self, model: Model):
        self.model = model
        self._lib = model._lib
        _log.errors = []
        self._handle = self._lib.whisper_init_state(model.handle)
        if not self._handle:
            raise HarnessError(f"cannot create a state of model '{model.path}': {_first_error()}")
        self._on_step = ffi.NULL  # keeps cffi's callback alive while the library holds it
        self._raised = []  # by callbacks during the call of the library

    @property
    def handle(self):
        if not self._handle:
            raise ValueError("the state is closed")
        return self._handle

    def set_view(self, rule: Rule, lists: ModelLists | None = None) -> None:
        """Read by this rule from the next clip on. HarnessError with the library's reason if it refuses.

        Without ``lists``, the speech is tracked by the heads of upstream's preset, if there is one for the model.
        """
        self._set_params(self.model._params_of(rule, lists), rule.name)

    def set_profile(self, path: str | Path) -> None:
        """Read by a calibrated profile. HarnessError if it is none, or of another model."""
        self._set_params(self.model._params_in(path), f"of profile '{path}'")

    def _set_params(self, params, what: str) -> None:
        _log.errors = []
        if self._lib.whisper_kv_view_set_state(self.model.handle, self.handle, params) != 0:
            raise HarnessError(f"the view {what} is refused: {_first_error()}")

    def alignment_heads(self) -> list[tuple[int, int]]:
        """(layer, head) of the heads by which the view in force tracks the speech: the preset's, if none were given."""
        params = _sized("struct whisper_kv_view_params")
        self._lib.whisper_kv_view_get_state(self.model.handle, self.handle, params)
        return [tuple(params.aheads[i]) for i in range(params.n_aheads)]

    def keep_encoding(self, keep: bool) -> None:
        """While on, ``transcribe(None, ...)`` decodes the clip again without encoding it again."""
        self._lib.whisper_kv_view_keep_encoding(self.model.handle, self.handle, keep)

    def counters(self) -> Counters:
        return read_counters(self._lib, self.model.handle, self.handle)

    def reset_counters(self) -> None:
        self._lib.whisper_kv_view_reset_counters(self.model.handle, self.handle)

    def on_step(self, callback: Callable[[Step], None] | None) -> None:
        """Call ``callback`` after every run of the decoder; None switches it off. ``transcribe`` raises its errors."""
        wrapped = ffi.NULL
        if callback:

            @ffi.callback("whisper_kv_view_step_callback", onerror=self._on_raise)
            def wrapped(_ctx, _state, step, _user_data):
                callback(_copy_step(step))

        self._lib.whisper_kv_view_set_step_callback(self.model.handle, self.handle, wrapped, ffi.NULL)
        self._on_step = wrapped

    def _on_raise(self, _kind, exception, _traceback):
        self._raised.append(exception)

    def transcribe(
        self,
        samples: np.ndarray | None,
        decoding: Decoding,
        on_logits: Callable[[np.ndarray], None] | None = None,
        on_phase: Callable[[str], None] | None = None,
    ) -> Transcript:
        """Decode mono 16 kHz audio, 1-D float; None = the clip given last.

        ``on_logits`` sees a view of each sequence's logits, [n_vocab] float32, behind upstream's filters for tokens and
        before those for timestamps: without timestamps the next token is chosen from these. ``on_phase`` is told what
        has just ended: "mel" (the samples' spectrogram), "encode" (of a window) or "decode" (one run of the decoder).
        What a callback raises, and Ctrl-C, ends the decoding between two computations and is raised here.
        """
        data = np.empty(0, np.float32) if samples is None else _mono(samples)
        if not self.model.knows_language(decoding.language):
            raise HarnessError(f"the model does not know the language '{decoding.language}'")
        params, _keep = self._full_params(decoding, on_logits, on_phase)
        _log.errors = []
        self._raised.clear()
        code = self._lib.whisper_full_with_state(
            self.model.handle, self.handle, params, ffi.from_buffer("float[]", data), len(data)
        )
        if self._raised:
            raise self._raised[0]
        if code != 0:
            raise HarnessError(f"decoding failed with code {code}: {_first_error()}")
        return self._transcript()

    def _full_params(self, decoding: Decoding, on_logits, on_phase=None):
        """struct whisper_full_params, and what must live as long as the call."""
        lib = self._lib
        strategy = lib.WHISPER_SAMPLING_BEAM_SEARCH if decoding.beam_size > 1 else lib.WHISPER_SAMPLING_GREEDY
        params = lib.whisper_full_default_params(strategy)
        keep = {"language": ffi.new("char[]", decoding.language.encode())}
        params.language = keep["language"]
        params.n_threads = decoding.threads
        params.greedy.best_of = decoding.best_of
        params.beam_search.beam_size = decoding.beam_size
        params.no_timestamps = not decoding.timestamps
        params.temperature_inc = decoding.temperature_inc
        params.logprob_thold = decoding.logprob_thold
        params.max_tokens = decoding.max_tokens
        params.translate = decoding.translate
        params.no_context = True
        params.print_progress = False

        is_encoding = False

        @ffi.callback("whisper_encoder_begin_callback", error=False, onerror=self._on_raise)
        def encoder_begin(_ctx, _state, _user_data):
            nonlocal is_encoding
            is_encoding = True
            on_phase("mel")
            return True

        # called after every computation: gives Python the chance to see Ctrl-C
        @ffi.callback("bool(void *)", error=True, onerror=self._on_raise)
        def abort(_):
            nonlocal is_encoding
            if on_phase:
                on_phase("encode" if is_encoding else "decode")
                is_encoding = False
            return bool(self._raised)

        @ffi.callback("whisper_logits_filter_callback", onerror=self._on_raise)
        def logits_filter(_ctx, _state, _tokens, _n_tokens, logits, _user_data):
            on_logits(np.frombuffer(ffi.buffer(logits, 4 * self.model.n_vocab), np.float32))

        params.abort_callback = keep["abort"] = abort
        if on_logits:
            params.logits_filter_callback = keep["logits"] = logits_filter
        if on_phase:
            params.encoder_begin_callback = keep["encoder_begin"] = encoder_begin
        return params, keep

    def _transcript(self) -> Transcript:
        lib, state = self._lib, self.handle
        segments, tokens = [], []
        for i in range(lib.whisper_full_n_segments_from_state(state)):
            text = ffi.string(lib.whisper_full_get_segment_text_from_state(state, i)).decode("utf-8", "replace")
            start = lib.whisper_full_get_segment_t0_from_state(state, i) / 100
            end = lib.whisper_full_get_segment_t1_from_state(state, i) / 100
            segments.append(Segment(start, end, text))
            for j in range(lib.whisper_full_n_tokens_from_state(state, i)):
                tokens.append(lib.whisper_full_get_token_id_from_state(state, i, j))
        language = lib.whisper_lang_str(lib.whisper_full_lang_id_from_state(state))
        return Transcript(tuple(segments), tuple(tokens), ffi.string(language).decode())

    def close(self):
        if self._handle:
            self._lib.whisper_free_state(self._handle)
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def read_counters(lib, model, state) -> Counters:
    """Of a state of the model, by their handles; NULL = the model's own state."""
    counters = _sized("struct whisper_kv_view_counters")
    lib.whisper_kv_view_get_counters(model, state, counters)
    return _copied(counters, Counters)


def read_times(lib, model, state) -> Times:
    """Since whisper_kv_view_time_nodes(); handles as above."""
    times = _sized("struct whisper_kv_view_times")
    lib.whisper_kv_view_get_times(model, state, times)
    return _copied(times, Times)


def _copied(struct, kind: type):
    return kind(**{field.name: getattr(struct, field.name) for field in fields(kind)})


def _sized(struct: str):
    """A zeroed struct that says its size, as the library asks of its callers."""
    new = ffi.new(f"{struct} *")
    new.size = ffi.sizeof(struct)
    return new


def _mono(samples) -> np.ndarray:
    """Contiguous float32 in native byte order; ValueError for anything but finite 1-D floats."""
    array = np.asarray(samples)
    if array.ndim != 1 or array.dtype.kind != "f":
        raise ValueError(f"samples must be 1-D floats at 16 kHz, not {array.dtype} of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("samples hold NaN or infinite values")
    return np.ascontiguousarray(array, dtype=np.float32)


def _copy_step(step) -> Step:
    def array(pointer, dtype, *shape):
        if not pointer:
            return None
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(ffi.buffer(pointer, size), dtype).reshape(shape).copy()

    return Step(
        kind=KINDS[step.kind],
        cause=CAUSES[step.cause],
        n_audio=step.n_audio,
        centre=step.centre,
        window=(step.window_lo, step.window_n),
        positions=array(step.pos, np.int32, step.n_pos),
        confidence=step.confidence,
        sink_mass=step.sink_mass,
        mass=array(step.mass, np.float32, step.n_layer, step.n_head, step.n_ctx),
    )
