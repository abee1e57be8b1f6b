"""The synthetic sets: what is spoken, that it says it is synthetic, and an espeak-ng that is not installed."""

import json
import os
import shutil
import subprocess
import unicodedata
from pathlib import Path

import click.testing
import numpy as np
import pytest
import soundfile

from pyharness import debian, espeak, speech
from pyharness.cli import main
from pyharness.errors import HarnessError

WORDS = {"tr": "Bugün hava çok güzel.", "uz": "Uzun sheʼr oʻqidi."}

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb builds the test's packages")


@pytest.fixture
def sentences(tmp_path, monkeypatch):
    """Short lists instead of the published ones, and an empty cache."""
    monkeypatch.setattr(espeak, "SENTENCES", tmp_path)
    monkeypatch.setenv("PADSINK_HOME", str(tmp_path / "home"))
    for language, words in WORDS.items():
        (tmp_path / f"{language}.txt").write_text(f"{words}\n\n{words}\n", encoding="utf-8")


def write_espeak(path: Path, folder: Path, script: str = "") -> None:
    """A program that logs its arguments, environment and text, and says one second of tone at 22.05 kHz."""
    tone = np.sin(np.arange(22050) / 20) / 2
    soundfile.write(folder / "tone.wav", tone, 22050)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"""#!/bin/sh
if [ "$1" = --version ]; then echo "eSpeak NG text-to-speech: 1.99  Data at: /x"; exit; fi
{script}
echo "$ESPEAK_DATA_PATH|$LD_LIBRARY_PATH|$*|$(cat)" >> {folder}/espeak.log
while [ "$1" != -w ]; do shift; done
cp {folder}/tone.wav "$2"
"""
    )
    path.chmod(0o755)


