"""The Python face of libwhisper: what it refuses, and that every rule and its ranges are those of the library."""

import re
import subprocess
import sys

import native_tools as tools
import numpy as np
import pytest

from pyharness import native, paths, rules
from pyharness.errors import HarnessError
from pyharness.native import Decoding, Model, library


def test_use_after_close_raises(tiny_en):
    model = Model(tiny_en)
    state = model.state()
    state.close()
    state.close()
    with pytest.raises(ValueError, match="closed"):
        state.transcribe(np.zeros(16000, np.float32), Decoding())
    model.close()
    model.close()
    with pytest.raises(ValueError, match="closed"):
        model.state()


@pytest.mark.parametrize(
    "samples",
    [
        np.zeros((2, 16000), np.float32),
        np.zeros(16000, np.int16),
        np.full(16000, np.nan, np.float32),
        np.array([np.inf] * 16000),
        "samples",
    ],
)
def test_wrong_samples_raise(tiny_en, samples):
    with Model(tiny_en) as model, model.state() as state, pytest.raises(ValueError, match="samples"):
        state.transcribe(samples, Decoding())


def test_samples_of_any_layout_are_read_alike(tiny_en):
    clip = tools.audio_of("asterisk-en")
    layouts = [clip, clip.astype(">f4"), clip.astype(np.float64), np.repeat(clip, 2)[::2]]
    with Model(tiny_en) as model, model.state() as state:
        texts = {state.transcribe(samples, Decoding(max_tokens=40)).text for samples in layouts}
    assert len(texts) == 1 and texts != {""}


def test_a_broken_model_is_named_with_the_reason(tmp_path):
    broken = tmp_path / "broken.bin"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(HarnessError, match=r"broken\.bin.*magic"):
        Model(broken)
    with pytest.raises(HarnessError, match=r"nowhere\.bin"):
        Model(tmp_path / "nowhere.bin")


def test_a_profile_of_another_model_is_refused(tiny_en, tmp_path):
    profile = tmp_path / "base.json"
    profile.write_text('{"schema": 1, "model": {"n_text_layer": 6}}')
    with (
        Model(tiny_en) as model,
        model.state() as state,
        pytest.raises(HarnessError, match=r"base\.json.*another model"),
    ):
        state.set_profile(profile)


def test_rules_here_are_the_rules_of_the_library():
    lib = library()
    for name in rules.RULES:
        assert lib.whisper_kv_rule_from_name(name.encode()) >= 0
    assert len(rules.RULES) == lib.WHISPER_KV_RULE_COUNT


def test_settings_of_the_rules_are_fields_of_the_library_with_the_same_default(tiny_en):
    lib = library()
    params = native._sized("struct whisper_kv_view_params")
    lib.whisper_kv_view_default_params(params)
    for name in rules.RULES:
        rule = rules.make(name)
        settings = vars(rule) | ({"sinks": lib.WHISPER_KV_SINKS_FIRST_STEP} if hasattr(rule, "sinks") else {})
        for field, value in settings.items():
            assert getattr(params, field) == pytest.approx(value), (name, field)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("padsink-trak", {}, "Did you mean 'padsink-track'"),
        ("xyz", {}, "Known rules"),
        ("padsink-track", {"budget": 0}, "1 to 1500"),
        ("padsink-track", {"budget": 1501}, "1 to 1500"),
        ("padsink-track", {"budget": 1.5}, "an integer"),
        ("padsink-track", {"tau": float("nan")}, "0 to 1"),
        ("padsink-track", {"tau": True}, "a number"),
        ("stride", {"tau": 0.5}, "no setting 'tau'"),
    ],
)
def test_wrong_rules_and_settings_are_named(name, settings, reason):
    with pytest.raises(HarnessError) as caught:
        rules.make(name, **settings)
    assert reason in caught.value.message


def test_the_header_is_read_by_cffi_as_it_is():
    """Between its marks the C header has no line that cffi cannot parse."""
    import cffi

    header = (paths.REPOSITORY / "ggml-patch" / "include" / "whisper-kv-view.h").read_text()
    declarations = re.search(r"// cffi: begin\n(.*)// cffi: end\n", header, re.S)[1]
    ffi = cffi.FFI()
    ffi.cdef("struct whisper_context; struct whisper_state;" + declarations)
    assert ffi.sizeof("struct whisper_kv_view_counters") == 4 + 4 + 15 * 8
    assert ffi.sizeof("struct whisper_kv_view_times") == 4 + 4 + 5 * 8  # 4 of padding


