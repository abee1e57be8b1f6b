"""whisper-cli with the --kv-* flags: words, counters, and what it says to wrong values."""

import json
import re
import subprocess
import tomllib

import native_tools as tools
import pytest
import soundfile

from pyharness import audio, paths, rules
from pyharness.errors import HarnessError

CLI = tools.OURS / "bin" / "whisper-cli"
CANDIDATES = paths.REPOSITORY / "calibration" / "candidates.toml"
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


def refusal(rule: str, setting: str) -> str | None:
    """What pyharness says to a setting of a rule."""
    try:
        rules.make(rule, **{setting: 0.5 if setting != "budget" else 128})
    except HarnessError as error:
        return error.message
    return None


SETTINGS = {"--kv-budget": ("budget", 128), "--kv-sink-frac": ("sink_fraction", 0.5), "--kv-tau": ("tau", 0.5)}


@pytest.mark.parametrize("rule", rules.RULES)
def test_settings_that_the_rule_ignores_are_refused_in_the_words_of_pyharness(tiny_en, tmp_path, rule):
    silence = tmp_path / "silence.wav"
    soundfile.write(silence, [0.0] * 1600, 16000)
    for flag, (setting, value) in SETTINGS.items():
        result = whisper_cli("-m", tiny_en, "-f", silence, "-np", "--kv-rule", rule, flag, value)
        reason = refusal(rule, setting)
        assert result.returncode == (2 if reason else 0)
        assert result.stderr == (f"error: {flag}: {reason}\n" if reason else "")


def test_flags_are_judged_together_with_the_profile(tiny_en, tmp_path):
    profile = tmp_path / "profile.json"
    flags = ["-m", tiny_en, "-f", tools.JFK, "-nt", "-np", "-bs", 1, "--kv-stats", "--kv-profile", profile]

    profile.write_text('{"schema": 1, "rule": "full"}')
    result = whisper_cli(*flags, "--kv-budget", 192)
    assert result.returncode == 2
    assert result.stderr == "error: --kv-budget: rule 'full' has no setting 'budget' (it has: none)\n"

    profile.write_text('{"schema": 1, "rule": "padsink-track", "budget": 300, "tau": 1.0}')
    result = whisper_cli(*flags, "--kv-rule", "stride")
    assert "rule stride, budget 300, sink fraction 0.25, tau 0.00" in result.stderr
    assert " 0 re-executed" in result.stderr  # the profile's tau is none of this rule's
    assert whisper_cli(*flags, "--kv-rule", "stride", "--kv-tau", 0.4).returncode == 2


def test_only_padsink_track_leaves_the_view_of_a_clip_that_runs_away(tiny_en, tmp_path):
    clip = tmp_path / "short.wav"
    soundfile.write(clip, audio.load(tools.JFK)[:16000], 16000)  # one second may have 41 tokens
    flags = ["-m", tiny_en, "-f", clip, "-nt", "-np", "-bs", 1, "-bo", 1, "-nf", "--kv-stats-json"]
    for rule, forced in (("audio-only", False), ("padsink-track", True)):
        stats = tmp_path / f"{rule}.json"
        tuned = ["--kv-budget", 1] if forced else []
        assert whisper_cli(*flags, stats, "--kv-rule", rule, *tuned).returncode == 0
        counts = json.loads(stats.read_text())
        assert counts["steps"] > 41, rule
        assert (counts["full_runaway"] > 0) == forced, rule


