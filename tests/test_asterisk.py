"""The Debian prompts: which lines may serve as references, and getting packages without root."""

import gzip
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

from pyharness import asterisk, speech
from pyharness.errors import HarnessError

ENGLISH = asterisk.SOURCES["en"]
PACKAGES = [ENGLISH.package, f"{ENGLISH.package}-g722"]

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb builds the test's packages")


def write_g722(path: Path, seconds: float, pitch: float = 300) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = np.sin(2 * np.pi * pitch * np.arange(int(seconds * 16000)) / 16000)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("g722", rate=16000)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray((wave * 9000).astype(np.int16)[None], format="s16", layout="mono")
        frame.rate = 16000
        resampler = av.AudioResampler("s16", "mono", 16000, frame_size=stream.frame_size or None)
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            out.mux(stream.encode(part))


def write_tree(root: Path, transcripts: str | bytes, recordings: dict[str, float]) -> Path:
    """Unpacked packages of the English voice; recordings: key -> seconds."""
    data = transcripts.encode() if isinstance(transcripts, str) else transcripts
    text = root / "usr/share/doc" / ENGLISH.package / "core-sounds-en.txt.gz"
    text.parent.mkdir(parents=True)
    text.write_bytes(gzip.compress(data))
    voice = root / "usr/share/asterisk/sounds" / ENGLISH.voice
    voice.mkdir(parents=True)
    for number, (key, seconds) in enumerate(recordings.items()):
        write_g722(voice / f"{key}.g722", seconds, pitch=200 + 10 * number)
    return root


# --- filters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "key", "text", "reason"),
    [
        ("fr", "dir-welcome", "", "no_text"),
        ("it", "beep", "un suono beep", "not_speech"),
        ("it", "beeperr", "un suono beep di errore", "not_speech"),
        ("it", "confbridge-join", "un suono di beep ascendente", "not_speech"),
        ("it", "confbridge-leave", "un suono di beep discendente", "not_speech"),
        ("en", "ascending-2tone", "[ascending tones]", "not_speech"),
        ("en", "descending-2tone", "[descending tones]", "not_speech"),
        ("es", "tt-monkeys", "[ grabacion de monos gritando ]", "not_speech"),
        ("it", "silence/1", "(1 secondo di silenzio)", "not_speech"),
        ("en", "letters/w", "w", "letter"),
        ("it", "letters/O", "O", "letter"),
        ("ru", "letters/w", "дабл-в", "letter"),
        ("en", "letters/zed", "zed", "letter"),
        ("es", "spy-misdn", "M I S D N", "acronym"),
        ("fr", "spy-iax2", '"eeks"', "acronym"),
        ("it", "x", "La chiamata non pu? essere completata", "lost_letter"),
        ("it", "conf-full", "La conferenza ? piena.", "lost_letter"),
        ("it", "x", "pi?tardi", "lost_letter"),
        ("it", "x", "pi\ufffd", "lost_letter"),
        ("en", "letters/at", "at [@]", "brackets"),
        ("it", "invalid", "Spiacente, [quello] non è un interno valido.", "brackets"),
        ("fr", "for", "Pour (emphase)", "brackets"),
        ("en", "x", "<beep ascending>", "brackets"),
        ("it", "x", "è stato eliminato vm-then-pound: poi premere", "merged_lines"),
        ("ru", "conf-adminmenu", "conf-adminmenu: Нажмите", "merged_lines"),
        ("fr", "x", "appuyez sur dièse.vm-review-nonurgent: Pour enlever", "merged_lines"),
        ("en", "x", "8500", "only_digits"),
        ("en", "x", "1, 2.", "only_digits"),
        ("en", "vm-Cust1", "folder 5", "digits"),
        ("en", "x", "press * to toggle pause, press # to exit", "signs"),
        ("it", "x", "attivare/disattivare la riproduzione", "signs"),
        ("en", "x", "For more information, visit www.asterisk.org.", "signs"),
        ("ru", "vm-first", "первoe", "mixed_script"),
        ("it", "is", "Is.", "mistake"),
        ("it", "vm-then-pound", "quindi premere sterlina", "mistake"),
        ("fr", "digits/h-80", "soixante-dixième", "mistake"),
    ],
)
def test_text_that_cannot_be_a_reference_is_dropped(language, key, text, reason):
    assert asterisk.text_problem(asterisk.Prompt(language, key, text)) == reason


