"""The benches: arms take turns, do the same work, and no speed stands without what it cost."""

import hashlib
import json
import os
from dataclasses import replace

import native_tools as tools
import numpy as np
import pytest
from click.testing import CliRunner

from pyharness import audio, native, rules, speech
from pyharness.bench import clips, libraries, paired, real, step, utterance
from pyharness.bench.libraries import STOCK, Library
from pyharness.cli import main
from pyharness.errors import HarnessError
from pyharness.native import Decoding, Model
from pyharness.runner import Worker
from pyharness.speech import Clip


def bench(*arguments):
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


@pytest.fixture
def calls(monkeypatch):
    """(library, function, rule) of every request, in order."""
    asked, call = [], Library.call

    def record(self, function, *args):
        rule = next((arg.name for arg in args if isinstance(arg, rules.Rule)), None)
        asked.append((self.name, function.__name__, rule))
        return call(self, function, *args)

    monkeypatch.setattr(Library, "call", record)
    return asked


# --- paired -----------------------------------------------------------------------------------------------------------


def test_every_round_runs_all_arms_and_starts_with_another():
    ran = []
    results = paired.interleave("abc", 4, lambda arm: ran.append(arm) or len(ran))
    assert "".join(ran) == "abc" + "bca" + "cab" + "abc"
    assert results == {"a": [1, 6, 8, 10], "b": [2, 4, 9, 11], "c": [3, 5, 7, 12]}
    ran.clear()
    paired.interleave("abc", 1, ran.append, first=2)
    assert ran == ["c", "a", "b"]


def test_rounds_in_which_the_machine_is_slow_do_not_change_the_ratio():
    weather = np.random.default_rng(1).uniform(1, 9, 30)
    found = paired.median_with_interval(paired.ratios(3.0 * weather, 5.0 * weather))
    assert (found.low, found.median, found.high) == pytest.approx((0.6, 0.6, 0.6))


def test_the_interval_holds_the_true_median_about_as_often_as_it_says():
    draw = np.random.default_rng(2).normal
    found = [paired.median_with_interval(draw(0.7, 0.1, 30)) for _ in range(60)]
    assert 53 <= sum(one.low <= 0.7 <= one.high for one in found) < 60  # 57 +- 1.7


def test_a_single_pair_has_no_interval():
    assert paired.median_with_interval([0.5]) == paired.Median(0.5, None, None)


# --- libraries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["step", "utterance", "builds"])
def test_without_a_stock_build_the_error_says_how_to_get_one(command, tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "STOCK_PATH", tmp_path / "libwhisper.so")
    result = bench(command, "--model", "tiny.en")
    assert result.exit_code == 2
    assert "./build.sh stock" in result.output and str(tmp_path) in result.output


def test_what_goes_wrong_in_a_library_names_it_and_does_not_hang():
    with Library("stock", libraries.STOCK_PATH) as library:
        with pytest.raises(HarnessError, match=r"stock: .*nowhere\.bin"):
            library.call(Model, "nowhere.bin")
        with pytest.raises(HarnessError, match="stock: ValueError"):
            library.call(int, "one")
        with pytest.raises(HarnessError, match="process of stock died"):
            library.call(os._exit, 1)


def test_the_hash_of_stock_covers_the_ggml_that_it_loads():
    with Library("stock", libraries.STOCK_PATH) as library:
        ggml = library.call(native._loaded_ggml)
        assert any(file.name.startswith("libggml-cpu") for file in ggml)
        files = [libraries.STOCK_PATH, *ggml]
        expected = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        assert library.call(native.build_info)["sha256"] == expected


