"""The bench of decoders at once: all begin together, each with its own clip, and the encoder is not in their time."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import native_tools as tools
import numpy as np
import pytest
import soundfile
from click.testing import CliRunner

from pyharness import audio, calibrate, rules, speech
from pyharness.bench import crew, decoders
from pyharness.bench.clips import Decoded
from pyharness.bench.crew import Crew, Turn, Wave
from pyharness.bench.decoders import REAL, SYNTHETIC
from pyharness.bench.libraries import STOCK, Arm, Process
from pyharness.bench.stepper import StepState
from pyharness.cli import main
from pyharness.errors import HarnessError
from pyharness.grid import Limits
from pyharness.native import Decoding

ROW_KEYS = {
    *("model", "speech", "threads", "n", "mode", "arm", "rule", "budget", "tau", "tokens_per_s", "clips_per_s"),
    *("p50_ms", "p90_ms", "max_ms", "ratio_to_stock", "ratio_low", "ratio_high"),
    *(
        "latency_ratio",
        "latency_low",
        "latency_high",
        "reexecuted",
        "steps",
        "same_tokens",
        "clips",
        "wer",
        "same_text",
    ),
    *("difference", "bound_upper", "verdict", "n_clusters", "clips_needed"),
    *("failed_clips", "peak_mb", "rounds", "build"),
}


def bench(*arguments):
    return CliRunner().invoke(main, ["bench", "decoders", *map(str, arguments)])


@pytest.fixture
def waves(monkeypatch):
    """(function, library, rule, names of the clips) of every wave, in order."""
    asked, call = [], Process.call

    def record(self, function, *args):
        if function in (crew.time_steps, crew.transcribe):
            rule, given, *_ = args
            clips = [clip.name for clip in given] if function is crew.transcribe else []
            asked.append((function.__name__, self.name, rule.name if rule else None, clips))
        return call(self, function, *args)

    monkeypatch.setattr(Process, "call", record)
    return asked


TURN = [("stock", None), ("ours", "full"), ("ours", "padsink-track")]


def test_arms_take_turns_over_the_same_clips_and_show_errors_beside_speed(waves, tmp_path):
    good = next(clip for clip in tools.clips("asterisk-en", 50) if clip.duration < 1.5)
    broken = tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF")
    speech.write_manifest(tmp_path / "mine.jsonl", [good, replace(good, id="bad", audio=broken)])
    options = ("--n", 1, "--rounds", 2, "--steps", 3, "--budget", 100, "--json")
    result = bench("--model", "tiny.en", "--speech", tmp_path / "mine.jsonl", *options)
    assert result.exit_code == 0, result.output
    assert "clip 'bad' is left out" in result.stderr
    found = json.loads(result.stdout)
    rows = found["rows"]
    assert all(row.keys() == ROW_KEYS for row in rows) and found["env"]["threads"] == [1]

    fed = [(name, rule) for function, name, rule, _ in waves if function == "time_steps"]
    assert fed == TURN + TURN[1:] + TURN[:1]
    transcribed = [wave[1:] for wave in waves if wave[0] == "transcribe"]
    assert [wave[0] for wave in transcribed[:2]] == ["stock", "ours"]  # each library warms up
    assert transcribed[2:] == [(*who, [good.audio.name]) for who in TURN + TURN[1:] + TURN[:1]]

    assert [(row["mode"], row["rule"]) for row in rows] == [(m, r) for m in (SYNTHETIC, REAL) for _, r in TURN]
    assert [row["tau"] for row in rows] == [None, None, 0, None, None, 0.4]
    for row in rows:
        assert (row["n"], row["threads"], row["rounds"], row["failed_clips"]) == (1, 1, 2, 1)
        assert 0 < row["p50_ms"] <= row["p90_ms"] <= row["max_ms"] and row["peak_mb"] > 100
        assert row["ratio_low"] <= row["ratio_to_stock"] <= row["ratio_high"]
    for row in rows[:3]:
        assert row["wer"] is row["clips_per_s"] is row["clips"] is None and row["steps"] == 3
    for row in rows[3:]:
        assert row["same_tokens"] is None and row["clips"] == 1 and row["clips_per_s"] > 0
    assert rows[0]["same_tokens"] == rows[1]["same_tokens"] == rows[0]["ratio_to_stock"] == 1
    assert rows[3]["wer"] == rows[4]["wer"] is not None and rows[4]["same_text"] == 1
    assert rows[3]["verdict"] is None and rows[4]["verdict"] == "Inconclusive"


# --- crew -------------------------------------------------------------------------------------------------------------


def crew_of(n: int) -> Crew:
    """Without a model."""
    one = Crew.__new__(Crew)
    one.states = list(range(n))
    return one


def test_nobody_begins_before_all_are_ready():
    events = []

    def work(state, start):
        time.sleep(0.05 * state)
        events.append("ready")
        start()
        events.append("begin")

    crew_of(3).all(work)
    assert events == ["ready"] * 3 + ["begin"] * 3


def test_who_fails_does_not_keep_the_others_waiting_and_says_why():
    def work(state, start):
        if state == 1:
            raise HarnessError("no such clip")
        start()

    with pytest.raises(HarnessError, match="no such clip"):
        crew_of(3).all(work)


def test_a_wave_lasts_from_the_first_begin_to_the_last_end(monkeypatch):
    monkeypatch.setattr(crew, "_crew", crew_of(2), raising=False)
    wave = crew._wave(None, [Turn(1.0, (1.5, 2.5), 2), Turn(1.25, (3.0, 3.25), 2)])
    assert wave == Wave(2.25, (500, 1000, 1750, 250), 4, 0.0, ())


@pytest.fixture(scope="module")
def pair():
    """Two clips that differ in text."""
    return [clip for clip in tools.clips("asterisk-en", 50) if 1.5 < clip.duration < 2.5][:2]


@pytest.fixture(scope="module")
def gathered(tiny_en, pair):
    """What the process of our library holds, in this one: two decoders with their clips."""
    crew.gather(tiny_en, "en", 2)
    crew.encode([clip.audio for clip in pair])
    yield crew._crew
    for state in crew._crew.states:
        state.close()
    crew._crew.model.close()


@pytest.fixture(scope="module")
def alone(gathered, pair):
    """Each clip transcribed by itself."""
    with gathered.model.state() as state:
        return [state.transcribe(audio.load(clip.audio), Decoding()) for clip in pair]


def test_each_decoder_is_fed_what_its_own_clip_says(gathered, alone):
    chosen = crew.choose(4)
    assert chosen == [list(transcript.tokens[:4]) for transcript in alone]
    assert chosen[0] != chosen[1]
    assert crew.follow(rules.Full(), [one[:3] for one in chosen]) == [one[1:] for one in chosen]


def test_decoders_at_once_write_what_each_writes_alone_and_the_encoder_is_not_in_the_time(gathered, alone, pair):
    begin = time.perf_counter()
    wave = crew.transcribe(rules.Full(), [clip.audio for clip in pair], [Decoding(), Decoding()])
    assert wave.seconds < (time.perf_counter() - begin) / 2
    assert wave.texts == tuple(transcript.text for transcript in alone) and wave.texts[0] != wave.texts[1]
    assert wave.n_tokens == sum(len(transcript.tokens) for transcript in alone) and len(wave.ms) == 2


def test_reexecuted_steps_are_told(gathered):
    tokens = crew.choose(3)
    shares = [crew.time_steps(rule, tokens).reexecuted for rule in (rules.PadsinkTrack(tau=1), rules.PadsinkTrack())]
    assert shares == [1, 0]
    wave = crew.time_steps(rules.Full(), tokens)
    assert (wave.reexecuted, wave.n_tokens, len(wave.ms), wave.texts) == (0, 6, 6, ())


def test_a_decoder_is_one_thread(gathered, monkeypatch):
    def n_tasks():
        return len(list(Path("/proc/self/task").iterdir()))

    tokens, seen, decode = crew.choose(3), [], StepState.decode
    time.sleep(0.2)  # threads that have ended are gone
    before = n_tasks()
    monkeypatch.setattr(StepState, "decode", lambda *args: decode(*args) or seen.append(n_tasks()))
    crew.time_steps(rules.PadsinkTrack(), tokens)
    assert before < max(seen) <= before + 2


def test_a_clip_too_short_to_be_encoded_is_named(gathered, pair, tmp_path):
    short = tmp_path / "short.wav"
    soundfile.write(short, np.zeros(800), 16000)
    with pytest.raises(HarnessError, match=r"short\.wav' is too short"):
        crew.transcribe(None, [pair[0].audio, short], [Decoding(max_tokens=1)] * 2)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_clips_are_dealt_in_turn():
    group = SimpleNamespace(clips=["a", "b", "c"], n=2)
    assert [decoders._Group.deal(group, i) for i in range(3)] == [["a", "b"], ["c", "a"], ["b", "c"]]
    assert decoders._Group.deal(SimpleNamespace(clips=["a", "b"], n=5), 0) == list("ababa")


def test_columns_compare_waves_of_the_same_round():
    stock = [Wave(2.0, (100, 300), 10, 0.0, ("a", "b")), Wave(20.0, (1000, 3000), 10, 0.0, ("c", "d"))]
    mine = [Wave(1.0, (60, 140), 12, 0.5, ("a", "b")), Wave(10.0, (600, 1400), 12, 0.0, ("c", "x"))]
    found = decoders._columns(mine, stock)
    assert (found["ratio_low"], found["ratio_to_stock"], found["ratio_high"]) == (2, 2, 2)
    assert found["latency_ratio"] == found["latency_low"] == found["latency_high"] == 0.5
    assert found["tokens_per_s"] == np.median([12, 1.2]) and found["clips_per_s"] == np.median([2, 0.2])
    assert (found["p50_ms"], found["p90_ms"], found["max_ms"]) == pytest.approx((370, 1160, 1400))
    assert found["reexecuted"] == 0.25
    fed = [replace(wave, texts=()) for wave in stock]
    assert decoders._columns(fed, fed)["clips_per_s"] is None


def test_a_clip_counts_once_however_often_it_was_dealt(pair):
    right, part = pair[0], SimpleNamespace(strip_diacritics=False)
    wrong = replace(pair[1], id="wrong", text="seven")
    reduced = Arm(rules.PadsinkTrack())
    decoded = {
        STOCK: {right: [Decoded(right.text, 1), Decoded(right.text, 2)], wrong: [Decoded("seven", 3)]},
        reduced: {right: [Decoded(right.text, 1), Decoded(right.text, 2)], wrong: [Decoded("eleven", 3)]},
    }
    found = decoders._quality(part, decoded)
    n_words = len(right.text.split()) + 1
    assert (found[STOCK]["wer"], found[STOCK]["verdict"]) == (0, None)
    assert found[reduced]["wer"] == found[reduced]["difference"] == pytest.approx(1 / n_words)
    assert (found[reduced]["clips"], found[reduced]["same_text"]) == (2, 1)


def test_nothing_is_unsure_in_synthetic_steps():
    path = tools.TESTS.parent / "calibration" / "tiny.en-en.json"
    profile = calibrate.arm_of(calibrate.read_profile(path), path)
    assert profile.rule.tau > 0
    settings = decoders.Settings(None, profile, Limits())
    stock, full, reduced = settings.arms(SYNTHETIC)
    assert (stock, full, reduced.rule) == (STOCK, Arm(rules.Full()), replace(profile.rule, tau=0.0))
    assert settings.arms(REAL)[2].rule is profile
    assert decoders.without_tau(rules.PadsinkTrack(sinks="model")) == rules.PadsinkTrack()
    assert decoders.without_tau(rules.Full()) == rules.Full()


def test_clips_of_several_windows_are_left_out(pair):
    long = replace(pair[0], id="long", duration=30.5)
    settings = decoders.Settings(SimpleNamespace(clips=[long, *pair], speech="mine"), rules.Full(), Limits(), (1, 2))
    assert sorted(clip.id for clip in decoders._wanted(settings)) == sorted(clip.id for clip in pair)
    with pytest.raises(HarnessError, match="'mine' has no clip of 30 s or less"):
        decoders._wanted(replace(settings, part=SimpleNamespace(clips=[long], speech="mine")))


# --- command line -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--n", "0"], "--n"),
        (["--n", "8,8"], "twice"),
        (["--mode", "forced"], "--mode"),
        (["--steps", "221"], "--steps"),
        (["--rounds", "1"], "--rounds"),
        (["--model", "nowhere.bin"], "nowhere.bin"),
        (["--profile", "calibration/base-en.json", "--tau", "0.1"], "either"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(arguments, reason, monkeypatch):
    monkeypatch.chdir(tools.TESTS.parent)
    result = bench(*arguments)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert reason in result.output


def test_random_weights_can_be_fed_but_write_no_text_to_score(tmp_path, tiny_en, monkeypatch):
    model = tmp_path / "ggml-synth-tiny.en.bin"
    model.symlink_to(tiny_en)
    result = bench("--model", model)
    assert result.exit_code == 2 and "--mode synthetic" in result.output
    monkeypatch.setattr(decoders, "run", lambda settings, **_: {"env": {}, "rows": [settings.modes]})
    result = bench("--model", model, "--mode", "synthetic", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["rows"] == [[SYNTHETIC]]
