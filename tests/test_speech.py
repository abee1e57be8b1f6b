"""Manifests say exactly which line is wrong; sets are complete or absent; samples do not depend on order."""

import dataclasses
import json
from pathlib import Path

import click.testing
import numpy as np
import pytest
import soundfile

from pyharness import speech
from pyharness.cli import main
from pyharness.errors import HarnessError


@pytest.fixture
def folder(tmp_path):
    """Two recordings of 1 s and 0.5 s."""
    for name, seconds in (("a.wav", 1), ("b.wav", 0.5)):
        soundfile.write(tmp_path / name, np.zeros(int(16000 * seconds)), 16000)
    return tmp_path


@dataclasses.dataclass(frozen=True)
class FakeSource:
    """Writes one clip, or fails half-way."""

    text: str = "hello"
    fails: bool = False

    def fetch(self, folder: Path) -> tuple[list[dict], dict[str, int]]:
        soundfile.write(folder / "x.flac", np.zeros(8000), 16000)
        if self.fails:
            raise HarnessError("download failed")
        row = {"id": "x", "audio": folder / "x.flac", "text": self.text, "duration": 0.5}
        return [row], {"kept": 1, "digits": 2, "brackets": 0}


@pytest.fixture
def register(tmp_path, monkeypatch):
    """Makes ``demo`` the only registered set, with the given source, and the cache empty."""
    monkeypatch.setenv("PADSINK_HOME", str(tmp_path / "home"))

    def register(source: FakeSource, **scoring: bool) -> None:
        item = speech.SpeechSet("demo", "en", "CC0-1.0", 7, 1.5, source, scoring)
        monkeypatch.setattr(speech, "SETS", {"demo": item})

    register(FakeSource())
    return register


