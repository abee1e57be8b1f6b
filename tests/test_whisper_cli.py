"""whisper-cli with the --kv-* flags: words, counters, and what it says to wrong values."""

import json
import subprocess

import native_tools as tools
import pytest

from pyharness import audio

CLI = tools.OURS / "bin" / "whisper-cli"
WORDS = "fellow americans ask not what your country can do for you ask what you can do for your country"


def whisper_cli(*arguments, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(CLI), *map(str, arguments)],
        env={**tools.os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def words(text: str) -> str:
    return " ".join("".join(c for c in text.lower() if c.isalpha() or c.isspace()).split())


def test_prints_the_words_of_the_off_run_and_counters_that_add_up(base, tmp_path):
    flags = ["-m", base, "-f", tools.JFK, "-nt", "-np", "-bs", 1]
    off = whisper_cli(*flags)
    stats = tmp_path / "stats.json"
    view = ["--kv-rule", "padsink-track", "--kv-budget", 192, "--kv-stats", "--kv-stats-json", stats]
    reduced = whisper_cli(*flags, *view)
    assert off.returncode == reduced.returncode == 0
    assert WORDS in words(off.stdout)
    assert words(reduced.stdout) == words(off.stdout)
    counts = json.loads(stats.read_text())
    assert counts["steps"] == counts["reduced"] + counts["full"] + counts["reexecuted"] > 20
    assert counts["row_size"] == 2 * 2 * 512
    assert counts["bytes_read"] == counts["rows_read"] * counts["row_size"]
    assert counts["rows_view"] == 6 * 192 * (counts["reduced"] + counts["reexecuted"])
    assert f"= {counts['bytes_read']} bytes" in reduced.stderr


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--kv-budget", "0"], "1 to 1500"),
        (["--kv-budget", "-1"], "1 to 1500"),
        (["--kv-budget", "nan"], "1 to 1500"),
        (["--kv-budget", "1501"], "1 to 1500"),
        (["--kv-budget", "101%"], "1 to 1500"),
        (["--kv-budget", "12.5"], "1 to 1500"),
        (["--kv-budget", "many"], "1 to 1500"),
        (["--kv-budget", ""], "1 to 1500"),
        (["--kv-tau", "2"], "0 to 1"),
        (["--kv-tau", "-0.1"], "0 to 1"),
        (["--kv-tau", "nan"], "0 to 1"),
        (["--kv-sink-frac", "1.01"], "0 to 1"),
        (["--kv-rule", "padsink"], "padsink-track"),
        (["--kv-rule"], "a value"),
    ],
)
def test_wrong_values_exit_with_2_and_one_line(flags, named):
    result = whisper_cli("-m", "no-model-is-needed", "-f", tools.JFK, *flags)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert flags[0] in result.stderr and named in result.stderr


def test_unreadable_files_end_with_a_failure_that_names_them(tiny_en, tmp_path):
    text = tmp_path / "text.wav"
    text.write_text("this is no audio")
    for wrong in (tmp_path / "missing.wav", text):
        result = whisper_cli("-m", tiny_en, "-f", wrong)
        assert result.returncode != 0, wrong
        assert wrong.name in result.stderr
    both = whisper_cli("-m", tiny_en, "-nt", "-f", text, "-f", tools.JFK)
    assert both.returncode == 2
    assert WORDS.split()[-1] in both.stdout  # the readable one is done all the same
    assert whisper_cli("-m", text, "-f", tools.JFK).returncode == 3


def test_profiles_come_from_a_flag_or_the_environment_and_wrong_ones_are_refused(tiny_en, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"schema": 1, "rule": "first-step-top", "budget": 300, "model": {"n_text_layer": 4}}')
    flags = ["-m", tiny_en, "-f", tools.JFK, "-nt", "-np", "--kv-stats"]
    for result in (whisper_cli(*flags, "--kv-profile", profile), whisper_cli(*flags, WHISPER_KV_PROFILE=str(profile))):
        assert result.returncode == 0
        assert "rule first-step-top, budget 300" in result.stderr
    overridden = whisper_cli(*flags, "--kv-budget", "10%", WHISPER_KV_PROFILE=str(profile))
    assert "rule first-step-top, budget 150, " in overridden.stderr

    profile.write_text('{"schema": 1, "budget": 96, "model": {"n_text_layer": 6}}')
    result = whisper_cli(*flags, "--kv-profile", profile)
    assert result.returncode == 2 and "another model" in result.stderr and str(profile) in result.stderr
    assert whisper_cli("-m", tiny_en, "-f", tools.JFK, WHISPER_KV_PROFILE=str(profile)).returncode != 0


def test_the_c_example_of_the_readme_transcribes(tiny_en):
    samples = audio.load(tools.JFK)
    result = subprocess.run(
        [str(tools.OURS / "bin" / "embed"), str(tiny_en), "en"],
        input=samples.tobytes(),
        capture_output=True,
        check=True,
    )
    assert "your country" in result.stdout.decode()
    assert b"steps" in result.stderr


def test_a_view_is_refused_without_flash_attention(tiny_en):
    result = whisper_cli("-m", tiny_en, "-f", tools.JFK, "-np", "-nfa", "--kv-budget", 192)
    assert result.returncode == 2
    assert "flash attention" in result.stderr
