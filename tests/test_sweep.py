"""The sweep end to end, on a few real clips: resume, refusal to mix, failing clips, crashing workers."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import native_tools as tools
import pytest
import soundfile
from click.testing import CliRunner

from pyharness import audio, grid, rules, scoring, sweep
from pyharness.cli import main
from pyharness.errors import HarnessError
from pyharness.native import Decoding, Model

GRID = """
models = ["tiny.en"]
speech = ["{manifest}"]
[[arms]]
rule = "padsink-track"
budget = [192, 96]
[[arms]]
rule = "audio-only"
"""

LIMITS = grid.Limits()


@pytest.fixture
def setting(tmp_path, tiny_en):
    """A manifest of four clips, and a grid of four arms on it."""
    rows = [
        {"id": clip.id, "audio": str(clip.audio), "text": clip.text, "language": "en", "speaker": clip.speaker}
        for clip in tools.clips("asterisk-en", 4)
    ]
    return Setting(tmp_path, rows)


class Setting:
    def __init__(self, folder: Path, rows: list[dict]):
        self.folder = folder
        self.manifest = folder / "manifest.jsonl"
        self.grid = folder / "grid.toml"
        self.out = folder / "run"
        self.grid.write_text(GRID.format(manifest=self.manifest))
        self.write(rows)

    def write(self, rows):
        self.rows = rows
        self.manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))

    @property
    def arguments(self):
        return ["sweep", "--grid", str(self.grid), "--out", str(self.out), "--jobs", "1", "--json"]

    def run(self, *more):
        return CliRunner().invoke(main, [*self.arguments, *more])

    def utterances(self):
        return [json.loads(line) for line in (self.out / "utterances.jsonl").read_text().splitlines()]


TIMES = {"time", "encode_s", "steps_us"}


def untimed(rows):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def summary_without_times(setting):
    rows = json.loads((setting.out / "summary.json").read_text())["rows"]
    drop = {"step_ratio", "step_ratio_low", "step_ratio_high", "jobs"}
    return [{key: value for key, value in row.items() if key not in drop} for row in rows]


def test_writes_a_whole_run_and_truthful_rows(setting):
    result = setting.run()
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [row["rule"] for row in rows] == ["full", "padsink-track", "padsink-track", "audio-only"]
    for row in rows:
        assert row["n"] == 4 and row["failed_clips"] == 0
        assert row["model"] == "tiny.en" and row["language"] == "en"
    full, _, track, audio_only = rows
    assert full["wer"] == full["wer_full"] and full["step_ratio"] == 1
    # the reference is not compared with itself
    assert [full[key] for key in ("difference", "bound_upper", "bound_lower", "verdict", "clips_needed")] == [None] * 5
    assert track["verdict"] and track["difference"] is not None
    assert {(row["n_clusters"], row["clusters"]) for row in rows} == {(4, "clip")}
    assert full["positions_read"] == full["positions_read_all"] == 1500
    assert 0 < track["positions_read"] <= 96 < track["positions_read_all"] < 1500
    assert audio_only["runaway_clips"] > 0 and audio_only["wer"] > full["wer"]
    run = json.loads((setting.out / "run.json").read_text())
    assert run["settings"]["decoding"] == "greedy" and run["models"][0]["sha256"]
    assert "padsink-track" in (setting.out / "report.html").read_text()
    mine = [row for row in setting.utterances() if row["arm"].startswith("padsink-track budget=96")]
    read = sum(row["positions_view"] + 1500 * (row["prompts"] + row["full"] + row["reexecuted"]) for row in mine)
    assert track["positions_read_all"] == read / sum(row["steps"] + row["prompts"] for row in mine)
    watched = [row["duration"] for row in setting.utterances() if "track" in row]
    assert watched == [max(row["duration"] for row in setting.utterances())]
    utterance = setting.utterances()[0]
    assert {"audio_filepath", "duration", "time", "text", "pred_text"} <= set(utterance)


def test_sinks_of_the_first_step_and_of_the_model_are_compared(setting, tiny_en):
    arms = 'rule = "padsink-track"\nbudget = 128\nsinks = ["first-step", "model"]\n'
    setting.grid.write_text(f'models = ["tiny.en"]\nspeech = ["{setting.manifest}"]\n[[arms]]\n{arms}')
    result = setting.run()
    assert result.exit_code == 0, result.output
    assert [row["sinks"] for row in json.loads(result.stdout)["rows"]] == [None, "first-step", "model"]
    found = json.loads((setting.out / "run.json").read_text())["lists"]["tiny.en"]
    lists = rules.ModelLists(**{key: tuple(map(as_tuple, value)) for key, value in found.items()})
    mine = [row for row in setting.utterances() if "sinks='model'" in row["arm"]]
    with Model(tiny_en) as model, model.state() as state:
        for row in mine:
            samples = audio.load(row["audio_filepath"])
            seen = []
            state.set_view(rules.PadsinkTrack(budget=128, sinks="model"), lists)
            state.on_step(seen.append)
            state.reset_counters()
            decoding = Decoding(max_tokens=LIMITS.max_tokens(len(samples) / audio.SAMPLE_RATE))
            assert state.transcribe(samples, decoding).text == row["pred_text"]
            assert state.counters().n_rows_read == row["rows_read"]
            reduced = next(step for step in seen if step.kind == "reduced")
            behind = [position for position in lists.sink_positions if position >= reduced.n_audio]
            assert set(behind[:32]) <= set(reduced.positions.tolist())  # a quarter of 128


def as_tuple(value):
    return tuple(value) if isinstance(value, list) else value


def test_the_window_track_is_that_of_the_chosen_clip(setting):
    chosen = setting.rows[1]["id"]
    assert setting.run("--watch", chosen).exit_code == 0
    assert {row["id"] for row in setting.utterances() if row.get("track")} == {chosen}
    result = setting.run("--watch", "nobody", "--out", str(setting.folder / "other"))
    assert result.exit_code == 2 and "no clip of this run has the id 'nobody'" in result.output


def test_known_speakers_are_the_clusters():
    counts = dict.fromkeys(sweep.COUNTS, 0) | {"substitutions": 1, "reference_words": 5}
    counts |= {"characters": 20, "character_errors": 2, "cyrillic_words": 3}

    def quality(cluster, speaker="someone"):
        rows = [counts | {"id": i, "speaker": speaker, "cluster": cluster(i)} for i in range(30)]
        return sweep._quality(rows, rows)

    by_speaker = quality(lambda i: f"speaker{i % 2}")
    assert (by_speaker["n"], by_speaker["n_clusters"], by_speaker["clusters"]) == (30, 2, "speaker")
    assert (by_speaker["substitutions"], by_speaker["cyrillic_words"], by_speaker["cer"]) == (30, 90, 0.1)
    assert quality(lambda i: f"file{i % 9}", speaker="")["clusters"] == "recording"
    # one speaker stands for no other, and clips of which nothing is known stand for themselves
    for cluster in (lambda _: "one", str):
        alone = quality(cluster)
        assert (alone["n_clusters"], alone["clusters"]) == (30, "clip")


def test_a_torn_run_resumes_to_the_same_summary(setting):
    assert setting.run().exit_code == 0
    whole, lines = summary_without_times(setting), (setting.out / "utterances.jsonl").read_bytes().splitlines(True)
    (setting.out / "utterances.jsonl").write_bytes(b"".join(lines[:6]) + lines[6][:50])
    (setting.out / "summary.json").unlink()
    result = setting.run()
    assert result.exit_code == 0
    assert summary_without_times(setting) == whole
    assert (setting.out / "utterances.jsonl").read_bytes().splitlines(True)[:4] == lines[:4]  # kept, not done again
    assert len(setting.utterances()) == 16
    result = setting.run()  # once more, with time: they are tried again
    assert result.exit_code == 0 and {row["failed_clips"] for row in json.loads(result.stdout)["rows"]} == {0}
    assert len(setting.utterances()) == 16 and not any("error" in row for row in setting.utterances())


def test_another_configuration_is_not_mixed_in(setting):
    assert setting.run().exit_code == 0
    before = (setting.out / "utterances.jsonl").read_bytes()
    for change in (["--clips", "2"], ["--seed", "9", "--clips", "3"]):
        result = setting.run(*change)
        assert result.exit_code == 2
        assert "another configuration" in result.output
    assert (setting.out / "utterances.jsonl").read_bytes() == before


def test_other_recordings_texts_or_normalisers_are_not_mixed_in(setting, monkeypatch):
    """Same names, same ids: what the files hold and how texts are scored belongs to the run, too."""
    assert setting.run().exit_code == 0
    speech = json.loads((setting.out / "run.json").read_text())["speech"][0]
    assert speech["normaliser"] == scoring.normaliser("en").name

    rows = setting.rows
    recording = setting.folder / "copy.flac"
    samples, rate = soundfile.read(rows[0]["audio"])
    soundfile.write(recording, samples, rate)
    setting.write([rows[0] | {"audio": str(recording)}, *rows[1:]])
    setting.out = setting.folder / "copied"
    assert setting.run().exit_code == 0
    soundfile.write(recording, samples / 2, rate)
    result = setting.run()
    assert result.exit_code == 2 and "(clips)" in result.output

    soundfile.write(recording, samples, rate)
    assert setting.run().exit_code == 0
    setting.write([setting.rows[0] | {"text": "something else"}, *rows[1:]])
    result = setting.run()
    assert result.exit_code == 2 and "(clips)" in result.output

    setting.write([rows[0] | {"audio": str(recording)}, *rows[1:]])
    other = scoring.Normaliser("another/2", str.lower)
    monkeypatch.setattr(scoring, "normaliser", lambda *_: other)
    result = setting.run()
    assert result.exit_code == 2 and "(normaliser)" in result.output


def test_four_jobs_give_what_one_gives(setting):
    assert setting.run().exit_code == 0
    one = sorted(untimed(setting.utterances()), key=str)
    setting.out = setting.folder / "four"
    assert setting.run("--jobs", "4").exit_code == 0
    assert sorted(untimed(setting.utterances()), key=str) == one


def test_a_clip_that_cannot_be_decoded_is_counted_and_missing_in_all_arms(setting):
    silent = setting.folder / "empty.wav"
    soundfile.write(silent, [], 16000)
    setting.write(
        [*setting.rows, {"id": "broken", "audio": str(silent), "text": "nothing", "language": "en", "duration": 1.0}]
    )
    result = setting.run()
    assert result.exit_code == 0
    assert {(row["n"], row["failed_clips"]) for row in json.loads(result.stdout)["rows"]} == {(4, 1)}
    assert "1 clips of" in result.stderr


def test_a_clip_that_takes_too_long_has_an_error_row_and_the_sweep_goes_on(setting):
    result = setting.run("--timeout", "0.01")
    assert result.exit_code == 2 and "no clip could be decoded" in result.output
    assert {row["error"] for row in setting.utterances()} == {"stopped after 0.01 s (--timeout)"}
    assert len(setting.utterances()) == 16


def test_a_killed_worker_costs_no_clip(setting):
    process = subprocess.Popen(
        [sys.executable, "-m", "pyharness", *setting.arguments], stdout=subprocess.PIPE, text=True
    )
    worker = wait_for(lambda: busy_worker(process.pid))
    os.kill(worker, signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert {(row["n"], row["failed_clips"]) for row in json.loads(out)["rows"]} == {(4, 0)}


def interrupt_after_the_first_clip(setting, arguments) -> str:
    """Ctrl-C for a sweep in a process of its own, which must end within 5 s; what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pyharness", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test runner in the background ignores it
    )
    utterances = setting.out / "utterances.jsonl"
    wait_for(lambda: utterances.exists() and utterances.stat().st_size)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and time.monotonic() - begin < 5
    return err


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(setting):
    err = interrupt_after_the_first_clip(setting, [*setting.arguments, "--jobs", "2"])
    assert f"--out {setting.out}" in err and "Traceback" not in err
    assert len(setting.utterances()) % 4 == 0
    assert setting.run().exit_code == 0
    assert len(setting.utterances()) == 16


