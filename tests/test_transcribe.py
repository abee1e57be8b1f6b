"""pyharness transcribe on real speech: every format, several files, unreadable files, wrong values."""

import json
import re
import shutil

import native_tools as tools
import pytest
from click.testing import CliRunner

from pyharness import output, rules
from pyharness.cli import main
from pyharness.native import Segment, Transcript

WORDS = "ask not what your country can do for you"
TIME = r"\d\d:\d\d:\d\d{}\d\d\d"


def transcribe(*arguments):
    return CliRunner().invoke(main, ["transcribe", *map(str, arguments)])


def fast(*arguments):
    return transcribe("--model", "tiny.en", "--beam-size", 1, *arguments)


@pytest.fixture(scope="module", autouse=True)
def model(tiny_en):
    return tiny_en


def test_text_is_what_is_said():
    result = fast(tools.JFK)
    assert result.exit_code == 0 and WORDS in result.stdout
    assert result.stdout.count("\n") == 1


def test_json_is_one_object_on_one_line_with_the_options_that_made_it():
    result = fast(tools.JFK, "--format", "json", "--kv-budget", "20%", "--kv-tau", 0.4)
    line, *rest = result.stdout.splitlines()
    assert not rest
    row = json.loads(line)
    assert row["audio_filepath"] == str(tools.JFK) and row["language"] == "en" and WORDS in row["text"]
    assert row["segments"][0]["start"] == 0 and 10 < row["segments"][-1]["end"] <= 11.1
    assert row["options"]["model"] == "tiny.en" and row["options"]["beam_size"] == 1
    assert row["options"]["view"] == rules.PadsinkTrack(budget=300, tau=0.4).describe()
    counters = row["counters"]
    assert counters["n_reduced"] + counters["n_full"] + counters["n_reexec"] == counters["n_steps"] > 20


def test_without_a_view_the_options_say_so():
    row = json.loads(fast(tools.JFK, "--format", "json").stdout)
    assert row["options"]["view"] is None and row["counters"]["n_steps"] == 0


def test_srt_has_numbered_blocks():
    blocks = fast(tools.JFK, "--format", "srt").stdout.split("\n\n")
    span = re.compile(f"{TIME.format(',')} --> {TIME.format(',')}")
    for i, block in enumerate(blocks, 1):
        number, times, *text = block.strip().split("\n")
        assert number == str(i) and span.fullmatch(times) and "".join(text)
    assert blocks[0].split("\n")[1].startswith("00:00:00,000 --> ")


def test_vtt_has_a_header_and_cues():
    header, *cues = fast(tools.JFK, "--format", "vtt").stdout.split("\n\n")
    span = re.compile(f"{TIME.format('[.]')} --> {TIME.format('[.]')}")
    assert header == "WEBVTT" and cues
    assert all(span.fullmatch(cue.strip().split("\n")[0]) for cue in cues)


def test_clocks_and_blocks_of_long_files():
    transcript = Transcript((Segment(0, 59.9996, " One. "), Segment(3599.5, 3661.25, " Two.")), (), "en")
    srt = output.srt(None, transcript, {}, None)
    assert srt == "1\n00:00:00,000 --> 00:01:00,000\nOne.\n\n2\n00:59:59,500 --> 01:01:01,250\nTwo.\n"
    vtt = output.vtt(None, transcript, {}, None)
    assert vtt == "WEBVTT\n\n00:00:00.000 --> 00:01:00.000\nOne.\n\n00:59:59.500 --> 01:01:01.250\nTwo.\n"


def test_files_that_cannot_be_read_cost_no_other(tmp_path):
    """Good, missing, no audio, good: both good ones are written, both others are named."""
    noise = tmp_path / "noise.wav"
    noise.write_text("this is no audio")
    again = tmp_path / "again.wav"
    shutil.copy(tools.JFK, again)
    out = tmp_path / "out"
    result = fast(tools.JFK, tmp_path / "missing.wav", noise, again, "--out", out)
    assert result.exit_code == 2
    assert sorted(path.name for path in out.iterdir()) == ["again.txt", "jfk.txt"]
    assert (out / "again.txt").read_text() == (out / "jfk.txt").read_text()
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 2 and "missing.wav" in errors[0] and "noise.wav" in errors[1]


def test_two_files_of_one_name_are_refused_before_anything_is_written(tmp_path):
    other = tmp_path / "jfk.flac"
    shutil.copy(tools.JFK, other)
    out = tmp_path / "out"
    result = fast(tools.JFK, other, "--out", out)
    assert result.exit_code == 2 and not out.exists()
    assert str(tools.JFK) in result.stderr and str(other) in result.stderr
    assert fast(tools.JFK, other).stdout.count(WORDS) == 2  # printed, they do not collide


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    result = fast(tools.JFK, "--out", tmp_path / "file" / "out")
    assert result.exit_code == 2 and "cannot write" in result.stderr and isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--kv-budget", "0"], "--kv-budget"),
        (["--kv-budget", "200%"], "--kv-budget"),
        (["--kv-tau", "2"], "tau must be a number from 0 to 1"),
        (["--kv-tau", "nan"], "tau must be a number from 0 to 1"),
        (["--kv-sink-frac", "-0.1"], "sink_fraction"),
        (["--kv-rule", "padsnk-track"], "padsink-track"),
        (["--kv-rule", "stride", "--kv-tau", "0.4"], "'stride' has no setting 'tau'"),
        (["--kv-budget", "192", "--profile", "x.json"], "--profile"),
        (["--profile", "no-such-profile.json"], "no-such-profile.json"),
        (["--language", "de"], "--language de"),
        (["--format", "doc"], "--format"),
        (["--beam-size", "9"], "--beam-size"),
        (["--threads", "0"], "--threads"),
        (["--model", "no-such-model"], "no-such-model"),
    ],
)
def test_wrong_values_exit_with_2_and_name_the_reason(arguments, reason):
    result = fast(tools.JFK, *arguments)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert reason in result.stderr and not result.stdout
