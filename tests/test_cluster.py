"""The sweep on a Dask cluster of two workers: same results, and nothing is lost with a process that dies."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import dask
import distributed
import native_tools as tools
import pytest
from click.testing import CliRunner
from test_runner import die_on_clip_2, hang_on_clip_2, task
from test_sweep import (
    Setting,
    busy_worker,
    interrupt_after_the_first_clip,
    summary_without_times,
    untimed,
    wait_for,
)

from pyharness import cluster, grid, native, runner, sweep
from pyharness.cli import main
from pyharness.errors import HarnessError

pytestmark = pytest.mark.xdist_group("cluster")  # one cluster


GRID = """
models = ["tiny.en"]
speech = ["{manifest}"]
[[arms]]
rule = "padsink-track"
budget = 96
"""


@pytest.fixture
def setting(tmp_path, tiny_en):
    """A manifest of four clips, and a grid of two arms."""
    clips = tools.clips("asterisk-en", 4)
    rows = [{"id": clip.id, "audio": str(clip.audio), "text": clip.text, "language": "en"} for clip in clips]
    setting = Setting(tmp_path, rows)
    setting.grid.write_text(GRID.format(manifest=setting.manifest))
    return setting


@contextlib.contextmanager
def local_cluster(n_workers: int):
    """Workers of one thread in processes of their own. One that dies is started again, however long that takes; a clip
    that takes two of them with it is given up."""
    settings = {"distributed.scheduler.allowed-failures": 1, "distributed.deploy.lost-worker-timeout": "1 hour"}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0") as started,
    ):
        yield started


@pytest.fixture(scope="module")
def dask_cluster():
    with local_cluster(2) as started:
        yield started


@pytest.fixture
def connected(dask_cluster):
    with cluster.Cluster(dask_cluster.scheduler_address) as connected:
        wait_for(lambda: connected.n_threads() == 2, 60)
        yield connected


def pids(connected) -> list[int]:
    """Of the Dask workers."""
    return list(connected._client.run(os.getpid).values())


def kill_dask_worker_on_clip_2(task):
    if task.clip.id == "clip2":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(5)
    return [{"id": task.clip.id}]


@pytest.mark.parametrize(
    ("work", "timeout", "error"),
    [
        (die_on_clip_2, 60, runner.DIED),
        (hang_on_clip_2, 3, "stopped after 3 s (--timeout)"),
        (kill_dask_worker_on_clip_2, 60, cluster.LOST),
    ],
)
def test_clips_that_kill_or_hang_lose_no_other_clip(connected, tmp_path, work, timeout, error):
    tasks = [task(i, timeout if i == 2 else 60, tmp_path) for i in range(1, 5)]
    rows = [row for rows in connected.run(tasks, 2, work) for row in rows]
    assert sorted(row["id"] for row in rows) == [f"clip{i}" for i in range(1, 5)]
    assert {row["id"]: row["error"] for row in rows if "error" in row} == {"clip2": error}


def test_a_run_ends_when_no_worker_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "WORKERLESS_S", 1)
    with local_cluster(1) as started, cluster.Cluster(started.scheduler_address) as connected:
        started.scale(0)
        wait_for(lambda: connected.n_threads() == 0, 60)
        with pytest.raises(HarnessError, match="no worker is left, for 1 s"):
            list(connected.run([task(1, 60, tmp_path)], 1, hang_on_clip_2))


def sweep_on(dask_cluster, setting) -> list[str]:
    """Arguments of the setting's sweep, on the cluster."""
    arguments = setting.arguments
    at = arguments.index("--jobs")
    return [*arguments[:at], *arguments[at + 2 :], "--scheduler", dask_cluster.scheduler_address]


def test_a_killed_dask_worker_costs_no_clip_and_changes_no_result(connected, setting):
    setting.write(setting.rows[:2])
    plan = sweep.make_plan(grid.load(setting.grid), None, print)
    workers = pids(connected)

    def kill_the_first_that_decodes():
        os.kill(wait_for(lambda: next((pid for pid in workers if busy_worker(pid)), None)), signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first_that_decodes)
    killer.start()
    summary = sweep.run(plan, setting.out, 2, str, print, run_tasks=connected.run)
    killer.join()
    assert {(row["n"], row["failed_clips"]) for row in summary} == {(2, 0)}
    rows, summary = sorted(untimed(setting.utterances()), key=str), summary_without_times(setting)
    assert set(pids(connected)) != set(workers)

    setting.out = setting.folder / "here"
    sweep.run(plan, setting.out, 1, str, print)
    assert sorted(untimed(setting.utterances()), key=str) == rows
    assert summary_without_times(setting) == summary