def test_killed_at_any_moment_and_resumed_no_clip_is_lost_or_repeated(setting):
    moments = random.Random(7)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "pyharness", *setting.arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        wait_for(lambda: (setting.out / "run.json").exists())
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moments.uniform(0, 6))
        process.kill()
        process.communicate()
    result = setting.run("--resume")
    assert result.exit_code == 0, result.output
    done = [(row["id"], row["arm"]) for row in setting.utterances()]
    assert len(done) == len(set(done)) == 16
    assert not (setting.out / ".lock").exists()
    resumed = summary_without_times(setting)
    setting.out = setting.folder / "uninterrupted"
    assert setting.run().exit_code == 0
    assert summary_without_times(setting) == resumed


def test_a_finished_run_says_that_its_results_are_old(setting):
    assert "nothing decoded" not in setting.run().stderr
    lines = (setting.out / "utterances.jsonl").read_bytes()
    date = json.loads((setting.out / "run.json").read_text())["date"]
    result = setting.run("--resume")
    assert result.exit_code == 0
    assert f"complete; nothing decoded, these are the results of {date}" in result.stderr
    assert (setting.out / "utterances.jsonl").read_bytes() == lines


def test_resume_needs_a_run(setting):
    result = setting.run("--resume")
    assert result.exit_code == 2 and f"'{setting.out}' holds no run" in result.output
    result = CliRunner().invoke(main, ["sweep", "--grid", str(setting.grid), "--resume"])
    assert result.exit_code == 2 and "--out" in result.output


