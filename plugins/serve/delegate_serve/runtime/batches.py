"""Batches: the requests of a method that wait, joined to calls as they arrive.

Rows are copied to their place in a batch when they arrive, while another call runs, so a call begins at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import numpy as np

from delegate.runtime.backend import Array
from delegate.runtime.batching import Batching
from delegate_serve.runtime.timeline import CURRENT

Run = Callable[[Sequence[Any]], list[Any]]  # of leaves of arguments to leaves of the result
_SPARE = 2  # sets of buffers: one runs and one is filled


class Job:
    """A request in the queue.

    Args:
        arguments: leaves that fit the method, but for its dynamic sizes.
        run: runs the method on the arguments, if no other request joins.
        rows, key: see `Batching`; requests with different keys are not joined.
        priority: smaller numbers run first.
        loop: The event loop to which the future belongs.
        sizes: shapes and numbers of the arguments.
    """

    __slots__ = (
        "arguments", "arrived", "future", "is_running", "key", "loop", "priority", "rows", "run", "sizes", "timeline"
    )  # fmt: skip

    def __init__(
        self,
        arguments: Sequence[Any],
        run: Run,
        rows: int,
        key: Any,
        priority: int,
        loop: asyncio.AbstractEventLoop,
        sizes: tuple[Any, ...],
    ) -> None:
        self.arguments, self.run, self.rows, self.key, self.loop = arguments, run, rows, key, loop
        self.priority, self.sizes = priority, sizes
        self.future: asyncio.Future[list[Any]] = loop.create_future()
        self.arrived, self.is_running = monotonic(), False
        self.timeline = CURRENT.get()


class Batch:
    """Requests that share a call.

    Args:
        job: the first one.
        is_due: the call need not wait for more requests.
    """

    def __init__(self, job: Job, is_due: bool) -> None:
        self.jobs, self.rows, self.is_due = [job], job.rows, is_due
        self.buffers: dict[int, Array] = {}  # leaf -> rows of all requests, if there are several
        self.begin = self.end = 0.0  # of the method's own call, if there are several

    def drop_expired(self) -> None:
        """Remove requests that nobody waits for, so that they are not run."""
        live = [job for job in self.jobs if not job.future.done()]
        if len(live) < len(self.jobs):
            self.jobs, self.buffers = live, {}

    def arguments(self, batching: Batching) -> list[Any]:
        """Return the leaves of the call for all requests."""
        if not self.buffers:
            return batching.join([job.arguments for job in self.jobs])
        joined = list(self.jobs[0].arguments)
        for leaf, buffer in self.buffers.items():
            joined[leaf] = buffer[: self.rows]
        return joined


class Batches:
    """The batches of a method that wait, all of whose methods need the lock of their worker.

    Args:
        batching: how requests are joined; None: each has a call of its own.
    """

    def __init__(self, batching: Batching | None) -> None:
        self._batching = batching
        self._batches: list[Batch] = []
        self._spare: list[tuple[Any, dict[int, Array]]] = []  # buffers with the key of their requests
        self.waiting = 0  # requests

    def add(self, job: Job, is_due: bool) -> Batch | None:
        """Add a request; return its batch if that is a new one.

        Args:
            job: the request.
            is_due: a new batch need not wait for more requests.
        """
        self.waiting += 1
        last = next((batch for batch in reversed(self._batches) if batch.jobs[0].priority == job.priority), None)
        if self._batching is not None and last is not None:
            if last.jobs[0].key == job.key and last.rows + job.rows <= self._batching.most:
                self._join(last, job, self._batching)
                last.is_due = last.is_due or last.rows == self._batching.most
                return None
            last.is_due = True
        batch = Batch(job, is_due or self._batching is None or job.rows >= self._batching.most)
        self._batches.append(batch)
        return batch

    def next_priority(self) -> int | None:
        """Return the priority of the next call; None if none is due."""
        return min((batch.jobs[0].priority for batch in self._batches if batch.is_due), default=None)

    def take(self) -> Batch | None:
        """Remove and return the next batch that is due; None if there is none."""
        due = [batch for batch in self._batches if batch.is_due]
        if not due:
            return None
        batch = min(due, key=lambda batch: batch.jobs[0].priority)  # the first of equal ones
        self._batches.remove(batch)
        self.waiting -= len(batch.jobs)
        return batch

    def all_are_due(self) -> None:
        """End the waiting for more requests."""
        for batch in self._batches:
            batch.is_due = True

    def recycle(self, batch: Batch, results: Sequence[Any]) -> None:
        """Keep the buffers of a batch for another one, unless a result is a part of them."""
        arrays = [result for result in results if isinstance(result, np.ndarray)]
        if batch.buffers and not any(np.may_share_memory(a, b) for a in arrays for b in batch.buffers.values()):
            self._spare = [*self._spare[1 - _SPARE :], (batch.jobs[0].key, batch.buffers)]

    def _join(self, batch: Batch, job: Job, batching: Batching) -> None:
        if not batch.buffers:
            batch.buffers = self._buffers(job, batching)
            first = batch.jobs[0]
            _copy(first.arguments, batch.buffers, 0, first.rows)
        _copy(job.arguments, batch.buffers, batch.rows, job.rows)
        batch.jobs.append(job)
        batch.rows += job.rows

    def _buffers(self, job: Job, batching: Batching) -> dict[int, Array]:
        for number, (key, buffers) in enumerate(self._spare):
            if key == job.key:
                del self._spare[number]
                return buffers
        arrays = {leaf: job.arguments[leaf] for leaf in batching.inputs}
        return {leaf: np.empty((batching.most, *a.shape[1:]), a.dtype) for leaf, a in arrays.items()}


def _copy(arguments: Sequence[Any], buffers: dict[int, Array], first: int, rows: int) -> None:
    for leaf, buffer in buffers.items():
        buffer[first : first + rows] = arguments[leaf]
