"""Sets from the hub: rows of a local parquet copy, a hub on a local port, and every way not to get them.

The real hub is not asked: what these tests assume of it is the layout CONFIG/SPLIT/*.parquet of its parquet
conversion and the fields of FLEURS and Common Voice.
"""

import dataclasses
import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import click.testing
import fake_hub
import numpy as np
import pytest
import soundfile

from pyharness import hub_speech, speech
from pyharness.cli import main
from pyharness.errors import HarnessError

datasets = pytest.importorskip("datasets", reason="package datasets is not installed: pip install 'padsink[hub]'")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keeps the lock files of ``datasets`` out of the home folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def recording(seconds: float, rate: int = 16000, kind: str = "WAV") -> bytes:
    out = io.BytesIO()
    soundfile.write(out, np.sin(np.arange(int(seconds * rate)) / 20) / 2, rate, format=kind)
    return out.getvalue()


def write_dataset(folder: Path, rows: list[dict], **fields: str) -> Path:
    """A parquet file as the hub's conversion writes it: ``audio`` holds encoded bytes and a file name."""
    features = datasets.Features(
        {"audio": datasets.Audio(sampling_rate=16000)} | {name: datasets.Value(kind) for name, kind in fields.items()}
    )
    table = datasets.table.pa.Table.from_pylist(rows, schema=features.arrow_schema)
    folder.mkdir(parents=True)
    parquet.write_table(table, folder / "0000.parquet")
    return folder


def fleurs_row(number: int, text: str | None, content: bytes | None, name: str | None = None) -> dict:
    audio = {"bytes": content, "path": name or f"{number}.wav"}
    return {"id": 7, "path": f"/gone/{number}.wav", "audio": audio, "raw_transcription": text, "num_samples": 1}


FLEURS_FIELDS = {"id": "int32", "path": "string", "raw_transcription": "string", "num_samples": "int32"}


def write_fleurs(root: Path, rows: list[dict], split: str = "test", config: str = "tr_tr") -> Path:
    write_dataset(root / config / split, rows, **FLEURS_FIELDS)
    return root


def local(root: Path, **changes) -> hub_speech.HubSource:
    return dataclasses.replace(hub_speech.fleurs("tr"), path=str(root), **changes)


def fetch(source: hub_speech.HubSource, folder: Path) -> tuple[list[dict], dict[str, int]]:
    folder.mkdir(exist_ok=True)
    return source.fetch(folder)


# --- rows -> clips ----------------------------------------------------------------------------------------


def test_fleurs_clip_keeps_the_raw_text_and_names_the_recording_not_the_sentence(tmp_path):
    rows = [fleurs_row(number, f" Cümle {number}, İyi. ", recording(1.5)) for number in (100, 200)]
    found, counts = fetch(local(write_fleurs(tmp_path / "data", rows)), tmp_path / "out")
    assert found[0] == {
        "id": "100",
        "audio": tmp_path / "out/100.flac",
        "text": "Cümle 100, İyi.",
        "language": "tr",
        "duration": 1.5,
        "speaker": "",
        "recording": "id 7",  # several people read each sentence
        "source": f"{tmp_path / 'data'} tr_tr test local",
        "licence": "CC-BY-4.0",
        "synthetic": False,
    }
    assert [row["id"] for row in found] == ["100", "200"] and counts["kept"] == 2
    info = soundfile.info(tmp_path / "out/100.flac")
    assert (info.samplerate, info.channels, info.subtype, info.frames) == (16000, 1, "PCM_16", 24000)


def test_common_voice_clip_is_decoded_from_mp3_and_has_its_speaker(tmp_path):
    audio = {"bytes": recording(2, rate=48000, kind="MP3"), "path": "common_voice_uz_1.mp3"}
    row = {"client_id": "abc", "audio": audio, "sentence": "Salom."}
    write_dataset(tmp_path / "data/uz/test", [row], client_id="string", sentence="string")
    source = dataclasses.replace(hub_speech.common_voice("uz"), path=str(tmp_path / "data"))
    (found,), _ = fetch(source, tmp_path / "out")
    assert (found["id"], found["speaker"], found["text"]) == ("common_voice_uz_1", "abc", "Salom.")
    samples, rate = soundfile.read(found["audio"])
    assert rate == 16000 and len(samples) / rate == pytest.approx(2, abs=0.1) and np.abs(samples).max() > 0.3