def test_ctrl_c_cancels_what_is_left_and_the_run_goes_on(dask_cluster, connected, setting):
    err = interrupt_after_the_first_clip(setting, sweep_on(dask_cluster, setting))
    assert f"--out {setting.out}" in err and "Traceback" not in err
    wait_for(lambda: not any(connected._client.processing().values()), 20)
    assert len(setting.utterances()) in (2, 4, 6)
    assert json.loads((setting.out / "run.json").read_text())["jobs"] == 2
    result = CliRunner().invoke(main, sweep_on(dask_cluster, setting))
    assert result.exit_code == 0, result.output
    assert len(setting.utterances()) == 8


def test_files_that_a_worker_lacks_are_named(connected, tiny_en, tmp_path):
    there = task(1, 60, tmp_path)
    rows = [row for rows in connected.run([there], 2) for row in rows]
    assert [str(tmp_path / "x.wav") in row["error"] for row in rows] == [True]
    recording = tools.clips("asterisk-en", 1)[0]
    rows = [row for rows in connected.run([dataclasses.replace(there, clip=recording)], 2) for row in rows]
    assert [row["error"] for row in rows] == [f"no model file at '{Path('model').absolute()}'"]


def test_a_relative_path_is_the_clients(connected, tmp_path, monkeypatch):
    """The worker's own folder is another one; the row shows the path as it was given."""
    shutil.copy(tools.JFK, tmp_path / "x.wav")
    monkeypatch.chdir(tmp_path)
    [[row]] = connected.run([task(1)], 2)
    assert "no model file" in row["error"] and row["audio_filepath"] == "x.wav"


def another_library(folder: Path) -> str:
    """A copy of the library that is a byte longer."""
    path = folder / "libwhisper.so"
    path.write_bytes(native.library_path().read_bytes() + b"\0")
    return str(path)


def test_workers_with_another_build_are_refused_before_the_run(dask_cluster, connected, setting, monkeypatch):
    monkeypatch.setenv("PADSINK_LIB", another_library(setting.folder))
    result = CliRunner().invoke(main, sweep_on(dask_cluster, setting))
    assert result.exit_code == 2 and "a run must not mix builds" in result.output
    assert not setting.out.exists()


def test_a_worker_that_joins_with_another_build_ends_the_run(connected, tmp_path, monkeypatch):
    """Its rows would be errors, and it would be quick about them."""
    monkeypatch.setattr(connected, "_build", "0" * 64)
    with pytest.raises(HarnessError, match="a run must not mix builds"):
        list(connected.run([task(i, 60, tmp_path) for i in range(3)], 2))


@pytest.mark.parametrize("command", ["sweep", "calibrate", "evaluate"])
def test_a_scheduler_that_cannot_be_reached_is_named_before_the_run(command, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_S", 1)
    (tmp_path / "profile.json").write_text("{}")
    needed = {
        "sweep": ["--out", "run"],
        "calibrate": ["--model", "tiny.en", "--speech", "asterisk-en", "--out", "new.json"],
        "evaluate": ["--speech", "asterisk-en", "--profile", "profile.json"],
    }
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    result = CliRunner().invoke(main, [command, *needed[command], "--scheduler", address])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert f"cannot reach the Dask scheduler '{address}': OSError: Timed out" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]


def test_addresses_of_something_else_are_refused(dask_cluster, connected):
    worker = next(iter(connected._client.nthreads()))
    for address in ("nonsense", worker, dask_cluster.workers[0].address):
        with pytest.raises(HarnessError, match=f"cannot reach the Dask scheduler '{address}'"):
            cluster.Cluster(address)


def test_a_cluster_without_workers_is_refused():
    with (
        local_cluster(0) as empty,
        pytest.raises(HarnessError, match="no worker there: start some with `dask worker"),
    ):
        cluster.Cluster(empty.scheduler_address)


def test_a_lost_scheduler_ends_the_run_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_S", 1)
    with local_cluster(1) as short_lived, cluster.Cluster(short_lived.scheduler_address) as connected:
        rows = connected.run([task(i, 3, tmp_path) for i in (1, 2)], 1, hang_on_clip_2)
        assert next(rows) == [{"id": "clip1", "audio_filepath": str(tmp_path / "x.wav")}]
        short_lived.close()
        with pytest.raises(HarnessError, match=r"the cluster failed: .*What is done is kept") as error:
            next(rows)
        assert "\n" not in error.value.message


def test_jobs_and_a_missing_package_are_told(setting, monkeypatch):
    result = setting.run("--scheduler", "tcp://127.0.0.1:1")
    assert result.exit_code == 2 and "--jobs" in result.output
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(HarnessError, match=r"pip install -e '\.\[cluster\]'"):
        cluster.Cluster("tcp://127.0.0.1:1")