@pytest.mark.parametrize(
    ("language", "key", "text"),
    [
        ("en", "dictate/pause", "pause"),
        ("en", "followme/sorry", "I'm sorry, but I was unable to locate the person"),
        ("en", "digits/1", "one"),
        ("en", "phonetic/a_p", "alpha"),
        ("en", "letters/ascii123", "left brace"),
        ("en", "vm-login", "Comedian Mail. Mailbox?"),
        ("en", "is", "Is."),
        ("it", "is-in-use", "E' in uso."),
        ("fr", "seconds", "secondes"),
        ("fr", "digits/h-70", "soixante-dixième"),
        ("fr", "x", "Quel dossier? Écoutez."),
        ("es", "vm-savefolder", "En que carpeta desea guardar el mensaje ?"),
        ("fr", "conf-enteringno", "Vous entrez dans la conférence:"),
        ("fr", "vm-rec-busy", "Après le bip sonore, enregistrez"),
        ("it", "vm-and", "e"),
        ("ru", "x", "Используйте клавишу «Q», ай-пи"),
        ("it", "digits/oclock", "in punto"),
        ("en", "spy-local", "Local"),
    ],
)
def test_spoken_text_is_kept(language, key, text):
    assert asterisk.text_problem(asterisk.Prompt(language, key, text)) is None


def test_key_with_two_texts_is_dropped_but_a_repeated_line_is_not():
    keys_and_texts = [("digits/0", "cero"), ("digits/0", "diez"), ("a", "once"), ("a", "once")]
    prompts = [asterisk.Prompt("es", key, text) for key, text in keys_and_texts]
    kept, counts = asterisk.filter_texts(prompts)
    assert [prompt.text for prompt in kept] == ["once", "once"] and counts == {"two_texts": 2}


@pytest.mark.parametrize(
    ("seconds", "text", "reason"),
    [
        (0, "hello", "no_audio"),
        (0.29, "a", "too_short"),
        (0.3, "a", None),
        (30, "hello", None),
        (30.01, "hello", "too_long"),
        (2, "x" * 37, None),
        (2, "x" * 38, "half_spoken"),
        (2, "x" * 37 + " ..., !", None),
    ],
)
def test_recording_that_does_not_fit_its_text_is_dropped(tmp_path, seconds, text, reason):
    (tmp_path / "a").touch()
    samples = np.zeros(round(seconds * 16000), np.float32)
    prompt = asterisk.Prompt("en", "a", text)
    assert asterisk.audio_problem(prompt, tmp_path / "a", samples, set()) == reason


def test_only_the_same_text_with_the_same_recording_is_a_duplicate(tmp_path):
    seen = set()

    def problem(text: str, content: str) -> str | None:
        (tmp_path / "a").write_text(content)
        samples = np.zeros(16000, np.float32)
        return asterisk.audio_problem(asterisk.Prompt("en", "a", text), tmp_path / "a", samples, seen)

    assert problem("minutes", "take 1") is None
    assert problem("minutes", "take 2") is None
    assert problem("minute", "take 1") is None
    assert problem("minutes", "take 1") == "duplicate"


# --- unpacked packages -> clips ---------------------------------------------------------------------------


def test_transcripts_are_parsed_in_any_encoding_state(tmp_path):
    content = b"\xef\xbb\xbf; comment\n\na-b: one:  two \nis:\nlatin: caf\xe9\nc:no blank\n"
    path = write_tree(tmp_path, content, {}) / "usr/share/doc" / ENGLISH.package / "core-sounds-en.txt.gz"
    parsed = [(prompt.key, prompt.text) for prompt in asterisk.parse(path, "en")]
    assert parsed == [("a-b", "one: two"), ("is", ""), ("latin", "caf\ufffd"), ("c", "no blank")]


