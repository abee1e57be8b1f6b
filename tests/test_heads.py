"""Alignment heads and constant sinks, on attention built by hand and on real weights."""

import dataclasses
import json

import native_tools as tools
import numpy as np
import pytest
from click.testing import CliRunner

from pyharness import heads
from pyharness.cli import main
from pyharness.errors import HarnessError
from pyharness.native import State
from pyharness.rules import ModelLists

BASE_PRESET = {(3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)}  # upstream's, for base


def looking_at(*paths, n_audio=100):
    """Shares near each position of one layer of heads that look at these positions only, one path each."""
    attention = np.zeros((len(paths[0]), 1, len(paths), n_audio))
    for head, path in enumerate(paths):
        attention[np.arange(len(path)), 0, head, path] = 1.0
    return heads.shares_near(attention)


def test_heads_that_walk_together_beat_those_that_stand_jump_or_lag():
    walk = np.arange(5, 95, 10)
    jump = walk[[4, 0, 8, 1, 7, 3, 5, 2, 6]]
    scores = heads.score(looking_at(walk, walk + 1, walk - 1, np.full(9, 50), jump, walk - 8))[0]
    assert scores[:3].min() > 0.8
    assert scores[3:].max() < 0.1


def test_a_head_that_always_looks_at_one_position_does_not_steer_the_others():
    walk = np.arange(5, 95, 10)
    still = [np.full(9, 50)] * 2
    assert heads.score(looking_at(walk, walk, *still))[0][:2].min() > 0.8


def test_upper_layers_outvote_sharper_lower_ones_that_look_back():
    walk = np.arange(15, 95, 10)
    lower, upper = looking_at(*[walk - 10] * 3), looking_at(walk, walk, np.full(8, 50))
    scores = heads.score(np.concatenate([lower, upper], axis=1))
    assert scores[1, :2].min() > 0.8 and scores[0].max() < 0.1


def test_attention_is_that_on_the_audio_only():
    """A head with 1 % of its attention on the audio is scored like one with all of it there."""
    attention = np.eye(9)[:, None, None, :].repeat(2, axis=2)
    faint = attention * [[[[1.0], [0.01]]]]
    assert heads.score(heads.shares_near(faint)) == pytest.approx(heads.score(heads.shares_near(attention)))


def test_shares_near_by_hand():
    attention = np.array([1.0, 0, 0, 0, 1.0, 0, 0, 0, 0, 2.0])
    assert heads.shares_near(attention) == pytest.approx(np.array([1, 2, 2, 2, 1, 1, 3, 3, 2, 2]) / 4)
    assert not heads.shares_near(np.zeros(10)).any()


def test_forward_path_never_steps_back():
    gain = np.array([[0, 3, 0, 2], [0, 0, 4, 0], [5, 0, 0, 1], [0, 0, 0, 1]])
    assert heads.forward_path(gain).tolist() == [1, 2, 3, 3]


def test_forward_path_collects_the_largest_sum():
    gain = np.random.default_rng(0).random((4, 6))
    paths = [p for p in np.ndindex(6, 6, 6, 6) if list(p) == sorted(p)]
    best = max(paths, key=lambda path: gain[np.arange(4), path].sum())
    assert heads.forward_path(gain).tolist() == list(best)


@pytest.mark.parametrize("speech", ["asterisk-en", "asterisk-ru"])
def test_finds_the_preset_of_base_and_its_sinks(base, speech):
    clips = [clip for clip in tools.clips(speech, 60) if 2.5 < clip.duration < 6][:4]
    found = heads.find(base, clips)
    assert set(found.preset) == BASE_PRESET
    assert len({(layer, head) for layer, head, _ in found.heads} & BASE_PRESET) >= 7
    assert {(layer, head) for layer, head, _ in found.heads[:5]} <= BASE_PRESET
    assert {1445, 1446, 1453} <= {position for position, _ in found.sinks[:16]}  # constant in every language


def test_json_is_what_a_profile_holds(tiny_en):
    result = CliRunner().invoke(
        main, ["heads", "--model", str(tiny_en), "--speech", "asterisk-en", "--clips", "3", "--json"]
    )
    assert result.exit_code == 0, result.output
    lists = json.loads(result.stdout)
    assert all(0 <= layer < 4 and 0 <= head < 6 for layer, head in lists["alignment_heads"])
    assert len(lists["sink_positions"]) == 128 and all(0 <= position < 1500 for position in lists["sink_positions"])


def test_a_manifest_without_a_language_needs_the_option(tiny_en, tmp_path):
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(json.dumps({"audio": str(tools.JFK), "text": "ask not"}))
    arguments = ["heads", "--model", str(tiny_en), "--speech", str(manifest), "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and "give --language" in result.stderr, result.output
    result = CliRunner().invoke(main, [*arguments, "--language", "en"])
    assert result.exit_code == 0 and json.loads(result.stdout)["alignment_heads"], result.output


def test_speech_too_short_to_show_movement_still_shows_sinks(tiny_en):
    shortest = min(tools.clips("asterisk-en", 60), key=lambda clip: clip.duration)
    found = heads.find(tiny_en, [shortest])
    assert not found.heads and found.preset and len(found.sinks) == 128


def test_a_recording_that_cannot_be_read_is_left_out(tiny_en, tmp_path):
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF")
    good = tools.clips("asterisk-en", 1)[0]
    assert heads.find(tiny_en, [dataclasses.replace(good, audio=broken), good]).sinks
    with pytest.raises(HarnessError, match=r"broken\.wav"):
        heads.find(tiny_en, [dataclasses.replace(good, audio=broken)])


def test_heads_of_an_unknown_model_cannot_be_found_in_speech_too_short(tiny_en, monkeypatch):
    shortest = min(tools.clips("asterisk-en", 60), key=lambda clip: clip.duration)
    monkeypatch.setattr(State, "alignment_heads", lambda _: [])
    with pytest.raises(HarnessError, match="longer speech"):
        heads.find(tiny_en, [shortest])


def test_a_profile_carries_the_preset_or_what_was_found():
    found = heads.Found(heads=[(3, 1, 0.9)], preset=[(5, 0)], sinks=[(1453, 0.1), (700, 0.05)], n_clips=2)
    assert found.lists == ModelLists(((5, 0),), (1453, 700))
    assert dataclasses.replace(found, preset=[]).lists == ModelLists(((3, 1),), (1453, 700))