@pytest.fixture
def installed(sentences, tmp_path, monkeypatch):
    write_espeak(tmp_path / "bin/espeak-ng", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return tmp_path / "espeak.log"


@pytest.fixture
def not_installed(sentences, monkeypatch):
    which = shutil.which
    monkeypatch.setattr(espeak.shutil, "which", lambda name: None if name == "espeak-ng" else which(name))


# --- the sentences ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", WORDS)
def test_sentences_come_with_the_package(language):
    lines = espeak.read_sentences(language)
    assert len(lines) == len(set(lines)) == speech.SETS[f"espeak-{language}"].clips
    assert all(unicodedata.is_normalized("NFC", line) and line[-1] in ".?!" for line in lines)


def test_line_separator_inside_a_sentence_does_not_end_it(sentences, tmp_path):
    (tmp_path / "tr.txt").write_text("bir\u2028iki\n", encoding="utf-8")
    assert espeak.read_sentences("tr") == ["bir\u2028iki"]


# --- synthesis --------------------------------------------------------------------------------------------


def test_clips_are_16_khz_and_say_what_they_are(installed):
    _, clips = speech.resolve("espeak-tr")
    assert [clip.id for clip in clips] == ["tr-001", "tr-002"]
    clip = clips[0]
    assert (clip.text, clip.language, clip.duration) == (WORDS["tr"], "tr", 1.0)
    assert (clip.speaker, clip.source, clip.licence) == ("espeak-ng tr", "espeak-ng 1.99", espeak.LICENCE)
    assert all(clip.synthetic for clip in clips)
    info = soundfile.info(clip.audio)
    assert (info.format, info.samplerate, info.channels, info.frames) == ("FLAC", 16000, 1, 16000)


def test_tutuq_is_written_but_not_spoken(installed):
    _, clips = speech.resolve("espeak-uz")
    assert clips[0].text == "Uzun sheʼr oʻqidi."
    _, _, arguments, spoken = installed.read_text().splitlines()[0].split("|")
    assert spoken == "Uzun sher oʻqidi."
    assert arguments.startswith("-v uz -b 1 --stdin -w ")


def test_failure_names_the_command_and_leaves_no_set(installed, tmp_path):
    write_espeak(tmp_path / "bin/espeak-ng", tmp_path, "echo The voice does not exist. >&2; exit 1")
    with pytest.raises(HarnessError, match=r"espeak-ng -v tr .* failed: The voice does not exist"):
        speech.fetch("espeak-tr")
    assert not speech.is_cached("espeak-tr")


def test_success_without_audio_is_an_error_and_not_the_sentence_before(installed, tmp_path):
    once = f"if [ -e {tmp_path}/spoken ]; then exit; fi; touch {tmp_path}/spoken"
    write_espeak(tmp_path / "bin/espeak-ng", tmp_path, once)
    with pytest.raises(HarnessError, match=r"wrote no audio for 'Bugün hava çok güzel\.' in voice 'tr'"):
        speech.fetch("espeak-tr")


# --- without an installed espeak-ng -----------------------------------------------------------------------


def fake_apt(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put an apt-get first in the PATH; returns the file to which it logs its arguments."""
    program = folder / "bin/apt-get"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/apt.log\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return folder / "apt.log"


def build_debs(folder: Path, program: str = "usr/bin/espeak-ng") -> Path:
    """Packages laid out like Debian's: the documentation has a folder espeak-ng-data as well."""
    files = {"espeak-ng": [program], "libespeak-ng1": ["usr/lib/x/libespeak-ng.so.1"], "espeak-ng-data": []}
    files["espeak-ng-data"] = ["usr/lib/x/espeak-ng-data/phontab", "usr/share/doc/espeak-ng-data/copyright"]
    (folder / "mirror").mkdir()
    for package, names in files.items():
        tree = folder / "build" / package
        for name in ["DEBIAN/control", *names]:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).touch()
        (tree / "DEBIAN/control").write_text(
            f"Package: {package}\nVersion: 1.99\nArchitecture: all\nMaintainer: test\nDescription: test\n"
        )
        if package == "espeak-ng":
            write_espeak(tree / program, folder)
        deb = folder / "mirror" / f"{package}_1.99_all.deb"
        subprocess.run(["dpkg-deb", "-b", "--root-owner-group", tree, deb], check=True, capture_output=True)
    return folder / "mirror"


@needs_dpkg
def test_program_is_fetched_with_what_the_system_lacks(not_installed, tmp_path, monkeypatch):
    log = fake_apt(tmp_path, monkeypatch, f"cp {build_debs(tmp_path)}/*.deb cache/archives")
    assert len(speech.resolve("espeak-tr")[1]) == 2
    (command,) = log.read_text().splitlines()
    assert command.endswith("--no-install-recommends --download-only install espeak-ng")
    assert "Dir::State::status=/var/lib/dpkg/status" in command and "Dir::Cache=/" in command
    voices, libraries, *_ = (tmp_path / "espeak.log").read_text().splitlines()[0].split("|")
    assert Path(voices).parts[-3:] == ("usr", "lib", "x") and libraries.split(":")[0] == voices


@needs_dpkg
def test_private_package_lists_are_the_second_attempt(not_installed, tmp_path, monkeypatch):
    mirror = build_debs(tmp_path)
    script = f'case "$*" in -c*update) ;; -c*install*) cp {mirror}/*.deb cache/archives ;; *) exit 100 ;; esac'
    log = fake_apt(tmp_path, monkeypatch, script)
    assert len(speech.resolve("espeak-uz")[1]) == 2
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["espeak-ng", "update", "espeak-ng"]


@needs_dpkg
def test_failed_download_says_why_and_what_to_do(not_installed, tmp_path, monkeypatch):
    fake_apt(tmp_path, monkeypatch, "echo E: mirror is down >&2; exit 100")
    with pytest.raises(HarnessError) as caught:
        speech.fetch("espeak-tr")
    assert "espeak-ng is not installed and could not be fetched: updating" in caught.value.message
    assert "E: mirror is down" in caught.value.message
    assert caught.value.message.endswith("Or install espeak-ng with your package manager")


@needs_dpkg
def test_package_with_another_layout_is_refused(not_installed, tmp_path, monkeypatch):
    mirror = build_debs(tmp_path, program="opt/espeak-ng")
    fake_apt(tmp_path, monkeypatch, f"cp {mirror}/*.deb cache/archives")
    with pytest.raises(HarnessError, match="the package lacks usr/bin/espeak-ng or its voices"):
        speech.fetch("espeak-tr")


def test_system_without_apt_is_told_what_to_do(sentences, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match=r"would need apt-get and dpkg-deb, which this system lacks: install espeak"):
        speech.fetch("espeak-tr")


def test_real_voices_say_the_same_bytes_every_time(sentences, tmp_path):
    try:
        program = espeak.find_program(tmp_path)
    except HarnessError as error:
        pytest.skip(f"no espeak-ng and none to be had: {error.message}")
    assert program.version[0].isdigit()
    for language, words in WORDS.items():
        spoken = []
        for wav in (tmp_path / "a.wav", tmp_path / "b.wav"):
            program.speak(words.replace(espeak.TUTUQ, ""), language, wav)
            spoken.append(wav.read_bytes())
        assert spoken[0] == spoken[1]
        assert 1 < soundfile.info(tmp_path / "a.wav").duration < 4
    with pytest.raises(HarnessError, match=r"failed: .*voice does not exist"):
        program.speak("x", "xx", tmp_path / "a.wav")


# --- shown as synthetic -----------------------------------------------------------------------------------


def run(*arguments: str) -> str:
    return click.testing.CliRunner().invoke(main, ["speech", *arguments]).output


def test_synthetic_sets_are_shown_as_synthetic(installed):
    rows = {row["name"]: row for row in json.loads(run("list", "--json"))}
    assert [name for name, row in rows.items() if row["synthetic"]] == ["espeak-tr", "espeak-uz"]
    marked = [line.split()[0] for line in run("list").splitlines() if line.split()[-1] == "synthetic"]
    assert marked == ["espeak-tr", "espeak-uz"]
    assert "espeak-tr: 2 synthetic clips" in run("get", "espeak-tr")
    assert json.loads(run("get", "espeak-tr", "--json"))["synthetic"] is True


def test_version_of_a_package_is_read_from_its_file_name():
    assert debian.version(Path("espeak-ng_1%3a1.51+dfsg-10_amd64.deb")) == "1:1.51+dfsg-10"
