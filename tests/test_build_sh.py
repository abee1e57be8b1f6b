"""build.sh on a tiny tree in place of whisper.cpp: what it makes anew, what it keeps, what it refuses."""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from pyharness import paths

OLD = 1_577_836_800  # 2020: releases are older than what was compiled since

CMAKE = """cmake_minimum_required(VERSION 3.16)
project("whisper.cpp" VERSION 1.8.5)
add_executable(hello hello.cpp)
"""
HELLO = '#include <cstdio>\nint main() { puts("upstream"); }\n'
PATCH = """--- a/hello.cpp
+++ b/hello.cpp
@@ -2 +2 @@
-int main() { puts("upstream"); }
+int main() { puts("patched"); }
"""
ADD_NOTE = "--- /dev/null\n+++ b/note.txt\n@@ -0,0 +1 @@\n+hello\n"


class Clone:
    """A folder with build.sh, the tiny tree's sdist, and a patch; its functions run with the tests' own Python."""

    def __init__(self, root: Path):
        self.root = root
        self.tree = root / "whisper_cpp" / "src"
        self.tree.parent.mkdir(parents=True)
        (root / "patches").mkdir()
        shutil.copy(paths.REPOSITORY / "build.sh", root)
        (root / "patches" / "1.patch").write_text(PATCH)
        make_upstream(root / "upstream")
        sdist = self.tree.parent / "tiny-1.tar.gz"
        with tarfile.open(sdist, "w:gz") as tar:
            tar.add(root / "upstream", "tiny-1/tree")
        pin = {"package": "tiny", "version": "1", "tree": "tree", "whisper_cpp": "1.8.5"}
        pin["sha256"] = hashlib.sha256(sdist.read_bytes()).hexdigest()
        (self.tree.parent / "upstream.toml").write_text("".join(f'{key} = "{pin[key]}"\n' for key in pin))

    def run(self, script: str, **environment) -> subprocess.CompletedProcess:
        """The script after the functions of build.sh."""
        return subprocess.run(self.command(script), cwd=self.root, env=env(environment), capture_output=True, text=True)

    def command(self, script: str) -> list[str]:
        return ["bash", "-c", f"source ./build.sh; python='{sys.executable}'; {script}"]

    def prepare(self, **environment) -> subprocess.CompletedProcess:
        return self.run('prepare_tree "$root/whisper_cpp/src" "$root"/patches/*.patch', **environment)

    def compiled_says(self) -> str:
        """Prepare, compile and run, with the real cmake, ninja and compiler."""
        script = f'venv=\'{sys.prefix}\'; compile "$root/whisper_cpp/src" "$root/build" hello; build/hello'
        assert self.prepare().returncode == 0
        result = self.run(script)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()[-1]


def env(changes: dict) -> dict:
    unset = ("WHISPER_CPP_SRC", "PADSINK_CMAKE", "PYTHON")
    kept = {key: value for key, value in os.environ.items() if key not in unset}
    return {**kept, **{key: str(value) for key, value in changes.items()}}


def make_upstream(folder: Path):
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(CMAKE)
    (folder / "hello.cpp").write_text(HELLO)
    for file in folder.iterdir():
        os.utime(file, (OLD, OLD))


def is_one_line(text: str, *named: str) -> bool:
    return text.count("\n") == 1 and all(name in text for name in named)


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path / "a clone")


