"""Worker: the queue of a method, and the thread that runs its requests, several in one call if they can be joined."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from delegate.errors import DelegateError, ExecutionError, InputError
from delegate.runtime.batching import Batching
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.settings import Settings

_LOG = logging.getLogger("delegate")
_SMOOTHING = 0.1  # weight of the newest call in the mean time of a request
Run = Callable[[Sequence[Any]], list[Any]]  # of leaves of arguments to leaves of the result


class Job:
    """A request in the queue.

    Args:
        arguments: leaves that fit the method, but for its dynamic sizes.
        run: runs the method on the arguments, if no other request joins.
        rows, key: see `Batching`; requests with different keys are not joined.
        loop: of the future.
    """

    __slots__ = ("arguments", "arrived", "future", "is_running", "key", "loop", "rows", "run")

    def __init__(
        self, arguments: Sequence[Any], run: Run, rows: int, key: Any, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.arguments, self.run, self.rows, self.key, self.loop = arguments, run, rows, key, loop
        self.future: asyncio.Future[list[Any]] = loop.create_future()
        self.arrived, self.is_running = monotonic(), False


class Worker:
    """Runs the requests of a method one call after another, in a thread.

    Args:
        name: of the model, for messages.
        run: runs the method on leaves of arguments.
        check: returns checked leaves, or raises InputError.
        batching: how requests are joined; None: each has a call of its own.
        settings: the limits.
        metrics: of the server.
    """

    def __init__(
        self,
        name: str,
        run: Run,
        check: Callable[[Sequence[Any]], Sequence[Any]],
        batching: Batching | None,
        settings: Settings,
        metrics: Metrics,
    ) -> None:
        self._name, self._method, self._check, self._batching, self._settings = name, run, check, batching, settings
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._held: Job | None = None  # a job that does not fit the batch before it
        self._mean = 0.0  # seconds per request
        self.metrics = metrics.model(name, self._jobs.qsize)
        self._thread = Thread(target=self._work, name=f"serve {name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return True until the worker is closed."""
        return self._thread.is_alive()

    async def run(self, arguments: Sequence[Any], timeout: float | None, run: Run | None = None) -> list[Any]:
        """Return the leaves of the result.

        Args:
            arguments: the leaves of the arguments.
            run: runs the method in a session; None: without one.
            timeout: seconds that the client waits, at most the limit of the settings; None: that limit.

        Raises:
            RequestError: the arguments do not fit the method, the queue is full, the time is over, or the run failed.
        """
        if self._jobs.qsize() >= self._settings.queue:
            raise self._overloaded(f"model {self._name!r} has {self._settings.queue} requests in its queue")
        try:
            leaves = self._check(arguments)
        except InputError as error:
            raise RequestError(400, str(error)) from error
        loop = asyncio.get_running_loop()
        batching = self._batching
        rows, key = (batching.rows(leaves), batching.key(leaves)) if batching else (1, None)
        job = Job(leaves, run or self._method, rows, key, loop)
        limit = self._settings.timeout if timeout is None else min(timeout, self._settings.timeout)
        timer = loop.call_later(limit, self._expire, job, limit)
        self._jobs.put(job)
        try:
            return await job.future
        finally:
            timer.cancel()

    def close(self) -> None:
        """Run what is in the queue, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _overloaded(self, what: str) -> RequestError:
        wait = max(1, math.ceil(self._mean * self._jobs.qsize()))
        return RequestError(429, f"{what}: try again in {wait} s", retry_after=wait)

    def _expire(self, job: Job, limit: float) -> None:
        if job.future.done():
            return
        if job.is_running:
            what = f"model {self._name!r} did not answer within {limit:g} s"
            job.future.set_exception(RequestError(504, what, has_begun=True))
        else:
            what = f"the request waited {limit:g} s in the queue of model {self._name!r}"
            job.future.set_exception(self._overloaded(what))

    def _work(self) -> None:
        while (job := self._held or self._jobs.get()) is not None:
            self._held = None
            batch = [job] if self._batching is None else self._gather(job, self._batching.most)
            live = [job for job in batch if not job.future.done()]  # the others have expired
            if live:
                self._serve(live)

    def _gather(self, first: Job, most: int) -> list[Job]:
        """Return a job and those after it that share a call with it; wait for them until the delay is over."""
        batch, rows = [first], first.rows
        until = first.arrived + self._settings.batch_delay
        while rows < most:
            left = until - monotonic()
            try:
                job = self._jobs.get(timeout=left) if left > 0 else self._jobs.get_nowait()
            except Empty:
                break
            if job is None:  # closed: the thread ends after this batch
                self._jobs.put(None)
                break
            if job.key != first.key or rows + job.rows > most:
                self._held = job
                break
            batch.append(job)
            rows += job.rows
        return batch

    def _serve(self, jobs: Sequence[Job]) -> None:
        """Run jobs in one call. If it fails, each job runs by itself, since the fault may be in another's input."""
        for job in jobs:
            job.is_running = True
        start = monotonic()
        try:
            results = self._call(jobs)
        except Exception as error:
            if len(jobs) == 1:
                _finish([(jobs[0], None, self._error(error))])
            else:
                for job in jobs:
                    self._serve([job])
            return
        seconds = monotonic() - start
        _finish([(job, result, None) for job, result in zip(jobs, results, strict=True)])
        self._mean += _SMOOTHING * (seconds / len(jobs) - self._mean)
        self.metrics.ran(len(jobs), seconds)

    def _call(self, jobs: Sequence[Job]) -> list[list[Any]]:
        if len(jobs) == 1 or self._batching is None:
            return [jobs[0].run(jobs[0].arguments)]
        results = self._method(self._batching.join([job.arguments for job in jobs]))
        return self._batching.split(results, [job.rows for job in jobs])

    def _error(self, error: Exception) -> RequestError:
        if isinstance(error, InputError):
            return RequestError(400, str(error), has_begun=True)
        what = f"model {self._name!r} failed"
        if isinstance(error, DelegateError):
            if not isinstance(error, ExecutionError):  # those are mostly faults of inputs, which must not fill a disk
                _LOG.error("%s: %s", what, error)
            return RequestError(500, f"{what}: {error}", has_begun=True)
        _LOG.exception("%s", what, exc_info=error)
        return RequestError(500, f"{what}: {type(error).__name__}", has_begun=True)


def _finish(answers: Sequence[tuple[Job, list[Any] | None, RequestError | None]]) -> None:
    """Hand results over to the event loop, in one step for all jobs of a call."""
    try:
        answers[0][0].loop.call_soon_threadsafe(_resolve, answers)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def _resolve(answers: Sequence[tuple[Job, list[Any] | None, RequestError | None]]) -> None:
    for job, result, error in answers:
        if job.future.done():
            continue
        if result is None:
            job.future.set_exception(error or RequestError(500, "no result"))
        else:
            job.future.set_result(result)