def test_kept_prompts_become_flac_and_every_other_is_counted(tmp_path):
    transcripts = (
        "hello: Hello.\ndictate/pause: pause\ngone: Gone.\nshort: a\nhasty: These words are not all there.\n"
        "menu: Press 1.\nmenu2: Press 2.\nempty: Is.\nhello: Hello.\n"
    )
    recordings = {"hello": 1.0, "dictate/pause": 0.8, "short": 0.1, "hasty": 1.0, "menu": 1.0}
    root = write_tree(tmp_path / "root", transcripts, recordings)
    (root / "usr/share/asterisk/sounds" / ENGLISH.voice / "empty.g722").touch()
    rows, counts = ENGLISH.convert(root, tmp_path)
    assert [row["id"] for row in rows] == ["hello", "dictate/pause"]
    assert rows[1] == {
        "id": "dictate/pause",
        "audio": tmp_path / "dictate/pause.flac",
        "text": "pause",
        "language": "en",
        "duration": pytest.approx(0.8, abs=0.001),
        "speaker": "en_US_f_Allison",
        "source": "Debian asterisk-core-sounds-en 1.6.1-1",
        "licence": "CC-BY-SA-3.0",
        "synthetic": False,
    }
    dropped = {"no_audio": 2, "too_short": 1, "half_spoken": 1, "digits": 2, "duplicate": 1}
    assert {name: n for name, n in counts.items() if n} == {"kept": 2, **dropped}
    assert list(counts) == ["kept", *asterisk.FILTERS]
    info = soundfile.info(tmp_path / "dictate/pause.flac")
    assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16")
    assert info.frames / 16000 == pytest.approx(rows[1]["duration"], abs=0.001)
    assert [speech.Clip(**row).text for row in rows] == ["Hello.", "pause"]


def test_packages_with_another_layout_are_named(tmp_path):
    with pytest.raises(HarnessError, match=r"asterisk-core-sounds-en 1\.7 lacks"):
        ENGLISH.convert(tmp_path, tmp_path, "1.7")


# --- packages ---------------------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A folder with small .deb files, an apt-get that serves them, and their sums as the pinned ones."""
    tree = write_tree(tmp_path / "tree", "hello: Hello.\n", {"hello": 1.0})
    (tmp_path / "mirror").mkdir()
    for package, part in zip(PACKAGES, ("usr/share/doc", "usr/share/asterisk"), strict=True):
        deb = build_deb(tmp_path, package, tree / part, part)
        monkeypatch.setitem(asterisk.SHA256, package, hashlib.sha256(deb.read_bytes()).hexdigest())
    monkeypatch.setenv("PADSINK_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(asterisk.ALLOW_OTHER, raising=False)
    return tmp_path / "mirror"


def build_deb(folder: Path, package: str, content: Path, where: str) -> Path:
    tree = folder / "build" / package
    shutil.copytree(content, tree / where)
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN/control").write_text(
        f"Package: {package}\nVersion: 1.6.1-1\nArchitecture: all\nMaintainer: test\nDescription: test\n"
    )
    deb = folder / "mirror" / f"{package}_1.6.1-1_all.deb"
    subprocess.run(["dpkg-deb", "-b", "--root-owner-group", tree, deb], check=True, capture_output=True)
    return deb