def test_two_sweeps_do_not_write_one_run(setting):
    first = subprocess.Popen([sys.executable, "-m", "pyharness", *setting.arguments], stdout=subprocess.PIPE)
    wait_for(lambda: (setting.out / "run.json").exists())
    result = setting.run()
    assert result.exit_code == 2 and f"is being written by process {first.pid} on" in result.output
    first.communicate()
    assert first.returncode == 0 and len(setting.utterances()) == 16


@pytest.mark.parametrize("name", ["summary.json", "report.html", "run.json"])
def test_a_file_that_cannot_be_written_is_one_line(setting, name):
    (setting.out / f"{name}.part").mkdir(parents=True)
    if name != "run.json":
        shutil.rmtree(setting.out)
        assert setting.run().exit_code == 0
        (setting.out / name).unlink()
        (setting.out / f"{name}.part").mkdir()
    result = setting.run()
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert f"cannot write '{setting.out / name}'" in result.output


def busy_worker(parent: int):
    """A child that has loaded the library, so that it is decoding a clip or about to."""
    threads = Path(f"/proc/{parent}/task").iterdir()
    children = [child for thread in threads for child in (thread / "children").read_text().split()]
    return next((int(c) for c in children if "libwhisper" in Path(f"/proc/{c}/maps").read_text()), None)


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("timed out")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--models", "no-such-model"], "no-such-model"),
        (["--speech", "no-such-speech"], "no-such-speech"),
        (["--clips", "0"], "--clips"),
        (["--jobs", "-1"], "--jobs"),
        (["--grid", "no-such-file.toml"], "no-such-file.toml"),
    ],
)
def test_wrong_arguments_exit_with_2_and_name_the_reason(setting, arguments, reason):
    result = setting.run(*arguments)
    assert result.exit_code == 2
    assert reason in result.output
    assert not setting.out.exists()