def write(folder: Path, content: str | bytes, name: str = "m.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def assert_error(path: Path, message: str, **options) -> None:
    with pytest.raises(HarnessError) as caught:
        speech.read_manifest(path, **options)
    assert str(path) in caught.value.message
    assert message in caught.value.message


# --- reading ----------------------------------------------------------------------------------------------


def test_two_fields_are_enough(folder):
    path = write(folder, lines({"audio": "a.wav", "text": "one"}, {"audio_filepath": "b.wav", "text": "two"}))
    assert speech.read_manifest(path) == [
        speech.Clip("a", folder / "a.wav", "one", duration=1.0),
        speech.Clip("b", folder / "b.wav", "two", duration=0.5),
    ]


def test_all_fields_are_kept(folder):
    row = {
        "id": "x", "audio": str(folder / "a.wav"), "text": " Da. ", "language": "ru", "duration": 2.5,
        "speaker": "s", "source": "q", "licence": "CC0-1.0", "synthetic": True, "recording": "r", "extra": [1],
    }  # fmt: skip
    (clip,) = speech.read_manifest(write(folder, lines(row)))
    expected = ("x", folder / "a.wav", " Da. ", "ru", 2.5, "s", "q", "CC0-1.0", True, "r")
    assert dataclasses.astuple(clip) == expected


def test_csv_and_jsonl_mean_the_same(folder):
    table = 'audio,text,duration,synthetic,speaker\na.wav,"one, two",1.5,true,\n'
    row = {"audio": "a.wav", "text": "one, two", "duration": 1.5, "synthetic": True, "speaker": None}
    from_csv = speech.read_manifest(write(folder, table, "m.csv"))
    assert from_csv == speech.read_manifest(write(folder, lines(row)))


@pytest.mark.parametrize("name", ["m.jsonl", "m.csv"])
def test_byte_order_mark_blank_lines_and_windows_newlines(folder, name):
    rows = lines({"audio": "a.wav", "text": "да"}) if name == "m.jsonl" else "audio,text\na.wav,да\n"
    content = "\ufeff" + rows.replace("\n", "\r\n\r\n")
    assert [clip.id for clip in speech.read_manifest(write(folder, content, name))] == ["a"]


def test_line_separator_inside_a_text_does_not_end_the_line(folder):
    row = json.dumps({"audio": "a.wav", "text": "one\u2028two"}, ensure_ascii=False)
    assert speech.read_manifest(write(folder, row))[0].text == "one\u2028two"


def test_missing_ids_are_numbered_around_given_ones(folder):
    row = {"audio": "a.wav", "text": "x"}
    path = write(folder, lines(row, row, {**row, "id": "a-2"}, row))
    assert [clip.id for clip in speech.read_manifest(path)] == ["a", "a-3", "a-2", "a-4"]


def test_missing_audio_is_accepted_when_told(folder):
    path = write(folder, lines({"audio": "gone.wav", "text": "x"}))
    assert speech.read_manifest(path, check_audio=False)[0].duration == 0
    assert_error(path, f"line 1: audio file '{folder / 'gone.wav'}' does not exist")


@pytest.mark.parametrize(
    ("second_line", "message"),
    [
        ('{"audio": "a.wav", ', "line 2: broken JSON"),
        ("[" * 100_000, "line 2: broken JSON"),
        ('["a.wav", "x"]', "line 2: not a JSON object"),
        ('{"text": "x"}', "line 2: field 'audio' (or 'audio_filepath') is missing or empty"),
        ('{"audio": "a.wav"}', "line 2: field 'text' is missing or empty"),
        ('{"audio": "a.wav", "text": " "}', "line 2: field 'text' is missing or empty"),
        ('{"audio": 5, "text": "x"}', "line 2: field 'audio' must be a string, not 5"),
        ('{"audio": "a.wav", "text": ["x"]}', "line 2: field 'text' must be a string"),
        ('{"audio": "a.wav", "text": "x", "id": 7}', "line 2: field 'id' must be a string, not 7"),
        ('{"audio": "a.wav", "text": "x", "duration": "long"}', "line 2: field 'duration' must be"),
        ('{"audio": "a.wav", "text": "x", "duration": -1}', "line 2: field 'duration' must be"),
        ('{"audio": "a.wav", "text": "x", "duration": NaN}', "line 2: field 'duration' must be"),
        ('{"audio": "a.wav", "text": "x", "duration": Infinity}', "line 2: field 'duration' must be"),
        ('{"audio": "a.wav", "text": "x", "duration": true}', "line 2: field 'duration' must be"),
        ('{"audio": "a.wav", "text": "x", "duration": 1e12}', "line 2: field 'duration' must be"),
        ('{"audio": "a.wav", "text": "half \\ud83d"}', "line 2: field 'text' holds half a character"),
        (f'{{"audio": "{"a" * 300}.wav", "text": "x"}}', "file name too long"),
        ('{"audio": "a.wav", "text": "x", "synthetic": "maybe"}', "line 2: field 'synthetic' must be"),
        ('{"audio": "a.wav", "text": "x", "id": "one"}', "line 2: id 'one' was already used on line 1"),
        ('{"audio": ".", "text": "x"}', "line 2: audio file"),
    ],
)
def test_broken_line_is_named(folder, second_line, message):
    first = lines({"audio": "a.wav", "text": "x", "id": "one"})
    assert_error(write(folder, first + second_line), message)


def test_unreadable_audio_names_line_and_file(folder):
    write(folder, "text", "c.wav")
    path = write(folder, lines({"audio": "c.wav", "text": "x"}))
    assert_error(path, f"line 1: cannot read audio '{folder / 'c.wav'}'")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("audio,text\na.wav,one, two\n", "line 2: more cells than the header"),
        ('audio,text\na.wav,"one\n', "line 2: unexpected end of data"),
        ("audio,words\na.wav,one\n", "line 2: field 'text' is missing"),
        ("audio,text\na.wav\n", "line 2: field 'text' is missing"),
        ("audio,text\n", "lists no clips"),
        ("", "lists no clips"),
    ],
)
def test_broken_csv_is_named(folder, content, message):
    assert_error(write(folder, content, "m.csv"), message)


def test_empty_manifest(folder):
    assert_error(write(folder, "\n\n"), "lists no clips")


def test_other_encodings_are_refused_with_the_line(folder):
    assert_error(write(folder, b'{"audio": "a.wav", "text": "x"}\n{"text": "\xe9"}'), "line 2: not UTF-8")


def test_missing_manifest_and_other_suffix(folder):
    assert_error(folder / "gone.jsonl", "no such file")
    assert_error(folder / "a.wav", "must end in .jsonl or .csv")


# --- writing ----------------------------------------------------------------------------------------------


def test_written_manifest_reads_back_after_its_folder_moved(folder):
    clip = speech.Clip("é", folder / "a.wav", "naïve да", "fr", 1.0, "s", "q", "l", True)
    speech.write_manifest(folder / "m.jsonl", [clip])
    assert "naïve да" in (folder / "m.jsonl").read_text(encoding="utf-8")
    moved = folder.rename(folder.with_name("moved"))
    assert speech.read_manifest(moved / "m.jsonl") == [dataclasses.replace(clip, audio=moved / "a.wav")]