def fake_apt(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Put an apt-get first in the PATH; returns the file to which it logs its arguments."""
    program = folder / "bin/apt-get"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/apt.log\n{script}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    return folder / "apt.log"


@needs_dpkg
def test_set_is_fetched_through_the_systems_package_lists(mirror, tmp_path, monkeypatch):
    log = fake_apt(tmp_path, monkeypatch, f"cp {mirror}/*.deb .")
    name, clips = speech.resolve("asterisk-en")
    assert name == "asterisk-en" and [clip.text for clip in clips] == ["Hello."]
    assert soundfile.info(clips[0].audio).frames == pytest.approx(16000, abs=2)
    assert len(log.read_text().splitlines()) == 1


@needs_dpkg
def test_private_package_lists_are_the_second_attempt(mirror, tmp_path, monkeypatch):
    with_private_lists = f"-c*update) cp apt.conf {tmp_path} ;; -c*download*) cp {mirror}/*.deb . ;;"
    script = f'case "$*" in {with_private_lists} *) exit 100 ;; esac'
    log = fake_apt(tmp_path, monkeypatch, script)
    assert len(speech.resolve("asterisk-en")[1]) == 1
    assert [line.split()[-1] for line in log.read_text().splitlines()] == [PACKAGES[1], "update", PACKAGES[1]]
    configuration = (tmp_path / "apt.conf").read_text()
    for setting in ("Dir::State ", "Dir::State::Lists ", "Dir::State::status ", "Dir::Cache "):
        assert f'{setting}"/' in configuration
    assert '"/var' not in configuration


@needs_dpkg
def test_failed_steps_say_which_and_why(mirror, tmp_path, monkeypatch):
    reasons = "*update) echo E: mirror is down >&2 ;; *) echo E: no such package >&2 ;;"
    script = f'case "$*" in {reasons} esac; exit 100'
    fake_apt(tmp_path, monkeypatch, script)
    with pytest.raises(HarnessError) as caught:
        speech.fetch("asterisk-en")
    message = caught.value.message
    assert "updating the private package lists failed: E: mirror is down" in message
    assert f"downloading {' '.join(PACKAGES)} failed: E: no such package" in message
    assert "Check the network" in message
    assert not speech.is_cached("asterisk-en")


@needs_dpkg
def test_other_recordings_are_refused_unless_allowed(mirror, tmp_path, monkeypatch, capsys):
    fake_apt(tmp_path, monkeypatch, f"cp {mirror}/*.deb .")
    monkeypatch.setitem(asterisk.SHA256, PACKAGES[1], "0" * 64)
    with pytest.raises(HarnessError, match=r"sounds-en-g722 1\.6\.1-1 is not.*PADSINK_ALLOW_OTHER_SPEECH=1"):
        speech.fetch("asterisk-en")
    monkeypatch.setenv(asterisk.ALLOW_OTHER, "1")
    speech.fetch("asterisk-en")
    assert "your numbers may differ" in capsys.readouterr().err


@needs_dpkg
def test_damaged_package_names_the_step(mirror, tmp_path, monkeypatch):
    for deb in mirror.iterdir():
        deb.write_bytes(b"not a package")
    fake_apt(tmp_path, monkeypatch, f"cp {mirror}/*.deb .")
    monkeypatch.setenv(asterisk.ALLOW_OTHER, "1")
    with pytest.raises(HarnessError, match=r"unpacking asterisk-core-sounds-en_1\.6\.1-1_all\.deb failed: dpkg-deb"):
        speech.fetch("asterisk-en")


def test_success_without_a_file_is_an_error(tmp_path, monkeypatch):
    fake_apt(tmp_path, monkeypatch, "exit 0")
    monkeypatch.setattr(asterisk, "_require_tools", lambda: None)
    with pytest.raises(HarnessError, match="left no file asterisk-core-sounds-en_"):
        asterisk.download(PACKAGES, tmp_path)


def test_system_without_apt_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PADSINK_HOME", str(tmp_path / "home"))
    with pytest.raises(HarnessError, match=r"need apt-get and dpkg-deb, which this system lacks.*own manifest"):
        speech.fetch("asterisk-en")


def test_every_language_is_registered_with_its_pinned_packages():
    names = [f"asterisk-{language}" for language in asterisk.SOURCES]
    assert list(speech.SETS)[: len(names)] == names
    packages = {source.package for source in asterisk.SOURCES.values()}
    assert set(asterisk.SHA256) == packages | {f"{package}-g722" for package in packages}
