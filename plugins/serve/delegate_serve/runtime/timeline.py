"""Timeline: the times of a request on its way through the server. They are recorded only for requests of a trace."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import ContextVar
from typing import NamedTuple

from delegate.events.kinds import Event, InstructionRun


class CallTimes(NamedTuple):
    """The times of a call in seconds of `time.monotonic`.

    Args:
        arrived: when the request was in the queue.
        taken: when a thread began with its batch.
        begin, end: of the method's own call.
        done: when the results were split by request.
        requests, rows: of the batch.
        partitions: runs of partitions in the call, if they are requested.
    """

    arrived: float
    taken: float
    begin: float
    end: float
    done: float
    requests: int
    rows: int
    partitions: Sequence[InstructionRun]


class Timeline:
    """The times of a request, which the thread of its call writes."""

    __slots__ = ("call",)

    def __init__(self) -> None:
        self.call: CallTimes | None = None


CURRENT: ContextVar[Timeline | None] = ContextVar("timeline", default=None)  # None: the request is not traced


class _Partitions(threading.local):
    """The runs of partitions in this thread; None: nobody needs them."""

    runs: list[InstructionRun] | None = None


PARTITIONS = _Partitions()


def record_partition(event: Event) -> None:
    """Listen to a program: keep the runs of partitions if the call of this thread is traced."""
    if PARTITIONS.runs is not None and isinstance(event, InstructionRun) and event.instruction.kind == "partition":
        PARTITIONS.runs.append(event)