def test_failed_write_keeps_the_old_manifest(folder, monkeypatch):
    path = write(folder, "old")

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(speech.os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        speech.write_manifest(path, [speech.Clip("a", folder / "a.wav", "x")])
    assert path.read_text() == "old"
    assert sorted(file.name for file in folder.iterdir()) == ["a.wav", "b.wav", "m.jsonl"]


# --- sets -------------------------------------------------------------------------------------------------


def test_sample_depends_on_ids_and_seed_only():
    clips = [speech.Clip(f"{n:02}", Path("a"), "x") for n in range(50)]
    chosen = speech.sample(clips, 10, seed=1)
    assert chosen == speech.sample(reversed(clips), 10, seed=1)
    assert chosen != speech.sample(clips, 10, seed=2)
    assert [clip.id for clip in chosen] == sorted({clip.id for clip in chosen}) and len(chosen) == 10
    # the published choice: changing the draw changes every published number
    assert [clip.id for clip in speech.sample(clips, 5, seed=0)] == ["04", "15", "36", "44", "46"]


def test_larger_sample_contains_the_smaller():
    clips = [speech.Clip(str(n), Path("a"), "x") for n in range(50)]
    assert set(speech.sample(clips, 10, seed=3)) < set(speech.sample(clips, 20, seed=3))
    assert len(speech.sample(clips, 99, seed=3)) == 50


def test_sample_of_nothing_is_refused():
    with pytest.raises(HarnessError, match="at least 1"):
        speech.sample([], 0, seed=0)


def test_registered_name_is_fetched_once(register):
    name, clips = speech.resolve("demo")
    assert name == "demo" and [clip.text for clip in clips] == ["hello"] and clips[0].audio.is_file()
    register(FakeSource("changed"))
    assert speech.resolve("demo")[1][0].text == "hello"
    speech.fetch("demo", force=True)
    assert speech.resolve("demo")[1][0].text == "changed"


def test_failed_fetch_leaves_nothing_and_keeps_the_old_set(register):
    register(FakeSource(fails=True))
    with pytest.raises(HarnessError, match="download failed"):
        speech.fetch("demo")
    assert list(speech.paths.speech_dir().iterdir()) == []
    register(FakeSource("old"))
    speech.fetch("demo")
    register(FakeSource(fails=True))
    with pytest.raises(HarnessError, match="download failed"):
        speech.fetch("demo", force=True)
    assert speech.resolve("demo")[1][0].text == "old"
    assert [path.name for path in speech.paths.speech_dir().iterdir()] == ["demo"]


def test_cache_that_cannot_be_written_is_named(register, tmp_path):
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(HarnessError, match=r"cannot write speech 'demo' to '.*home/speech/demo'"):
        speech.fetch("demo")


def test_manifest_and_folder_paths_are_read(folder):
    path = write(folder, lines({"audio": "a.wav", "text": "x"}), "calls.jsonl")
    assert speech.resolve(path)[0] == "calls"
    path.rename(folder / "manifest.jsonl")
    assert speech.resolve(str(folder))[0] == folder.name
    assert speech.resolve(folder / "manifest.jsonl")[0] == folder.name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("asterix-en", "did you mean 'asterisk-en'?"),
        ("qqq", "Known sets: asterisk-en"),
        ("calls.jsonl", "no such manifest file or folder"),
        ("data/calls", "no such manifest file or folder"),
    ],
)
def test_unknown_speech(name, message):
    with pytest.raises(HarnessError) as caught:
        speech.resolve(name)
    assert f"unknown speech '{name}'" in caught.value.message and message in caught.value.message


def test_only_sets_without_accents_are_scored_without_them():
    without = [name for name in speech.SETS if speech.strip_diacritics(name)]
    assert without == ["asterisk-es"]
    assert not speech.strip_diacritics("calls.jsonl")


# --- command line -----------------------------------------------------------------------------------------


def run(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["speech", *arguments])


def test_list_shows_published_size_until_the_set_is_cached(register):
    (row,) = json.loads(run("list", "--json").output)
    assert (row["clips"], row["minutes"], row["cached"]) == (7, 1.5, False)
    assert run("list").output.split()[-6:] == ["demo", "en", "7", "1.5", "CC0-1.0", "no"]
    speech.fetch("demo")
    assert run("list").output.split()[-6:] == ["demo", "en", "1", "0.0", "CC0-1.0", "yes"]


def test_get_reports_what_was_kept_and_dropped(register):
    result = run("get", "demo")
    assert result.exit_code == 0
    assert "demo: 1 clips" in result.output and "dropped prompts: digits 2\n" in result.output
    report = json.loads(run("get", "demo", "--json").output)
    assert report["filters"] == {"kept": 1, "digits": 2, "brackets": 0}


def test_get_unknown_is_one_line_and_exit_code_2(register):
    result = run("get", "dem")
    assert result.exit_code == 2
    assert result.output.startswith("Error: unknown speech 'dem': did you mean 'demo'?")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("command", [[], ["list"], ["get"]])
def test_every_help_has_examples(command):
    assert "Examples:\n    pyharness speech" in run(*command, "--help").output