def test_unusable_rows_are_dropped_and_counted(tmp_path):
    rows = [
        fleurs_row(1, "", recording(1)),
        fleurs_row(2, None, recording(1)),
        fleurs_row(3, "bozuk", b"not audio"),
        fleurs_row(4, "yok", None),
        fleurs_row(5, "kısa", recording(0.2)),
        fleurs_row(6, "uzun", recording(30.5)),
        fleurs_row(7, "iyi", recording(0.3)),
    ]
    found, counts = fetch(local(write_fleurs(tmp_path / "data", rows)), tmp_path / "out")
    assert [row["text"] for row in found] == ["iyi"]
    assert counts == {"kept": 1, "no_text": 2, "no_audio": 2, "too_short": 1, "too_long": 1}
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["7.flac"]


def test_limit_counts_kept_clips(tmp_path):
    rows = [fleurs_row(number, "" if number == 1 else "x", recording(0.5)) for number in range(6)]
    found, counts = fetch(local(write_fleurs(tmp_path / "data", rows), limit=3), tmp_path / "out")
    assert [row["id"] for row in found] == ["0", "2", "3"] and counts["no_text"] == 1


def test_file_names_from_outside_stay_in_the_folder_and_unique(tmp_path):
    names = ["a/b.wav", "../b.wav", "..", "c d\n.wav"]
    rows = [fleurs_row(number, "x", recording(0.5), name) for number, name in enumerate(names)]
    found, _ = fetch(local(write_fleurs(tmp_path / "data", rows)), tmp_path / "out")
    assert [row["id"] for row in found] == ["b", "b-2", "__", "c_d_"]
    assert all(row["audio"].parent == tmp_path / "out" and row["audio"].is_file() for row in found)


def test_conversion_of_a_part_of_a_split_is_read_too(tmp_path):
    root = write_fleurs(tmp_path / "data", [fleurs_row(1, "x", recording(1))], split="partial-test")
    write_fleurs(tmp_path / "data", [fleurs_row(2, "y", recording(1))], split="train")
    assert [row["id"] for row in fetch(local(root), tmp_path / "out")[0]] == ["1"]


def test_set_of_unusable_rows_is_an_error(tmp_path):
    root = write_fleurs(tmp_path / "data", [fleurs_row(1, "x", b"")])
    with pytest.raises(HarnessError, match=r"'tr_tr', split 'test': none of its 1 clips can be used.*no_audio"):
        fetch(local(root), tmp_path / "out")


def test_fetched_set_has_manifest_filters_and_a_line_in_the_list(tmp_path, monkeypatch):
    monkeypatch.setenv("PADSINK_HOME", str(tmp_path / "home"))
    root = write_fleurs(tmp_path / "data", [fleurs_row(1, "x", recording(6)), fleurs_row(2, "", recording(1))])
    item = dataclasses.replace(speech.SETS["fleurs-tr"], source=local(root))
    monkeypatch.setattr(speech, "SETS", {"fleurs-tr": item})

    def run(*arguments: str) -> str:
        return click.testing.CliRunner().invoke(main, ["speech", *arguments]).output

    assert run("list").splitlines()[-1].split() == ["fleurs-tr", "tr", "-", "-", "CC-BY-4.0", "no"]
    assert json.loads(run("list", "--json"))[0]["clips"] is None
    assert json.loads(run("get", "fleurs-tr", "--json"))["filters"]["no_text"] == 1
    assert run("list").splitlines()[-1].split() == ["fleurs-tr", "tr", "1", "0.1", "CC-BY-4.0", "yes"]
    assert speech.resolve("fleurs-tr")[1][0].duration == 6


# --- failures ---------------------------------------------------------------------------------------------


def test_missing_package_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(HarnessError, match=r"needs the package datasets .*pip install 'padsink\[hub\]'"):
        fetch(hub_speech.fleurs("tr"), tmp_path)


def test_missing_field_is_named_with_those_that_exist(tmp_path):
    root = write_fleurs(tmp_path / "data", [fleurs_row(1, "x", recording(1))])
    with pytest.raises(HarnessError, match=r"lacks the field sentence and client_id \(it has audio, id, path, raw"):
        fetch(local(root, text_field="sentence", speaker_field="client_id"), tmp_path / "out")


def test_damaged_file_is_two_lines(tmp_path):
    root = write_fleurs(tmp_path / "data", [fleurs_row(1, "x", recording(1))])
    (root / "tr_tr/test/0000.parquet").write_bytes(b"PAR1 damaged PAR1")
    with pytest.raises(HarnessError) as caught:
        fetch(local(root), tmp_path / "out")
    assert caught.value.message.startswith(f"cannot get dataset '{root}', config 'tr_tr', split 'test': ")
    assert caught.value.message.count("\n") == 1