def test_a_language_that_the_model_does_not_know_ends_the_sweep_before_the_first_clip(setting, base):
    setting.write([{key: value for key, value in row.items() if key != "language"} for row in setting.rows])
    result = setting.run("--models", "base", "--language", "xx")
    assert result.exit_code == 2 and "'base' does not know the language 'xx'" in result.output
    assert not setting.out.exists()


def test_an_arm_that_the_library_refuses_ends_the_sweep_before_the_first_clip(setting, tiny_en):
    arms = (rules.Full(), rules.Stride(budget=0))
    wrong = grid.Grid(("tiny.en",), (str(setting.manifest),), arms)
    with pytest.raises(HarnessError, match=r"tiny\.en.*stride is refused: budget must be 1\.\.1500"):
        sweep.make_plan(wrong, None, print)


def test_empty_manifest_and_no_model_are_named(setting, tmp_path):
    setting.manifest.write_text("")
    result = setting.run()
    assert result.exit_code == 2 and str(setting.manifest) in result.output
    fake = tmp_path / "fake.bin"
    fake.write_text("<html>404</html>")
    result = setting.run("--models", str(fake))
    assert result.exit_code == 2 and str(fake) in result.output


def test_a_folder_of_something_else_is_not_touched(setting):
    setting.out.mkdir()
    (setting.out / "precious.txt").write_text("mine")
    result = setting.run()
    assert result.exit_code == 2 and "not empty" in result.output
    assert [path.name for path in setting.out.iterdir()] == ["precious.txt"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("models = [", "no valid TOML"),
        ("models = []\nspeech = ['a']", "'models'"),
        ("models = ['a']\nspeech = ['a']\nclips = 0", "'clips'"),
        ("models = ['a']\nspeech = ['a']\nfoo = 1", "'foo'"),
        ("models = ['a']\nspeech = ['a']\n[[arms]]\nrule = 'padsnk-track'", "padsink-track"),
        ("models = ['a']\nspeech = ['a']\n[[arms]]\nrule = 'stride'\nbudget = [0]", "budget"),
        ("models = ['a']\nspeech = ['a']\n[[arms]]\nrule = 'stride'\ntau = 0.5", "'tau'"),
        ("[[arms]]\nrule = 'padsink-track'\nsinks = 'last'", "sinks must be first-step or model"),
        ("models = ['a']\nspeech = ['a']\n[[arms]]\nbudget = 5", "rule"),
        ("models = ['a']\nspeech = ['a']", "[[arms]]"),
        ("models = ['a']\nspeech = ['a']\n[[arms]]\nrule = 'stride'\nbudget = []", "without values"),
        ("models = ['a']\nspeech = ['a']\n[decoding]\nbeam_size = 9", "beam_size"),
        ("decoding.timestamps = 1\n[[arms]]\nrule = 'stride'", "'timestamps' must be true or false"),
        ("decoding = 5\n[[arms]]\nrule = 'stride'", "[decoding] table"),
        ("models = ['a']\nspeech = ['a']\n[decoding]\nthreads = 1.5", "threads"),
    ],
)
def test_wrong_grids_name_file_and_reason(tmp_path, text, reason):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(HarnessError) as caught:
        grid.load(path)
    assert str(path) in caught.value.message and reason in caught.value.message