# --- the C interface --------------------------------------------------------------------------------------------------


@pytest.fixture
def handles(tiny_en):
    with Model(tiny_en) as model, model.state() as state:
        yield model.handle, state.handle


def test_null_is_refused_wherever_it_is_given(handles):
    lib, null = library(), native.ffi.NULL
    ctx, state = handles  # a context without a state of its own
    params = native._sized("struct whisper_kv_view_params")
    counters = native._sized("struct whisper_kv_view_counters")
    message = native.ffi.new("char[100]")
    calls = [
        lib.whisper_kv_view_default_params(null),
        lib.whisper_kv_view_check(null, params, message, 100),
        lib.whisper_kv_view_check(ctx, null, null, 0),
        lib.whisper_kv_view_load_profile(ctx, null, params, message, 100),
        lib.whisper_kv_view_set(null, params),
        lib.whisper_kv_view_set(ctx, null),
        lib.whisper_kv_view_get(null, params),
        lib.whisper_kv_view_get(ctx, null),
        lib.whisper_kv_view_set_state(null, state, params),
        lib.whisper_kv_view_set_state(ctx, null, params),
        lib.whisper_kv_view_set_state(ctx, state, null),
        lib.whisper_kv_view_get_state(ctx, null, params),
        lib.whisper_kv_view_get_state(ctx, state, null),
        lib.whisper_kv_view_get_counters(ctx, null, counters),
        lib.whisper_kv_view_get_counters(ctx, state, null),
        lib.whisper_kv_view_reset_counters(ctx, null),
        lib.whisper_kv_view_set_step_callback(null, null, null, null),
        lib.whisper_kv_view_keep_encoding(ctx, null, True),
    ]
    assert set(calls) == {lib.WHISPER_KV_ERR_PARAM}
    assert b"NULL" in native.ffi.string(message)


def test_a_profile_is_not_read_into_a_struct_of_unknown_size(handles, tmp_path):
    lib, ffi = library(), native.ffi
    profile = tmp_path / "profile.json"
    profile.write_text('{"schema": 1}')
    params, message = ffi.new("struct whisper_kv_view_params *"), ffi.new("char[200]")
    code = lib.whisper_kv_view_load_profile(handles[0], str(profile).encode(), params, message, 200)
    assert code == lib.WHISPER_KV_ERR_PARAM and b"size" in ffi.string(message) and params.budget == 0
    # a caller's mistake, whatever the file
    assert lib.whisper_kv_view_load_profile(handles[0], b"/none", ffi.NULL, message, 200) == lib.WHISPER_KV_ERR_PARAM
    params.size, params.budget = ffi.sizeof(params[0]), 7
    assert lib.whisper_kv_view_load_profile(handles[0], b"/none", params, message, 200) == lib.WHISPER_KV_ERR_FILE
    assert params.budget == 7


def test_structs_of_older_programs_are_read_and_written_within_their_size(handles):
    lib, ffi = library(), native.ffi
    ctx, state = handles

    older = ffi.new("struct whisper_kv_view_params *")
    older.size = ffi.offsetof("struct whisper_kv_view_params", "lookbehind")
    older.lookbehind = 77  # not ours to touch
    assert lib.whisper_kv_view_default_params(older) == 0
    older.rule, older.budget, older.tau = lib.WHISPER_KV_RULE_STRIDE, 99, 0.5
    assert lib.whisper_kv_view_set(ctx, older) == lib.whisper_kv_view_set_state(ctx, state, older) == 0
    older.budget = 0
    assert lib.whisper_kv_view_get(ctx, older) == 0
    assert (older.budget, older.tau, older.lookbehind) == (99, 0.5, 77)
    ours = native._sized("struct whisper_kv_view_params")
    assert lib.whisper_kv_view_get_state(ctx, state, ours) == 0
    assert (ours.budget, ours.lookbehind) == (99, 0.25)

    counters = ffi.new("struct whisper_kv_view_counters *")
    counters.size = ffi.offsetof("struct whisper_kv_view_counters", "n_steps")
    counters.n_steps = 77
    assert lib.whisper_kv_view_get_counters(ctx, state, counters) == 0
    assert (counters.row_size, counters.n_steps) == (2 * 2 * 384, 77)