def get(name: str, endpoint: str, home: Path, **variables: str) -> tuple[int, str, float]:
    """Exit code, output and seconds of ``speech get``; in a process, as the hub's address is read at import."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home / "hf"), "PADSINK_HOME": str(home)}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "0", **variables}
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-m", "pyharness", "speech", "get", name],
        env=environment, capture_output=True, text=True, timeout=60, cwd=speech.paths.REPOSITORY,
    )  # fmt: skip
    return result.returncode, result.stdout + result.stderr, time.monotonic() - start


def assert_two_lines(code: int, output: str, reason: str, advice: str) -> None:
    lines = output.splitlines()
    assert code == 2 and len(lines) == 2, output
    assert lines[0].startswith("Error: cannot get dataset '") and reason in lines[0]
    assert advice in lines[1] and "manifest of your own" in lines[1]


def test_hub_is_read_at_the_commit_that_the_manifest_names(tmp_path):
    rows = [fleurs_row(number, "Günaydın.", recording(1)) for number in range(3)]
    with fake_hub.serve("google/fleurs", write_fleurs(tmp_path / "data", rows)) as endpoint:
        code, output, _ = get("fleurs-tr", endpoint, tmp_path)
    assert code == 0 and output.startswith("fleurs-tr: 3 clips, 0.1 min"), output
    clips = speech.read_manifest(tmp_path / "speech/fleurs-tr/manifest.jsonl")
    assert {clip.source for clip in clips} == {f"google/fleurs tr_tr test {fake_hub.COMMIT}"}
    assert {clip.text for clip in clips} == {"Günaydın."}


def test_config_that_the_hub_lacks(tmp_path):
    root = write_fleurs(tmp_path / "data", [fleurs_row(1, "x", recording(1))])
    with fake_hub.serve("google/fleurs", root) as endpoint:
        code, output, _ = get("fleurs-uz", endpoint, tmp_path)
    assert_two_lines(
        code, output, "config 'uz_uz', split 'test': it has no such config or split", "Look up the configs"
    )


def test_gated_dataset_says_how_to_log_in(tmp_path):
    gated = (403, "GatedRepo")
    with fake_hub.serve("mozilla-foundation/common_voice_17_0", tmp_path, gated) as endpoint:
        code, output, _ = get("common-voice-uz", endpoint, tmp_path)
    assert_two_lines(code, output, "config 'uz', split 'test': it is gated", "log in with `hf auth login`")
    assert "datacollective.mozillafoundation.org" in output


def test_dataset_that_the_hub_does_not_show(tmp_path):
    with fake_hub.serve("somebody/else", tmp_path) as endpoint:
        code, output, _ = get("fleurs-en", endpoint, tmp_path)
    assert_two_lines(code, output, "the hub has no such dataset, or shows it only", "log in with `hf auth login`")


@pytest.mark.parametrize("offline", ["0", "1"])
def test_unreachable_hub_is_noticed_at_once(tmp_path, offline):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        code, output, seconds = get("fleurs-ru", endpoint, tmp_path, HF_HUB_OFFLINE=offline)
    assert_two_lines(code, output, "config 'ru_ru', split 'test': the hub cannot be reached (", "Check the network")
    assert seconds < 20
    assert list((tmp_path / "speech").iterdir()) == []


# --- names ------------------------------------------------------------------------------------------------


def test_common_voice_has_a_set_for_every_language_code():
    item = speech.find("common-voice-zh-CN")
    assert (item.name, item.language, item.source.config) == ("common-voice-zh-CN", "zh", "zh-CN")
    assert not item.synthetic and not speech.strip_diacritics("common-voice-es")


@pytest.mark.parametrize(
    "name", ["common-voice-XX", "common-voice-", "common-voice-../x", "common-voice-uz/", "fleurs"]
)
def test_other_names_are_unknown(name):
    with pytest.raises(HarnessError, match="unknown speech"):
        speech.fetch(name)


def test_fetched_common_voice_set_is_listed(tmp_path, monkeypatch):
    monkeypatch.setenv("PADSINK_HOME", str(tmp_path))
    assert "common-voice-uz" not in [item.name for item in speech.listed()]
    (tmp_path / "speech/common-voice-uz").mkdir(parents=True)
    assert "common-voice-uz" not in [item.name for item in speech.listed()], "a half set is no set"
    (tmp_path / "speech/common-voice-uz/manifest.jsonl").touch()
    assert speech.listed()[-1].name == "common-voice-uz"