def test_a_budget_below_those_of_calibration_is_warned_of(tiny_en):
    smallest = min(tomllib.loads(CANDIDATES.read_text())["arms"][0]["budget"])
    flags = ["-m", tiny_en, "-f", tools.JFK, "-nt", "-np", "-bs", 1, "-nf", "--kv-budget"]
    result = whisper_cli(*flags, 1)
    assert result.returncode == 0
    assert f"warning: --kv-budget 1: calibration tries no less than {smallest} positions" in result.stderr
    assert "warning" not in whisper_cli(*flags, smallest).stderr


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
    flags = ["-m", tiny_en, "-f", tools.JFK, "-nt", "-np", "-bs", 1, "-nf", "--kv-stats"]
    for result in (whisper_cli(*flags, "--kv-profile", profile), whisper_cli(*flags, WHISPER_KV_PROFILE=str(profile))):
        assert result.returncode == 0
        assert "rule first-step-top, budget 300" in result.stderr
    overridden = whisper_cli(*flags, "--kv-budget", "10%", WHISPER_KV_PROFILE=str(profile))
    assert "rule first-step-top, budget 150, " in overridden.stderr

    profile.write_text('{"schema": 1, "budget": 96, "model": {"n_text_layer": 6}}')
    result = whisper_cli(*flags, "--kv-profile", profile)
    assert result.returncode == 2 and "another model" in result.stderr and str(profile) in result.stderr
    assert whisper_cli("-m", tiny_en, "-f", tools.JFK, WHISPER_KV_PROFILE=str(profile)).returncode != 0


def readme_block(start: str) -> str:
    """The indented lines of the README from the one that starts with this."""
    readme = (paths.REPOSITORY / "README.md").read_text(encoding="utf-8")
    return re.search(rf"^    {re.escape(start)}.*?(?=\n\n)", readme, re.MULTILINE | re.DOTALL).group()


@pytest.fixture(scope="module")
def embed(tmp_path_factory):
    """The C example, compiled by the README's command in a folder that looks like the repository."""
    folder = tmp_path_factory.mktemp("embed")
    for name in ("ggml-patch", "whisper_cpp", "build"):
        (folder / name).symlink_to(paths.REPOSITORY / name)
    command = readme_block("gcc ggml-patch/examples/embed.c") + " -Wall -Wextra -Werror"
    subprocess.run(["bash", "-c", command], cwd=folder, check=True)
    return folder / "embed"


def run(program, *arguments, **kwargs) -> subprocess.CompletedProcess:
    return subprocess.run([str(program), *map(str, arguments)], capture_output=True, check=False, **kwargs)


def test_the_c_example_transcribes(embed, tiny_en):
    result = run(embed, tiny_en, "en", input=audio.load(tools.JFK).tobytes())
    assert result.returncode == 0
    assert "your country" in result.stdout.decode()
    assert b"steps" in result.stderr


@pytest.mark.parametrize(
    ("language", "samples", "named"),
    [
        ("xx", bytes(64000), "unknown language 'xx'"),
        ("de", bytes(64000), "knows English only"),
        ("en", b"", "no audio"),
    ],
)
def test_the_c_example_refuses_unknown_languages_and_empty_input(embed, tiny_en, language, samples, named):
    result = run(embed, tiny_en, language, input=samples)
    assert result.returncode == 2
    assert named in result.stderr.decode()


def test_the_c_lines_of_the_readme_compile(tmp_path):
    readme = (paths.REPOSITORY / "README.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```c\n(.*?)```", readme, re.DOTALL)
    known = "struct whisper_context * ctx, struct whisper_full_params params, const float * samples, int n_samples"
    source = tmp_path / "lines.c"
    source.write_text(f'#include "whisper-kv-view.h"\nvoid lines({known}) {{\n{lines}}}\n')
    includes = re.findall(r"-I\S+", readme_block("gcc ggml-patch/examples/embed.c"))
    command = ["gcc", "-fsyntax-only", "-Wall", "-Werror", *includes, source]
    subprocess.run(command, cwd=paths.REPOSITORY, check=True)


@pytest.mark.parametrize("off", [["-nfa"], ["-nfa", "-dtw", "tiny.en"], ["-nfa", "-ng"]])
def test_a_view_is_refused_without_flash_attention(tiny_en, off):
    result = whisper_cli("-m", tiny_en, "-f", tools.JFK, "-np", *off, "--kv-budget", 192)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "flash attention" in result.stderr
