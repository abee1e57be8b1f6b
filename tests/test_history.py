"""What a state decoded before must not matter."""

import itertools

import native_tools as tools
import numpy as np
import pytest
import soundfile

from pyharness import audio, native
from pyharness.native import Decoding, Model

TRACK = ["padsink-track", {"budget": 128, "tau": 0.4}]
OTHER = ["padsink-track", {"budget": 256}]


@pytest.fixture(scope="module")
def speech():
    clips = sorted(tools.clips("asterisk-en", 12), key=lambda clip: clip.duration)
    return clips[-1].audio, clips[0].audio  # a long one and a short one


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """A bit more than two windows of speech."""
    parts = [audio.load(clip.audio) for clip in tools.clips("asterisk-en", 24)]
    samples = np.concatenate(list(itertools.islice(itertools.cycle(parts), 40)))[: 65 * audio.SAMPLE_RATE]
    path = tmp_path_factory.mktemp("long") / "long.flac"
    soundfile.write(path, samples, audio.SAMPLE_RATE)
    return path


def decode(model, requests, folder):
    return tools.results(tools.start_decoding(tools.OURS, model, requests, folder))


@pytest.mark.parametrize("beam_size", [1, 5])
def test_a_clip_gives_the_same_after_another_clip(tiny_en, speech, tmp_path, beam_size):
    x, y = speech
    first = tools.request(x, TRACK, beam_size=beam_size)
    alone = decode(tiny_en, [first], tmp_path)[0]
    among = decode(tiny_en, [first, tools.request(y, OTHER, beam_size=5), first], tmp_path)
    assert among[0] == alone
    assert among[2] == alone


def logits_of(state, clip, audio_ctx=0) -> np.ndarray:
    """Logits of each step, [n_steps, n_vocab]; audio_ctx = 0 encodes all 1500 positions."""
    samples, steps = audio.load(clip), []
    params, _keep = state._full_params(Decoding(max_tokens=20), lambda logits: steps.append(logits.copy()))
    params.audio_ctx = audio_ctx
    data = native.ffi.from_buffer("float[]", samples)
    assert native.library().whisper_full_with_state(state.model.handle, state.handle, params, data, len(samples)) == 0
    return np.array(steps)


@pytest.mark.parametrize("audio_ctx", [0, 1000])
def test_a_clip_gives_the_same_logits_after_another_clip_without_a_view(tiny_en, speech, audio_ctx):
    """Patch 0001: rows behind the encoder output are not attended to. The layers of a shorter encoding lie on them."""
    x, y = speech
    with Model(tiny_en) as model, model.state() as fresh, model.state() as used:
        alone = logits_of(fresh, x)
        np.testing.assert_array_equal(logits_of(used, x), alone)
        logits_of(used, y, audio_ctx)
        np.testing.assert_array_equal(logits_of(used, x), alone)


def test_the_windows_of_a_long_file_do_not_depend_on_what_came_before(tiny_en, speech, long_file, tmp_path):
    whole = tools.request(long_file, TRACK, timestamps=True)
    alone = decode(tiny_en, [whole], tmp_path)[0]
    assert len(alone["text"]) > 400
    assert decode(tiny_en, [tools.request(speech[1], OTHER), whole], tmp_path)[1] == alone


def test_sampling_at_higher_temperatures_repeats(tiny_en, speech, tmp_path):
    """Every temperature fails at a threshold of 0, so the text is sampled at temperature 1."""
    sampled = tools.request(speech[0], TRACK, temperature_inc=0.2, logprob_thold=0.0, best_of=3)
    alone = decode(tiny_en, [sampled], tmp_path)[0]
    assert decode(tiny_en, [sampled, tools.request(speech[1]), sampled], tmp_path)[2] == alone