def test_threads_wait_as_in_any_program_but_not_in_a_sweep(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with Library("stock", libraries.STOCK_PATH) as library:
        assert library.call(os.getenv, "OMP_WAIT_POLICY") is None
        assert library.call(os.getenv, "PADSINK_LIB") == str(libraries.STOCK_PATH)
    worker = Worker(os.getenv)
    worker._send("OMP_WAIT_POLICY")
    assert worker.result(20) == "passive"
    worker.end()


# --- step -------------------------------------------------------------------------------------------------------------


STEP_KEYS = {
    *("model", "threads", "mode", "arm", "rule", "budget", "tau", "ms", "ms_low", "ms_high", "ratio_to_stock"),
    "ratio_low",
    *(
        "ratio_high",
        "weights_ms",
        "cross_ms",
        "text_ms",
        "tracking_ms",
        "tracking_share",
        "rest_ms",
        "positions",
        "bytes_read",
        "rows_copied",
        "full",
        "reexecuted",
        "same_tokens",
        "steps",
        "n",
        "build",
    ),
}
ENV_KEYS = {"cpu", "cores", "threads", "governor", "builds", "date", "command", "load", "omp_wait_policy"}


def test_step_times_all_arms_in_turns_over_the_same_steps(calls):
    result = bench(
        *("step", "--model", "tiny.en", "--threads", 1, "--budgets", "192,5%"),
        *("--rounds", 3, "--steps", 5, "--json"),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    rows = found["rows"]
    assert found["env"].keys() >= ENV_KEYS and all(row.keys() == STEP_KEYS for row in rows)
    assert found["env"]["builds"]["stock"]["library"] == str(libraries.STOCK_PATH)

    timed = [(name, rule) for name, function, rule in calls if function == "time_pass"]
    turn = [("stock", None), ("ours", "off"), ("ours", "full"), ("ours", "padsink-track"), ("ours", "padsink-track")]
    assert timed == turn + turn[1:] + turn[:1] + turn[2:] + turn[:2]

    assert [row["rule"] for row in rows] == [rule for _, rule in turn]
    assert [row["budget"] for row in rows] == [None, None, None, 192, 75]
    assert [row["positions"] for row in rows] == [1500, 1500, 1500, 192, 75]
    assert [row["bytes_read"] for row in rows] == [row["positions"] * 4 * 2 * 384 * 2 for row in rows]
    assert [row["same_tokens"] for row in rows[:2]] == [1, 1]
    assert rows[0]["build"] != rows[1]["build"] == rows[2]["build"]
    assert rows[0]["ratio_to_stock"] == rows[0]["ratio_low"] == rows[0]["ratio_high"] == 1
    assert all(row["ms"] > 0 and row["n"] == 3 for row in rows)


@pytest.fixture(scope="module")
def loaded(tiny_en):
    """What the process of our library holds, in this one."""
    step.load(tiny_en, tools.JFK, "en", 1)
    yield
    step._stepper.close()


@pytest.fixture(scope="module")
def transcribed(tiny_en):
    """The same clip decoded by whisper_full: its tokens, the phases that it went through, and the counters."""
    phases = []
    with Model(tiny_en) as model, model.state() as state:
        state.set_view(rules.Full())
        transcript = state.transcribe(audio.load(tools.JFK), Decoding(max_tokens=12), on_phase=phases.append)
        return transcript.tokens, phases, state.counters()


def test_steps_are_fed_what_a_transcription_chooses(loaded, transcribed):
    assert step.choose(12, 1) == list(transcribed[0][:12])


def test_a_reexecuted_step_costs_both_of_its_runs(loaded):
    tokens = step.choose(4, 1)
    one = step.time_pass(rules.PadsinkTrack(tau=1), tokens, 1)
    assert (one.reexecuted, one.positions) == (4, 1500 + 192)
    assert one.ms == 2 * step._stepper.run_ms()
    sure = step.time_pass(rules.PadsinkTrack(), tokens, 1)
    assert (sure.reexecuted, sure.positions, sure.ms) == (0, 192, step._stepper.run_ms())
    assert 0 < sure.rows_copied <= 192 * 4


def test_steps_that_read_everything_against_their_rule_are_told(loaded):
    tokens = step.choose(20, 1)
    assert step.time_pass(rules.PadsinkTrack(guard_runaway=1e-3), tokens, 1).full == 4
    assert step.time_pass(rules.Full(), tokens, 1).full == 0


def test_the_time_of_nodes_knows_weights_and_both_attentions(loaded):
    tokens = step.choose(8, 1)
    arms = (rules.Off(), rules.Full(), rules.PadsinkTrack())
    off, full, reduced = (step.time_nodes(arm, tokens, 1) for arm in arms)
    for all_positions in (off, full):  # 1500 of them against fewer than 20 tokens
        assert all_positions["cross"] > all_positions["text"] > 0
    assert off["signals"] == 0 < reduced["signals"] and reduced["cross"] < full["cross"]
    for shares in (off, full, reduced):
        assert shares["weights"] > 0 and sum(shares.values()) < 1
    found = step._stepper.times()
    step.time_pass(rules.Full(), tokens, 1)
    assert step._stepper.times() == found  # switched off


def test_only_the_steps_of_a_pass_are_timed(loaded, monkeypatch):
    """Neither its prompt nor what was done before it."""
    done = []

    def recorded(name, method):
        return lambda *args: done.append(name) or method(*args)

    for name in ("decode", "reset", "run_ms"):
        monkeypatch.setattr(step._stepper, name, recorded(name, getattr(step._stepper, name)))
    assert step.time_pass(rules.Off(), [11, 12], 1).ms > 0
    assert done == ["decode", "reset", "decode", "decode", "run_ms"]
    step._stepper.reset()
    assert step._stepper.run_ms() == 0


# --- utterance --------------------------------------------------------------------------------------------------------


UTTERANCE_KEYS = {
    *("model", "speech", "threads", "arm", "rule", "budget", "tau", "clip_s", "clip_s_mean", "ms", "ms_low", "ms_high"),
    *("mel_ms", "encoder_ms", "decoder_ms", "tokens", "speedup_vs_stock", "speedup_low", "speedup_high"),
    *("wer", "same_text", "n", "failed_clips", "repeats", "build"),
}


@pytest.fixture
def short_clips(tmp_path):
    """A manifest of clips of two seconds."""
    manifest = tmp_path / "mine.jsonl"
    clips = [clip for clip in tools.clips("asterisk-en", 50) if 1.8 < clip.duration < 2.2]
    speech.write_manifest(manifest, clips)
    return manifest


def test_utterance_shows_errors_beside_speed(calls, short_clips):
    result = bench(
        *("utterance", "--model", "tiny.en", "--speech", short_clips, "--threads", 1),
        *("--lengths", "2,40", "--clips", 1, "--repeats", 1, "--json"),
    )
    assert result.exit_code == 0, result.output
    assert "has 0 clips of 40 s" in result.stderr
    found = json.loads(result.stdout)
    stock, off, track = found["rows"]
    assert found["env"].keys() >= ENV_KEYS and all(row.keys() == UTTERANCE_KEYS for row in found["rows"])
    decoded = [rule for _, function, rule in calls if function == "transcribe"]
    assert decoded[:2] == [None, "padsink-track"]  # each library warms up
    assert decoded[2:] == [None, "off", "padsink-track"]
    assert (track["budget"], track["tau"]) == (192, 0.4)
    assert stock["wer"] == off["wer"] is not None and off["same_text"] == off["n"] == 1
    for row in found["rows"]:
        assert row["clip_s"] == 2 and abs(row["clip_s_mean"] - 2) <= 0.5
        parts = row["mel_ms"], row["encoder_ms"], row["decoder_ms"]
        assert min(parts) > 0 and sum(parts) == pytest.approx(row["ms"])
        assert row["encoder_ms"] > row["mel_ms"]
    assert stock["speedup_vs_stock"] == 1


REAL_KEYS = {
    *(
        "model",
        "speech",
        "threads",
        "mode",
        "arm",
        "rule",
        "budget",
        "tau",
        "ms",
        "ms_low",
        "ms_high",
        "ratio_to_stock",
    ),
    *("ratio_low", "ratio_high", "positions", "bytes_read", "rows_copied", "reexecuted", "tracking_share", "wer"),
    *("same_text", "difference", "bound_upper", "verdict", "n_clusters", "clips_needed", "n", "failed_clips", "build"),
}


def test_real_steps_are_those_of_transcribed_clips(calls, short_clips):
    result = bench(
        *("step", "--mode", "real", "--model", "tiny.en", "--speech", short_clips, "--threads", 1),
        *("--clips", 1, "--budgets", "96", "--tau", 1, "--json"),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["env"].keys() >= ENV_KEYS and all(row.keys() == REAL_KEYS for row in found["rows"])
    stock, off, full, track = found["rows"]
    decoded = [rule for _, function, rule in calls if function == "transcribe"]
    assert decoded == 2 * [None, "off", "full", "padsink-track"]  # the first time to warm up
    assert stock["positions"] is off["positions"] is None and full["positions"] == 1500
    assert track["reexecuted"] == 1 and 750 < track["positions"] < 1500  # every step read 96, then 1500
    assert track["bytes_read"] == pytest.approx(track["positions"] * 4 * 2 * 384 * 2)
    assert track["rows_copied"] >= 0 < track["tracking_share"] < 0.5
    assert stock["wer"] == off["wer"] is not None and off["same_text"] == 1
    assert stock["ratio_to_stock"] == 1 and stock["verdict"] is None is not off["verdict"]


def test_the_time_of_a_token_is_that_of_the_decoder(tiny_en):
    spoken = real.transcribe(tiny_en, rules.Full(), tools.JFK, Decoding())
    split = utterance.transcribe(tiny_en, rules.Full(), tools.JFK, Decoding())
    assert 20 < split.n_tokens < 40
    assert spoken.ms < split.encoder_ms  # neither the encoder nor all tokens are in it
    assert spoken.positions == 1500 and spoken.reexecuted == 0


def test_builds_are_compared_without_a_view(calls, short_clips):
    result = bench(
        *("builds", "--build", f"other={tools.STOCK}", "--model", "tiny.en", "--speech", short_clips),
        *("--threads", 1, "--lengths", 2, "--clips", 1, "--repeats", 1, "--json"),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["arm"] for row in found["rows"]] == ["stock", "off", "other"]
    assert all(row.keys() == UTTERANCE_KEYS and row["wer"] is not None for row in found["rows"])
    assert found["env"]["builds"]["other"]["library"] == str(libraries.STOCK_PATH)
    asked = [(name, rule) for name, function, rule in calls if function == "transcribe"]
    round_ = [("stock", None), ("ours", "off"), ("other", None)]
    assert asked == round_ * 2  # warm-up, then the only round


def test_builds_are_compared_with_stock_without_flash_attention_if_asked_for(monkeypatch, short_clips):
    ran = []
    monkeypatch.setattr(utterance, "run", lambda settings, **_: ran.append(settings) or {"env": {}, "rows": []})
    arguments = "builds", "--model", "tiny.en", "--speech", short_clips, "--json"
    assert bench(*arguments, "--flash-attention-off").exit_code == bench(*arguments).exit_code == 0
    asked, plain = ([(arm.name, arm.library, arm.flash_attention) for arm in settings.arms] for settings in ran)
    assert plain == [("stock", "stock", True), ("off", "ours", True)]
    assert asked == [*plain, ("stock flash attention off", "stock", False)]


def test_without_flash_attention_a_view_is_refused(tiny_en):
    with Model(tiny_en, flash_attention=False) as model, pytest.raises(HarnessError, match="flash attention"):
        model.check_view(rules.PadsinkTrack())


def test_phases_are_told_in_their_order(transcribed):
    _, phases, counters = transcribed
    assert counters.n_steps == 12
    assert phases == ["mel", "encode", *["decode"] * (counters.n_prompts + counters.n_steps)]


def test_clips_of_a_length_are_the_nearest_and_never_far_off():
    listed = [Clip(f"{s}", tools.JFK, "text", duration=s) for s in (0.5, 1.4, 1.6, 1.9, 2.05, 2.5, 2.6, 9)]
    assert [one.duration for one in utterance.nearest(listed, 2, 2)] == [2.05, 1.9]
    assert [one.duration for one in utterance.nearest(listed, 2, 9)] == [2.05, 1.9, 1.6, 2.5]
    assert utterance.nearest(listed, 4, 2) == []


def test_a_clip_counts_with_its_words_and_not_with_its_rate():
    def scored(ms, errors, words):
        return clips.Scored((utterance.Split("text", ms, 5, 1, 2, ms - 3),), errors, words)

    columns = utterance._columns([scored(10, 1, 2), scored(30, 0, 8)], [scored(20, 0, 2), scored(60, 0, 8)])
    assert columns["wer"] == 0.1 and columns["ms"] == 20 and columns["tokens"] == 5
    assert columns["speedup_vs_stock"] == 2
    assert utterance._columns([scored(10, 0, 0)], [scored(10, 0, 0)])["wer"] is None


def test_repeats_of_a_clip_are_compared_in_pairs():
    def scored(*ms):
        return clips.Scored(tuple(clips.Decoded("text", one) for one in ms), 0, 1)

    assert clips.clip_ratios([scored(10, 90, 20)], [scored(20, 180, 80)]) == [0.5]


def test_a_clip_that_cannot_be_read_is_named_and_left_out_of_all_arms(tmp_path):
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF")
    good = next(clip for clip in tools.clips("asterisk-en", 50) if 1.8 < clip.duration < 2.2)
    both = [good, replace(good, id="bad", audio=broken)]

    def utterance_of(*listed):
        speech.write_manifest(tmp_path / "mine.jsonl", listed)
        options = ("--threads", 1, "--lengths", 2, "--clips", 2, "--repeats", 1, "--json")
        return bench("utterance", "--model", "tiny.en", "--speech", tmp_path / "mine.jsonl", *options)

    result = utterance_of(*both)
    assert result.exit_code == 0, result.output
    assert "clip 'bad' is left out" in result.stderr and str(broken) in result.stderr
    assert [(row["n"], row["failed_clips"]) for row in json.loads(result.stdout)["rows"]] == [(1, 1)] * 3
    result = utterance_of(both[1])
    assert result.exit_code == 2 and "none of the clips can be read" in result.stderr


# --- command line -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["step", "--threads", "0"], "--threads"),
        (["step", "--threads", "1,1"], "twice"),
        (["step", "--threads", "1,,2"], "--threads"),
        (["step", "--budgets", "1501"], "1 to 1500"),
        (["step", "--steps", "221"], "--steps"),
        (["step", "--rounds", "1"], "--rounds"),
        (["step", "--clip", "nowhere.wav"], "nowhere.wav"),
        (["step", "--model", "nowhere.bin"], "nowhere.bin"),
        (["step", "--model", "tiny.en", "--language", "de"], "does not know the language 'de'"),
        (["utterance", "--lengths", "0"], "--lengths"),
        (["utterance", "--tau", "2"], "--tau"),
        (["utterance", "--speech", "nowhere"], "nowhere"),
        (["builds", "--build", "build"], "NAME=DIR"),
        (["builds", "--build", "stock=build"], "other than stock and ours"),
        (["builds", "--build", "mine=nowhere"], "nowhere/lib/libwhisper.so"),
        (["builds", "--build", "mine=build", "--build", "mine=build"], "same name twice"),
        (["utterance", "--profile", "calibration/base-en.json", "--budget", "9"], "either"),
        (["utterance", "--profile", "calibration/base-en.json", "--model", "tiny.en"], "another model"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(arguments, reason, monkeypatch):
    monkeypatch.chdir(tools.TESTS.parent)
    result = bench(*arguments)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert reason in result.output


def test_a_profile_is_for_its_very_model_file(tmp_path):
    profile = tmp_path / "profile.json"
    model = {"name": "tiny.en", "sha256": "0" * 64, "n_text_layer": 4}
    profile.write_text(json.dumps({"schema": 1, "model": model, "language": "en", "rule": "full"}))
    result = bench("utterance", "--profile", profile)
    assert result.exit_code == 2 and "sha256 000000000000" in result.output


def test_random_weights_write_no_text_to_score(tmp_path, tiny_en):
    model = tmp_path / "ggml-synth-tiny.en.bin"
    model.symlink_to(tiny_en)
    result = bench("utterance", "--model", model)
    assert result.exit_code == 2 and "bench step" in result.output


def test_the_arms_of_a_step_are_those_of_the_budgets():
    settings = step.Settings("tiny.en", tools.JFK, budgets=(100,))
    assert settings.arms[0] == STOCK
    assert [arm.name for arm in settings.arms] == ["stock", "off", "full", "padsink-track budget=100"]