@pytest.mark.parametrize(("named", "missing"), [("speech", "models"), ("models", "speech")])
def test_a_grid_that_leaves_names_to_the_command_line_asks_for_them(tmp_path, named, missing):
    path = tmp_path / "grid.toml"
    path.write_text(f"{named} = ['a']\n[[arms]]\nrule = 'stride'")
    with pytest.raises(HarnessError, match=f"no {missing}: .* --{missing}"):
        sweep.make_plan(grid.load(path), None, print)


def test_a_language_that_is_not_used_is_said(setting):
    said = []
    sweep.make_plan(grid.load(setting.grid), "en", said.append)
    assert said == [f"{setting.manifest} states its language: --language en is not used"]


def test_the_default_grid_is_the_documented_one():
    default = grid.load(grid.DEFAULT)
    assert default.models == ("tiny.en", "base") and default.speech == ("asterisk-en", "asterisk-ru")
    assert default.arms[0].name == "full"
    assert len(default.arms) == 2 + 6 * 5 + 5 * 2
    assert len({arm.describe() for arm in default.arms}) == len(default.arms)


def test_works_from_a_folder_with_spaces(setting):
    spaced = setting.folder / "a folder with spaces"
    spaced.mkdir()
    shutil.copy(setting.rows[0]["audio"], spaced / "my clip.flac")
    setting.write([{"audio": str(spaced / "my clip.flac"), "text": setting.rows[0]["text"], "language": "en"}])
    setting.out = spaced / "run"
    assert setting.run().exit_code == 0
