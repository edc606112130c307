"""Worker: the queue of a method, whose requests run in the threads of a pool, several in one call if possible."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from threading import Condition
from time import monotonic
from typing import Any

from delegate.errors import DelegateError, ExecutionError, InputError
from delegate.runtime.batching import Batching
from delegate_serve.runtime.batches import Batch, Batches, Job, Run
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.pool import Pool
from delegate_serve.runtime.settings import Settings
from delegate_serve.runtime.timeline import PARTITIONS, CallTimes

_LOG = logging.getLogger("delegate")
_SMOOTHING = 0.1  # weight of the newest call in the mean time of a request
_Result = tuple[Job, list[Any] | None, RequestError | None]
_SHORT = 0.002  # seconds of a call that may hold up the event loop
_PAUSE = 1000  # times a longer call there, until the method runs there again


class Worker:
    """Runs the requests of a method one call after another, in the threads of a pool.

    A single request in an idle server runs at once on the event loop, if the sizes of its arguments bound the work of
    the method, and the call before had the same sizes and was short: to wake a thread and to come back takes longer
    than the rest of a small request.

    Args:
        name: The model's name, for messages.
        run: runs the method on leaves of arguments.
        check: returns checked leaves, or raises InputError.
        batching: how requests are joined; None: each has a call of its own.
        pool: the threads.
        settings: the limits.
        metrics: The server's metrics.
        is_bounded: the sizes of the arguments bound the work of a call, so that it may run on the event loop.
    """

    def __init__(
        self,
        name: str,
        run: Run,
        check: Callable[[Sequence[Any]], Sequence[Any]],
        batching: Batching | None,
        pool: Pool,
        settings: Settings,
        metrics: Metrics,
        is_bounded: bool = False,
    ) -> None:
        self._name, self._method, self._check, self._batching, self._settings = name, run, check, batching, settings
        self._pool = pool
        self._idle = Condition()  # guards the batches, and whether one runs
        self._batches = Batches(batching)
        self._running: Batch | None = None
        self._is_replaced = False  # the thread of that batch, for which nobody waits any more
        self._mean = 0.0  # seconds per request
        self._is_bounded, self._off_loop_until = is_bounded, 0.0
        self._short_sizes: tuple[Any, ...] | None = None  # of the arguments of the last call, if it was short
        self.is_alive = True  # until the worker is closed
        self.metrics = metrics.model(name, lambda: self.waiting)

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return self._batches.waiting

    async def run(
        self,
        arguments: Sequence[Any],
        timeout: float | None = None,
        priority: int | None = None,
        run: Run | None = None,
    ) -> list[Any]:
        """Return the leaves of the result.

        Args:
            arguments: the leaves of the arguments.
            timeout: seconds that the client waits, at most the limit of the settings; None: that limit.
            priority: smaller numbers run first; None: the model's priority.
            run: runs the method in a session; None: without one.

        Raises:
            RequestError: the arguments do not fit the method, the queue is full, the time is over, or the run failed.
        """
        if self.waiting >= self._settings.queue:
            raise self._overload_error(f"model {self._name!r} has {self._settings.queue} requests in its queue")
        try:
            leaves = self._check(arguments)
        except InputError as error:
            raise RequestError(400, str(error)) from error
        loop = asyncio.get_running_loop()
        batching = self._batching
        rows, key = (batching.rows(leaves), batching.key(leaves)) if batching else (1, None)
        priority = self._settings.priority if priority is None else priority
        job = Job(leaves, run or self._method, rows, key, priority, loop, _sizes(arguments))
        if timeout is None and run is None and self._is_bounded and self._begin_at_once(batch := Batch(job, True)):
            self._run(batch, _resolve)
            if self._short_sizes is None:
                now = monotonic()
                self._off_loop_until = now + _PAUSE * (now - job.arrived)
            return job.future.result()
        limit = self._settings.timeout if timeout is None else min(timeout, self._settings.timeout)
        timer = loop.call_later(limit, self._expire, job, limit)
        self._add(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            self._replace_thread()
            raise
        finally:
            timer.cancel()

    def close(self) -> None:
        """Run what is in the queue."""
        with self._idle:
            self.is_alive = False
            self._batches.all_are_due()
            self._submit()
            self._idle.wait_for(lambda: self._running is None and not self._batches.waiting)
            self._method = self._check = _fail  # a model stays as a description, without the memory of its program

    def _begin_at_once(self, batch: Batch) -> bool:
        """Return True if the server has nothing else to do, and such a call is short; it is running then.

        Calls of other methods may hold a lock that this one needs, also those for which nobody waits any more.
        """
        is_alone = self._pool.requests <= 1 and not self._pool.has_calls
        job = batch.jobs[0]
        if not is_alone or self._settings.batch_delay or job.sizes != self._short_sizes:
            return False
        if job.arrived < self._off_loop_until:
            return False
        with self._idle:
            if self._running is not None or self._batches.waiting:
                return False
            self._running = batch
            return True

    def _add(self, job: Job) -> None:
        delay = self._settings.batch_delay
        with self._idle:
            batch = self._batches.add(job, is_due=not delay)
            if batch is not None and not batch.is_due:
                job.loop.call_later(delay, self._end_wait, batch)
            self._submit()

    def _end_wait(self, batch: Batch) -> None:
        with self._idle:
            batch.is_due = True
            self._submit()

    def _submit(self) -> None:
        """Have a thread run the next batch that is due; the lock is held."""
        if self._running is None and (priority := self._batches.next_priority()) is not None:
            self._pool.submit(priority, self._run_next)

    def _run_next(self) -> bool:
        """Run the next batch; return True if another thread has replaced this one meanwhile."""
        with self._idle:
            batch = None if self._running is not None else self._batches.take()
            if batch is None:  # another thread was faster
                return False
            self._running = batch
        return self._run(batch, _finish)

    def _run(self, batch: Batch, finish: Callable[[Sequence[_Result]], None]) -> bool:
        """Run a batch that is marked as running, and submit the next one; see `_run_next` for the result."""
        try:
            batch.drop_expired()
            if batch.jobs:
                self._serve(batch, finish)
        finally:
            with self._idle:
                is_replaced, self._is_replaced, self._running = self._is_replaced, False, None
                self._submit()
                self._idle.notify_all()
        return is_replaced

    def _replace_thread(self) -> None:
        """Let the pool run another call if nobody waits any more for the one that runs: it cannot be ended."""
        with self._idle:
            batch = self._running
            if batch is not None and not self._is_replaced and all(job.future.done() for job in batch.jobs):
                self._is_replaced = True
                self._pool.add_thread()

    def _overload_error(self, what: str) -> RequestError:
        wait = max(1, math.ceil(self._mean * self.waiting))
        return RequestError(429, f"{what}: try again in {wait} s", retry_after=wait)

    def _expire(self, job: Job, limit: float) -> None:
        if job.future.done():
            return
        if job.is_running:
            what = f"model {self._name!r} did not answer within {limit:g} s"
            job.future.set_exception(RequestError(504, what, has_begun=True))
            self._replace_thread()
        else:
            what = f"the request waited {limit:g} s in the queue of model {self._name!r}"
            job.future.set_exception(self._overload_error(what))

    def _serve(self, batch: Batch, finish: Callable[[Sequence[_Result]], None]) -> None:
        """Run a batch, and if it fails, each job runs by itself, since the fault may be in another's input."""
        jobs = batch.jobs
        for job in jobs:
            job.is_running = True
        is_traced = any(job.timeline is not None for job in jobs)
        PARTITIONS.runs = [] if is_traced else None
        self._short_sizes = None
        start = monotonic()
        try:
            results = self._call(batch)
        except Exception as error:
            if len(jobs) == 1:
                finish([(jobs[0], None, self._error(error))])
            else:
                for job in jobs:
                    self._serve(Batch(job, is_due=True), finish)
            return
        end = monotonic()
        seconds = end - start
        if is_traced:
            _record(batch, start, end)
        finish([(job, result, None) for job, result in zip(jobs, results, strict=True)])
        self._mean += _SMOOTHING * (seconds / len(jobs) - self._mean)
        if len(jobs) == 1 and seconds < _SHORT:
            self._short_sizes = jobs[0].sizes
        self.metrics.ran(len(jobs), seconds)

    def _call(self, batch: Batch) -> list[list[Any]]:
        jobs = batch.jobs
        if len(jobs) == 1 or self._batching is None:
            return [jobs[0].run(jobs[0].arguments)]
        arguments = batch.arguments(self._batching)
        batch.begin = monotonic()
        results = self._method(arguments)
        batch.end = monotonic()
        with self._idle:
            self._batches.recycle(batch, results)
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


def _fail(_: Sequence[Any]) -> list[Any]:
    raise AssertionError("a request runs on a closed worker")


def _finish(answers: Sequence[_Result]) -> None:
    """Hand results over to the event loop, in one step for all jobs of a call."""
    try:
        answers[0][0].loop.call_soon_threadsafe(_resolve, answers)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def _resolve(answers: Sequence[_Result]) -> None:
    for job, result, error in answers:
        if job.future.done():
            continue
        if result is None:
            job.future.set_exception(error or RequestError(500, "no result"))
        else:
            job.future.set_result(result)


def _record(batch: Batch, start: float, end: float) -> None:
    """Write the times of a call into the timelines of its requests."""
    count = len(batch.jobs)
    begin, done = (batch.begin, batch.end) if batch.begin else (start, end)
    for job in batch.jobs:
        if job.timeline is not None:
            partitions = tuple(PARTITIONS.runs or ())
            job.timeline.call = CallTimes(job.arrived, start, begin, done, end, count, batch.rows, partitions)


def _sizes(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shapes of arrays, and numbers, which may be sizes."""
    return tuple([getattr(leaf, "shape", leaf) for leaf in leaves])
