"""The work of runner.py on a Dask cluster: same tasks, same rows.

A Dask worker does not decode: it runs each clip in a child process, so that one that crashes or hangs costs no Dask
worker, and nothing stays loaded that a later run could take for its own. If a Dask worker dies, the scheduler gives its
clip to another one, as often as its setting ``distributed.scheduler.allowed-failures`` says.
"""

import asyncio
import dataclasses
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator

from pyharness import native, runner
from pyharness.errors import HarnessError
from pyharness.runner import Task

CONNECT_S = 6  # a scheduler that takes longer cannot be reached
WORKERLESS_S = 60  # a worker that died may be started again
LOST = "the Dask workers died while decoding this clip, one after the other"


class Cluster:
    """A connection to the scheduler at ``address``. HarnessError if it cannot be reached, or if its workers are not
    fit for a run: none, without pyharness, or with another build of the library."""

    def __init__(self, address: str):
        try:
            import distributed
        except ImportError as error:
            raise HarnessError(
                f"--scheduler needs Dask: in padsink's folder, .venv/bin/pip install -e '.[cluster]' ({error})"
            ) from error
        self._distributed = distributed
        self._build = native.build_sha256()
        try:  # before the client, which gives up late
            asyncio.run(asyncio.wait_for(_ask(distributed.rpc(address, timeout=CONNECT_S)), CONNECT_S + 1))
        except Exception as error:  # whatever answers there
            raise HarnessError(f"cannot reach the Dask scheduler '{address}': {_reason(error)}") from error
        self._client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        answers = self._client.run(_check_build, self._build, on_error="return")
        unfit = [f"worker {worker}: {_reason(error)}" for worker, error in answers.items() if error]
        if unfit or not answers:
            self._client.close()
            none = f"no worker there: start some with `dask worker {address} --nthreads 1`"
            raise HarnessError(f"Dask scheduler '{address}': {unfit[0] if unfit else none}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.close()

    def n_threads(self) -> int:
        """Of all workers: how many clips are decoded at a time."""
        return sum(self._client.nthreads().values())

    def run(self, tasks: list[Task], jobs: int, work: Callable = runner.run_task) -> Iterator[list[dict]]:
        """Rows of each task as it ends, like ``runner.run``; ``jobs`` at a time, more if workers join.

        HarnessError if the scheduler is lost, if all workers are for WORKERLESS_S, or if one with another build joins.
        """
        queue, given = deque(tasks), {}
        ended = self._distributed.as_completed(loop=self._client.loop)
        try:
            while queue or given:
                # no more than there are threads: a worker that dies is held against every clip that waits for it
                for _ in range(min(len(queue), max(jobs, self.n_threads()) - len(given))):
                    task = queue.popleft()
                    future = self._client.submit(_decode, _absolute(task), work, self._build, pure=False)
                    given[future] = task
                    ended.add(future)
                self._wait(ended)
                future = next(ended)
                task = given.pop(future)
                try:
                    yield [row | {"audio_filepath": str(task.clip.audio)} for row in future.result()]
                except self._distributed.scheduler.KilledWorker:
                    yield runner.error_rows(task, LOST)
        except HarnessError:
            raise
        except Exception as error:  # of the cluster: those of a clip are rows
            raise HarnessError(f"the cluster failed: {_reason(error)}. What is done is kept") from error
        finally:  # Ctrl-C, or the caller gave up: what a worker has begun ends there, unheard
            if self._client.status == "running":
                self._client.cancel(list(given))

    def _wait(self, ended) -> None:
        """Until a task has ended. HarnessError if there is no worker for WORKERLESS_S."""
        seen = time.monotonic()
        while not ended.has_ready():
            time.sleep(0.1)
            if self._client.status != "running":
                return  # what is asked next says why
            if self.n_threads():
                seen = time.monotonic()
            elif time.monotonic() - seen > WORKERLESS_S:
                raise HarnessError(f"no worker is left, for {WORKERLESS_S:g} s. What is done is kept")


async def _ask(rpc) -> None:
    async with rpc as scheduler:
        kind = (await scheduler.identity())["type"]
    if kind != "Scheduler":
        raise HarnessError(f"this is the address of a {kind}")


def _absolute(task: Task) -> Task:
    """Workers run in another folder."""
    clip = dataclasses.replace(task.clip, audio=task.clip.audio.absolute())
    return dataclasses.replace(task, clip=clip, model_path=task.model_path.absolute())


def _reason(error: BaseException) -> str:
    if isinstance(error, HarnessError):
        return error.message
    cause = error
    while cause.__cause__:
        cause = cause.__cause__
    return " ".join(f"{type(error).__name__}: {error} {f'({cause})' if cause is not error else ''}".split())


# --- in a Dask worker -------------------------------------------------------------------------------------------------


def _decode(task: Task, work: Callable, build: str) -> list[dict]:
    """Rows of the task. HarnessError if the child would load another library than the client's."""
    _check_build(build)
    [rows] = runner.run([task], 1, work)
    return rows


def _check_build(wanted: str) -> None:
    if (build := native.build_sha256()) != wanted:
        raise HarnessError(
            f"libwhisper of {socket.gethostname()} is {build[:8]}, the client's {wanted[:8]}: a run must not mix builds"
        )