def build_sh(clone, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run(["./build.sh", *arguments], cwd=clone.root, capture_output=True, text=True)


@pytest.mark.parametrize("command", ["build", "stock", "clean", "bench"])
def test_help_behind_a_command_shows_the_usage_and_does_nothing(clone, command):
    (clone.root / "build").mkdir()
    before = sorted(clone.root.rglob("*"))
    for flag in ("--help", "-h"):
        result = build_sh(clone, command, flag)
        assert result.returncode == 0 and result.stdout.startswith("usage: ./build.sh")
    assert sorted(clone.root.rglob("*")) == before


def test_unknown_commands_and_arguments_are_refused(clone):
    for arguments in (["biuld"], ["build", "now"], ["clean", "all"], ["--portable", "biuld"], ["--fast"]):
        result = build_sh(clone, *arguments)
        assert result.returncode == 2
        assert is_one_line(result.stderr, f"'{arguments[-1]}'")


@pytest.mark.parametrize("command", ["sweep", "test", "clean"])
def test_commands_that_know_one_build_only_refuse_another(clone, command):
    result = build_sh(clone, "--portable", command)
    assert result.returncode == 2
    assert is_one_line(result.stderr, f"'{command}'", "--portable")


@pytest.mark.parametrize("name", [[], ["stock"], ["portable"], ["../elsewhere"], ["Mine"]])
def test_a_variant_must_have_a_name_of_its_own(clone, name):
    result = build_sh(clone, "--variant", *name)
    assert result.returncode == 2
    assert is_one_line(result.stderr, f"'{''.join(name)}'")


def test_what_is_no_option_of_cmake_is_refused(clone):
    result = clone.run("main build", PADSINK_CMAKE="-DGGML_OPENMP=OFF GGML_BLAS=ON")
    assert result.returncode == 2
    assert is_one_line(result.stderr, "PADSINK_CMAKE", "'GGML_BLAS=ON'")


@pytest.mark.parametrize(("command", "says"), [("sweep", "Usage: python -m pyharness sweep"), ("test", "usage:")])
def test_help_of_sweep_and_test_is_that_of_the_tool_and_builds_nothing(clone, command, says):
    script = f"setup_venv() {{ true; }}; build_ours() {{ die 'builds'; }}; main {command} --help"
    result = clone.run(script, PYTHONPATH=paths.REPOSITORY)
    assert result.returncode == 0, result.stderr
    assert says in result.stdout


def test_a_patch_that_went_away_goes_away_from_the_program(clone):
    assert clone.compiled_says() == "patched"
    (clone.root / "patches" / "1.patch").write_text(ADD_NOTE)
    assert clone.compiled_says() == "upstream"


def test_a_clone_that_was_moved_builds(clone):
    assert clone.compiled_says() == "patched"
    clone.root = clone.root.rename(clone.root.with_name("moved"))
    assert clone.compiled_says() == "patched"


@pytest.fixture
def builds(clone):
    """Runs a command of build.sh that builds the tiny tree."""
    (clone.root / "ggml-patch").mkdir()
    (clone.root / "patches").rename(clone.root / "ggml-patch" / "patches")

    def run(arguments, **environment):
        script = f"venv='{sys.prefix}'; setup_venv() {{ true; }}; programs=(hello); main {arguments}"
        result = clone.run(script, **environment)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_a_variant_is_built_beside_the_others_with_its_options(clone, builds):
    assert "build-mine/bin/whisper-cli" in builds("--variant mine", PADSINK_CMAKE="-DONE=1 -DTWO=2")
    assert (clone.root / "build-mine" / "hello").is_file()
    assert [file.name for file in (clone.root / "build").iterdir()] == ["logs"]
    cache = (clone.root / "build-mine" / "CMakeCache.txt").read_text()
    assert "ONE:UNINITIALIZED=1" in cache and "TWO:UNINITIALIZED=2" in cache


@pytest.mark.skipif(platform.machine() != "x86_64", reason="--portable is for x86-64")
def test_a_portable_build_is_for_the_least_machine_and_has_all_kernels(clone, builds):
    builds("--portable")
    cache = (clone.root / "build-portable" / "CMakeCache.txt").read_text()
    flags = re.findall(r"^CMAKE_(?:C|CXX)_FLAGS:\w+=(.*)", cache, re.M)
    assert len(flags) == 2 and all("-march=x86-64-v2" in some for some in flags)
    for option in ("GGML_NATIVE:UNINITIALIZED=OFF", "GGML_CPU_ALL_VARIANTS:UNINITIALIZED=ON"):
        assert option in cache


def test_clean_removes_what_was_built_and_nothing_else(clone):
    for folder in ("build", "build-mine", "build-notes"):
        (clone.root / folder).mkdir()
    (clone.root / "build-mine" / ".padsink").touch()
    assert build_sh(clone, "clean").returncode == 0
    assert [folder.name for folder in clone.root.glob("build*/")] == ["build-notes"]


def test_a_fresh_tree_is_new_and_a_further_patch_leaves_the_other_files_alone(clone):
    start = time.time() - 1
    assert clone.prepare().returncode == 0
    times = {file: file.stat().st_mtime for file in (clone.tree / "CMakeLists.txt", clone.tree / "hello.cpp")}
    assert min(times.values()) > start
    (clone.root / "patches" / "2.patch").write_text(ADD_NOTE)
    assert clone.prepare().returncode == 0
    assert (clone.tree / "note.txt").exists()
    assert {file: file.stat().st_mtime for file in times} == times


def test_a_given_tree_is_copied_and_its_edits_are_noticed(clone, tmp_path):
    given, link = tmp_path / "given", tmp_path / "link"
    make_upstream(given)
    (given / "build").mkdir()
    link.symlink_to(given)
    assert clone.prepare(WHISPER_CPP_SRC=link).returncode == 0
    assert "patched" in (clone.tree / "hello.cpp").read_text()
    assert (given / "hello.cpp").read_text() == HELLO
    assert not (clone.tree / "build").exists()

    assert "unpack" not in clone.prepare(WHISPER_CPP_SRC=link).stdout
    (given / "hello.cpp").write_text(HELLO + "// edited\n")
    assert "unpack" in clone.prepare(WHISPER_CPP_SRC=link).stdout
    assert "edited" in (clone.tree / "hello.cpp").read_text()


def test_a_given_tree_that_would_be_replaced_is_refused_and_kept(clone):
    make_upstream(clone.tree)
    shutil.copytree(clone.tree, clone.tree / "inside")
    shutil.copy(clone.tree / "CMakeLists.txt", clone.root)
    for given in (clone.tree, clone.tree / "inside", clone.root):
        result = clone.prepare(WHISPER_CPP_SRC=given)
        assert result.returncode == 2
        assert is_one_line(result.stderr, str(given), "overlaps")
    assert (clone.tree / "inside" / "hello.cpp").read_text() == HELLO


def test_a_given_tree_that_is_none_is_refused(clone, tmp_path):
    for given in (tmp_path, tmp_path / "missing"):
        result = clone.prepare(WHISPER_CPP_SRC=given)
        assert result.returncode == 2
        assert is_one_line(result.stderr, str(given))


def test_a_step_fails_with_any_of_its_commands_and_a_failed_tree_is_made_again(clone):
    result = clone.run("work() { echo reason; false; true; }; step work hint work; echo went on")
    assert result.returncode == 1
    assert "reason" in result.stderr and "hint" in result.stderr and "went on" not in result.stdout

    (clone.root / "patches" / "2.patch").write_text(PATCH)  # the same once more does not apply
    assert clone.prepare().returncode == 1
    (clone.root / "patches" / "2.patch").unlink()
    assert clone.prepare().returncode == 0
    assert "patched" in (clone.tree / "hello.cpp").read_text()


def test_the_venv_is_made_anew_where_it_was_cut_short_or_belongs_elsewhere(clone):
    python, rest = clone.root / ".venv" / "bin" / "python", clone.root / ".venv" / "rest"

    def make():
        offline = 'step() { echo "$1"; [[ $1 == "install packages" ]] || "${@:3}"; }'
        result = clone.run(f"python=$venv/bin/python; {offline}; setup_venv ''", PYTHON=sys.executable)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    rest.touch()
    project = clone.root / "pyproject.toml"
    project.touch()
    both = ["create venv", "install packages"]
    assert make() == both and not rest.exists()  # no stamp
    assert make() == []
    project.write_text("# changed")
    assert make() == ["install packages"]
    rest.touch()
    stamp = clone.root / ".venv" / ".padsink-python"
    stamp.write_text(stamp.read_text().replace("3.", "2.", 1))
    assert make() == both and not rest.exists()


def test_a_second_run_waits_for_the_first(clone):
    folder = os.open(clone.root, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    script = "run_build() { echo runs; }; main build"
    with subprocess.Popen(clone.command(script), cwd=clone.root, stdout=subprocess.PIPE, text=True) as process:
        assert "waiting" in process.stdout.readline()
        os.close(folder)
        assert process.stdout.read() == "runs\n"
