"""The bench of peers: all do the same work on the same clips, and none has another's memory or errors."""

import importlib.util
import json
from types import SimpleNamespace

import native_tools as tools
import numpy as np
import pytest
from click.testing import CliRunner

from pyharness import audio, models, rules, scoring, speech
from pyharness.bench import clips, faster_whisper_peer, libraries, peers, quality
from pyharness.bench.libraries import STOCK, Arm, Process
from pyharness.cli import main
from pyharness.native import Decoding

ROW_KEYS = {
    *("model", "weights", "speech", "threads", "arm", "rule", "budget", "tau", "clip_s", "ms", "ms_low", "ms_high"),
    *("speedup_vs_stock", "speedup_low", "speedup_high", "ratio_to_faster_whisper_int8", "ratio_low", "ratio_high"),
    *("wer", "difference", "bound_upper", "verdict", "n_clusters", "clips_needed", "same_text", "errors", "words"),
    *("peak_mb", "n", "failed_clips", "repeats", "build"),
}

# stands in for the package: says on stderr what it was asked, and hears "Seven."
FAKE = """
import json, os, sys, time
from types import SimpleNamespace

class WhisperModel:
    def __init__(self, folder, **options):
        self.made_with = {"folder": folder, **options, "omp": os.environ["OMP_NUM_THREADS"]}
        self.model = SimpleNamespace(is_multilingual=False)
        self.hf_tokenizer = SimpleNamespace(token_to_id=lambda token: {"<|startoftranscript|>": 50257}[token])

    def transcribe(self, samples, **options):
        def segments():
            time.sleep(0.05)
            with open(os.environ["FAKE_LOG"], "a") as log:
                log.write(json.dumps({**self.made_with, **options, "n": len(samples)}) + "\\n")
            yield SimpleNamespace(text=" Seven.")
        return segments(), None
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """What a package of our making was asked: one dict for each transcription."""
    (tmp_path / "faster_whisper.py").write_text(FAKE, encoding="utf-8")
    log = tmp_path / "log.jsonl"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FAKE_LOG", str(log))
    monkeypatch.setattr(faster_whisper_peer, "versions", lambda: {"faster-whisper": "1.2", "ctranslate2": "4.8"})
    monkeypatch.setattr(models, "ct2_folder", lambda name: tmp_path / f"ct2-{name}")
    return lambda: [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def manifest(tmp_path):
    """Two clips whose text is known, and one that cannot be read."""
    path, broken = tmp_path / "mine.jsonl", tmp_path / "broken.wav"
    broken.write_bytes(b"RIFF")
    known = {clip.text.strip(".").lower(): clip for clip in speech.resolve("asterisk-en")[1]}
    chosen = [known["seven"], known["eight"]]
    speech.write_manifest(path, [*chosen, speech.Clip("bad", broken, "nine", "en", 1.0)])
    return path


def bench(*arguments):
    return CliRunner().invoke(main, ["bench", "peers", *map(str, arguments)])


def test_all_decode_the_same_clips_in_turns_with_errors_and_memory_in_each_row(fake, manifest, tmp_path, monkeypatch):
    asked, call = [], Process.call

    def record(self, function, *args):
        if function.__name__ == "transcribe":
            asked.append((self.name, args[-2].name))
        return call(self, function, *args)

    monkeypatch.setattr(Process, "call", record)
    result = bench("--models", "tiny.en", "--speech", manifest, "--threads", 1, "--json")
    assert result.exit_code == 0, result.output
    assert "clip 'bad' is left out" in result.stderr

    found = json.loads(result.stdout)
    assert found["env"]["builds"]["faster-whisper"] == {"faster-whisper": "1.2", "ctranslate2": "4.8"}
    assert found["env"]["beam_size"] == 1
    rows = found["rows"]
    assert all(row.keys() == ROW_KEYS for row in rows)
    arms = ["stock", "off", "full", "padsink-track budget=192 tau=0.4", "faster-whisper int8", "faster-whisper float32"]
    assert [row["arm"] for row in rows] == arms
    assert [row["weights"] for row in rows] == ["f16", "f16", "f16", "f16", "int8", "float32"]

    turn = ["stock", "ours", "ours", "ours", *arms[4:]]
    assert [name for name, _ in asked] == turn + turn + turn[1:] + turn[:1]
    assert len({clip for _, clip in asked[:12]}) == 1 and asked[12][1] != asked[11][1]

    stock, off, full, _, int8, float32 = rows
    assert {(row["n"], row["failed_clips"], tuple(row["words"])) for row in rows} == {(2, 1, (1, 1))}
    assert int8["errors"] == float32["errors"] == [0, 1] and int8["wer"] == 0.5
    assert stock["verdict"] is None and off["verdict"] == int8["verdict"] == "Inconclusive"
    assert off["same_text"] == full["same_text"] == 2
    assert int8["difference"] == int8["wer"] - stock["wer"]
    assert int8["ratio_to_faster_whisper_int8"] == stock["speedup_vs_stock"] == 1
    assert stock["ratio_to_faster_whisper_int8"] == pytest.approx(int8["speedup_vs_stock"])
    assert int8["ms"] >= 50
    assert stock["build"] != off["build"] and int8["build"] == "faster-whisper 1.2, ctranslate2 4.8"
    weights_mb = models.get("tiny.en").stat().st_size / 1e6
    assert all(row["peak_mb"] > weights_mb for row in rows[:4]) and int8["peak_mb"] < stock["peak_mb"] - weights_mb / 2

    requests = fake()
    assert len(requests) == 6 and {one["compute_type"] for one in requests} == {"int8", "float32"}
    assert {one["folder"] for one in requests} == {str(tmp_path / "ct2-tiny.en")}


def test_faster_whisper_is_asked_for_the_same_decoding(fake, tmp_path):
    decoding = Decoding(language="en", beam_size=3, max_tokens=20, threads=2)
    with Process("peer", faster_whisper_peer.environment(2)) as process:
        decoded = process.call(faster_whisper_peer.transcribe, tmp_path, "int8", tools.JFK, decoding)
    assert decoded.text == "Seven."
    assert fake() == [
        {
            **{"folder": str(tmp_path), "device": "cpu", "compute_type": "int8", "cpu_threads": 2, "num_workers": 1},
            **{"omp": "2", "n": len(audio.load(tools.JFK)), "language": "en", "beam_size": 3, "temperature": 0.0},
            **{"without_timestamps": True, "condition_on_previous_text": False, "suppress_tokens": [50257]},
            "max_new_tokens": 2 * 21 - 2,
        }
    ]


@pytest.mark.parametrize(("asked", "n_prompt", "given"), [(0, 2, None), (20, 4, 38), (500, 4, 436)])
def test_the_limit_of_tokens_fits_into_what_the_peer_allows(asked, n_prompt, given):
    assert faster_whisper_peer._max_new_tokens(asked, n_prompt) == given


def test_models_of_the_same_weights_share_the_peers_but_not_stock(monkeypatch, tmp_path):
    files = {name: models.get(name) for name in ("base", "base-q5_0", "tiny.en")}
    parts = tuple(SimpleNamespace(model=name, model_path=path) for name, path in files.items())
    monkeypatch.setattr(models, "ct2_folder", lambda name: tmp_path / name)
    field = peers.contestants(peers.Settings(parts, (STOCK, Arm(rules.Off())), None))
    assert [(one.model, one.weights, one.arm.name) for one in field] == [
        *[("base", "f16", "stock"), ("base", "f16", "off"), ("base-q5_0", "q5_0", "stock")],
        *[("base-q5_0", "q5_0", "off"), ("base", "int8", "faster-whisper int8")],
        *[("base", "float32", "faster-whisper float32"), ("tiny.en", "f16", "stock"), ("tiny.en", "f16", "off")],
        *[("tiny.en", "int8", "faster-whisper int8"), ("tiny.en", "float32", "faster-whisper float32")],
    ]
    assert [field.index(peers.stock_of(one, field)) for one in field] == [0, 0, 2, 2, 0, 0, 6, 6, 6, 6]
    assert [field.index(peers.int8_of(one, field)) for one in field] == [4] * 6 + [8] * 4


def test_clips_of_one_speaker_do_not_pass_for_many():
    def scored(errors):
        return clips.Scored((clips.Decoded("text", 1.0),), errors, 4)

    listed = [speech.Clip(f"{i}", tools.JFK, "text", speaker="ab"[i % 2]) for i in range(40)]
    full, mine = [scored(2)] * 40, [scored(i % 2) for i in range(40)]
    assert quality.compare(mine, full, listed)["n_clusters"] == 2
    alone = [speech.Clip(f"{i}", tools.JFK, "text", speaker="a") for i in range(40)]
    assert quality.compare(mine, full, alone) == {
        **{"difference": -0.375, "n_clusters": 40, "verdict": "Non-inferior", "clips_needed": None},
        "bound_upper": pytest.approx(-0.45, abs=0.05),
    }


def test_the_peak_of_a_process_is_its_own():
    """And not that of the process that started it."""
    mine = np.ones(50_000_000)  # 400 MB
    with Process("small", {}) as process:
        assert 10 < process.call(libraries.peak_mb) < mine.nbytes / 1e6 < libraries.peak_mb()


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(faster_whisper_peer, "PACKAGES", ("no-such-package",))
    result = bench("--models", "tiny.en")
    assert result.exit_code == 2 and "no-such-package" in result.output and "[peers]" in result.output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--models", "tiny.en,tiny.en"], "twice"),
        (["--models", "nowhere.bin"], "nowhere.bin"),
        (["--beam-size", "9"], "--beam-size"),
        (["--profile", "calibration/base-en.json", "--beam-size", "2"], "either"),
        (["--profile", "calibration/base-en.json", "--models", "tiny.en"], "another model"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(fake, arguments, reason, monkeypatch):
    monkeypatch.chdir(tools.TESTS.parent)
    result = bench(*arguments)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert reason in result.output


def test_weights_that_the_peer_cannot_have_are_refused(manifest, tmp_path, tiny_en, monkeypatch):
    monkeypatch.setattr(faster_whisper_peer, "versions", dict)
    (tmp_path / "ggml-mine.bin").symlink_to(tiny_en)
    result = bench("--models", tmp_path / "ggml-mine.bin", "--speech", manifest)
    assert result.exit_code == 2 and "'mine' is not published" in result.output


# --- the package itself -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    importlib.util.find_spec("faster_whisper") is None, reason="faster-whisper is not installed: padsink[peers]"
)
def test_faster_whisper_reads_the_published_weights_and_stops_where_we_do(tiny_en):
    words, folder = scoring.normaliser("en"), models.ct2_folder("tiny.en")
    with Process("peer", faster_whisper_peer.environment(1)) as process, libraries.start("stock") as stock:
        for max_tokens, end in ((100, "your country"), (5, "fellow americans ask")):  # the sixth is one too many
            decoding = Decoding(max_tokens=max_tokens)
            theirs = process.call(faster_whisper_peer.transcribe, folder, "float32", tools.JFK, decoding)
            ours = stock.call(peers.transcribe, tiny_en, None, tools.JFK, decoding)
            assert words(theirs.text) == words(ours.text) and words(ours.text).endswith(end)
