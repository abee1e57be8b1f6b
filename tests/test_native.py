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
    lib, ffi = library(), native.ffi
    params = ffi.new("struct whisper_kv_view_params *")
    lib.whisper_kv_view_default_params(params)
    for name in rules.RULES:
        rule = rules.make(name)
        for field, value in vars(rule).items():
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
    assert ffi.sizeof("struct whisper_kv_view_counters") == 4 + 4 + 14 * 8


def test_help_needs_no_library():
    result = subprocess.run(
        [sys.executable, "-m", "pyharness", "sweep", "--help"],
        env={**tools.os.environ, "PADSINK_LIB": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Examples" in result.stdout
