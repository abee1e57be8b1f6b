"""The work of runner.py on a Dask cluster: same tasks, same rows.

Each thread of a Dask worker has a ``runner.Worker`` of its own, so that a clip that crashes or hangs costs a child
process and no Dask worker. A Dask worker that dies is the scheduler's business: it gives the clip to another one, as
often as its ``distributed.scheduler.allowed-failures`` says.
"""

import asyncio
import dataclasses
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator

from pyharness import models, native, runner
from pyharness.errors import HarnessError
from pyharness.runner import Task

CONNECT_S = 6  # a scheduler that takes longer cannot be reached
LOST = "the Dask workers died while decoding this clip, one after the other"


class Cluster:
    """A connection to the scheduler at ``address``. HarnessError if it cannot be reached, or if its workers are not
    fit for the run: none, without pyharness, or with another build of the library."""

    def __init__(self, address: str):
        try:
            import distributed
        except ImportError as error:
            raise HarnessError(f"--scheduler needs Dask: pip install 'padsink[cluster]' ({error})") from error
        self._distributed = distributed
        self._build = build()
        try:  # a Client that cannot connect is slow to give up
            asyncio.run(asyncio.wait_for(_ask(distributed.rpc(address, timeout=CONNECT_S)), CONNECT_S + 1))
        except Exception as error:  # whatever answers there
            raise HarnessError(f"cannot reach the Dask scheduler '{address}': {_reason(error)}") from error
        self._client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
        try:
            self._check_workers(address)
        except BaseException:
            self.close()
            raise

    def _check_workers(self, address: str) -> None:
        workers = self._client.run(_check_build, self._build, on_error="return")
        if not workers:
            raise HarnessError(f"'{address}' has no worker: start some with `dask worker {address} --nthreads 1`")
        for worker, answer in workers.items():
            if isinstance(answer, BaseException):
                raise HarnessError(f"worker {worker} of '{address}': {_reason(answer)}")

    def close(self) -> None:
        self._client.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def n_threads(self) -> int:
        """Of all workers: how many clips are decoded at a time."""
        return sum(self._client.nthreads().values())

    def run(self, tasks: list[Task], jobs: int, work: Callable = runner.run_task) -> Iterator[list[dict]]:
        """Rows of each task as it ends, like ``runner.run``; ``jobs`` at a time, more if workers join.

        HarnessError if the scheduler is lost, or if a worker with another build joins. While there is no worker, it
        waits for one.
        """
        queue, given, run_id = deque(tasks), {}, uuid.uuid4().hex
        ended = self._distributed.as_completed(loop=self._client.loop)
        try:
            while queue or given:
                # no more than there are threads: a worker that dies is held against all that wait for it
                for _ in range(min(len(queue), max(jobs, self.n_threads()) - len(given))):
                    task = queue.popleft()
                    future = self._client.submit(_decode, _absolute(task), work, self._build, run_id, pure=False)
                    given[future] = task
                    ended.add(future)
                future = next(ended)
                task = given.pop(future)
                try:
                    yield [row | {"audio_filepath": str(task.clip.audio)} for row in future.result()]
                except self._distributed.scheduler.KilledWorker:
                    yield runner.error_rows(task, LOST)
        except Exception as error:  # of the cluster: those of a clip are rows
            raise HarnessError(f"the cluster failed: {_reason(error)}. What is done is kept") from error
        finally:  # Ctrl-C, or the caller gave up: what a worker has begun ends there, unheard
            if self._client.status == "running":
                self._client.cancel(list(given))


async def _ask(rpc) -> None:
    async with rpc as scheduler:
        kind = (await scheduler.identity())["type"]
    if kind != "Scheduler":
        raise HarnessError(f"this is the address of a {kind}")


def build() -> str:
    """sha256 of this machine's library."""
    return models.sha256(native.library_path())


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
    reason = f"{type(error).__name__}: {error}" + (f" ({cause})" if cause is not error else "")
    return " ".join(reason.split())


# --- in a Dask worker -------------------------------------------------------------------------------------------------


_mine = threading.local()  # .run_id, .child: this thread's process, of one run: what it has loaded is not out of date


def _check_build(wanted: str) -> None:
    if build() != wanted:
        raise HarnessError(f"its libwhisper is {build()[:8]}, this one's is {wanted[:8]}: a run must not mix builds")


def _decode(task: Task, work: Callable, wanted: str, run_id: str) -> list[dict]:
    for _ in range(2):
        child = _child(work, wanted, run_id)
        child.give(task)
        rows = child.result(timeout=task.timeout)
        if rows is not None:
            return rows
        reason = child.end()
        _mine.child = None
        if reason is not runner.DIED:
            break
    return runner.error_rows(task, reason)


def _child(work: Callable, wanted: str, run_id: str) -> runner.Worker:
    child = getattr(_mine, "child", None)
    if child and _mine.run_id != run_id:
        child.end()
        child = None
    if not child:
        _check_build(wanted)
        child = runner.Worker(work)
    _mine.run_id, _mine.child = run_id, child
    return child