def test_a_view_is_refused_where_token_timestamps_were_asked_for(tiny_en):
    """Upstream drops DTW under flash attention with a warning; with a view there is a choice to make."""
    lib, ffi = library(), native.ffi
    params = lib.whisper_context_default_params()
    params.use_gpu = False
    params.dtw_token_timestamps = True
    params.dtw_aheads_preset = lib.WHISPER_AHEADS_TINY_EN
    ctx = lib.whisper_init_from_file_with_params_no_state(str(tiny_en).encode(), params)
    view, message = native._sized("struct whisper_kv_view_params"), ffi.new("char[200]")
    lib.whisper_kv_view_default_params(view)
    assert lib.whisper_kv_view_check(ctx, view, message, 200) == 0  # off
    view.rule = lib.WHISPER_KV_RULE_FULL
    assert lib.whisper_kv_view_check(ctx, view, message, 200) == lib.WHISPER_KV_ERR_UNSUPPORTED
    assert b"DTW" in ffi.string(message)
    lib.whisper_free(ctx)


@pytest.mark.parametrize(("shape", "warnings"), [("large", 1), ("medium", 0)])
def test_a_preset_that_may_be_the_wrong_one_is_said(shape, warnings):
    """large-v1 has the shape of large-v2. The model has no weights: only its shape is looked at."""
    lines = []

    @native.ffi.callback("void(int, const char *, void *)")
    def log(_level, text, _data):
        lines.append(native.ffi.string(text).decode())

    model_path = paths.REPOSITORY / "whisper_cpp" / "src" / "models" / f"for-tests-ggml-{shape}.bin"
    with Model(model_path) as model, model.state() as state:
        library().whisper_log_set(log, native.ffi.NULL)
        try:
            state.set_view(rules.PadsinkTrack())
            state.set_view(rules.FirstStepTop())
        finally:
            library().whisper_log_set(native._on_log, native.ffi.NULL)
    assert len([line for line in lines if "large-v1" in line]) == warnings


@pytest.mark.parametrize("at", ["prompt", "reduced"])
def test_what_a_step_callback_raises_ends_the_decoding(tiny_en, at):
    steps = []

    def fail(step):
        steps.append(step.kind)
        if step.kind == at:
            raise RuntimeError(f"in {at}")

    clip = tools.audio_of("asterisk-en")
    with Model(tiny_en) as model, model.state() as state:
        state.set_view(rules.PadsinkTrack())
        want = state.transcribe(clip, Decoding())
        state.on_step(fail)
        with pytest.raises(RuntimeError, match=at):
            state.transcribe(clip, Decoding())
        assert steps[-1] == at or len(steps) <= 3  # at most one more run
        state.on_step(None)
        assert state.transcribe(clip, Decoding()) == want


def test_mass_is_that_of_the_positions_encoded(tiny_en):
    """With a smaller audio_ctx after a whole encoding, nothing of the larger one is shown."""
    lib, ffi, steps = library(), native.ffi, []
    clip = tools.audio_of("asterisk-en")
    with Model(tiny_en) as model, model.state() as state:
        state.set_view(rules.Full())
        state.on_step(steps.append)
        state.transcribe(clip, Decoding(max_tokens=4))
        assert steps[0].mass.shape == (4, 6, 1500)
        steps.clear()
        params, keep = state._full_params(Decoding(max_tokens=4), None)
        params.audio_ctx = 512
        assert keep
        assert (
            lib.whisper_full_with_state(model.handle, state.handle, params, ffi.from_buffer("float[]", clip), len(clip))
            == 0
        )
    assert steps
    for step in steps:
        assert step.mass.shape == (4, 6, 512)
        np.testing.assert_allclose(step.mass.sum(axis=2), 1, atol=1e-3)


def test_help_needs_no_library():
    result = subprocess.run(
        [sys.executable, "-m", "pyharness", "sweep", "--help"],
        env={**tools.os.environ, "PADSINK_LIB": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Examples" in result.stdout
