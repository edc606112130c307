"""Queues as a discrete-event simulation, with service times that were measured on this machine.

A replica computes one call at a time. It takes the waiting requests, up to the maximum rows of a batch. A simulated
call takes one of the measured times for its rows, drawn at random.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import simpy

ROWS = (1, 2, 4, 8, 16, 32)  # of the measured calls; a call with other numbers of rows takes the time of the next one
WARM = 0.1  # the first part of a simulation, whose requests do not count, because the queue was empty before
Times = Mapping[int, Sequence[float]]  # rows of a call -> measured seconds


@dataclass(frozen=True)
class Fleet:
    """Replicas behind a balancer.

    Args:
        replicas: their number.
        most: the maximum rows of a batch.
        balancer: "shared": one queue, from which each free replica takes requests; "random": a queue for each replica,
            chosen at random; "least": the replica with the fewest waiting requests.
    """

    replicas: int
    most: int = 1
    balancer: Literal["shared", "random", "least"] = "shared"


def simulate(fleet: Fleet, gaps: Iterator[float], times: Times, requests: int) -> list[float]:
    """Return the seconds from arrival to answer of each request, without those of the start.

    Args:
        fleet: the replicas.
        gaps: seconds from each request to the next, as of `benchmarks.serving_client.random_gaps`.
        times: seconds of calls, by rows.
        requests: number of simulated requests.
    """
    drawn = random.Random(0)
    environment = simpy.Environment()
    lines = [_Line() for _ in range(1 if fleet.balancer == "shared" else fleet.replicas)]
    latencies: list[float] = []

    def arrivals() -> Iterator[Any]:
        for gap in islice(gaps, requests):
            yield environment.timeout(gap)
            _choose(fleet, lines, drawn).put(environment)

    def replica(line: _Line) -> Iterator[Any]:
        while True:
            if not line.waiting:
                yield line.wait(environment)
                continue
            batch = [line.waiting.popleft() for _ in range(min(fleet.most, len(line.waiting)))]
            line.running += len(batch)
            yield environment.timeout(drawn.choice(times[_measure(times, len(batch))]))
            line.running -= len(batch)
            latencies.extend(environment.now - start for start in batch)

    for number in range(fleet.replicas):
        environment.process(replica(lines[number % len(lines)]))
    environment.process(arrivals())
    environment.run()
    return latencies[int(WARM * requests) :]


class _Line:
    """The waiting requests of a replica, or of all, by their time of arrival."""

    def __init__(self) -> None:
        self.waiting: deque[float] = deque()
        self.running = 0
        self._idle: deque[simpy.Event] = deque()

    def put(self, environment: simpy.Environment) -> None:
        self.waiting.append(environment.now)
        if self._idle:
            self._idle.popleft().succeed()

    def wait(self, environment: simpy.Environment) -> simpy.Event:
        event = environment.event()
        self._idle.append(event)
        return event


def _choose(fleet: Fleet, lines: Sequence[_Line], drawn: random.Random) -> _Line:
    if fleet.balancer == "least":
        return min(lines, key=lambda line: len(line.waiting) + line.running)
    return drawn.choice(lines)


def _measure(times: Times, rows: int) -> int:
    return next((size for size in sorted(times) if size >= rows), max(times))


def capacity(times: Times, most: int) -> float:
    """Return the most requests per second of one replica, in full batches of measured sizes."""
    return max(rows / float(np.mean(own)) for rows, own in times.items() if rows <= most)


def mean_wait(replicas: int, rate: float, seconds: float, variation: float = 1.0) -> float:
    """Return the mean seconds in a shared queue, by the formula of Erlang with the correction of Allen and Cunneen.

    Args:
        replicas: their number.
        rate: requests per second.
        seconds: the mean of a call.
        variation: the squared coefficient of variation of a call: 1 for exponential times, 0 for equal ones. The
            formula is exact for 1, and for one replica.
    """
    load = rate * seconds
    terms = [load**k / math.factorial(k) for k in range(replicas)]
    last = load**replicas / math.factorial(replicas) / (1 - load / replicas)
    waits = last / (sum(terms) + last)
    return waits * seconds / (replicas - load) * (1 + variation) / 2


def equal_times_percentile(load: float, part: float) -> float:
    """Return a percentile of the time from arrival to answer, in services of equal length: M/D/1, by Erlang's formula.

    Requests arrive at random at one replica, which computes one at a time.

    Args:
        load: requests per service, below 1.
        part: the percentile, from 0 to 100.
    """

    def term(wait: float, k: int) -> float:
        left = load * (wait - k)
        return (-left) ** k / math.factorial(k) * math.exp(left)

    def share(wait: float) -> float:
        """Return the share of requests that wait at most so many services."""
        return (1 - load) * math.fsum(term(wait, k) for k in range(int(wait) + 1))

    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if share(middle) >= part / 100 else (middle, high)
    return 1 + high


def measure_calls(program: Any, image: Any, calls: int, most: int = ROWS[-1]) -> dict[int, list[float]]:
    """Return the seconds of the program's own calls, by rows.

    Args:
        program: a loaded program.
        image: the input of one row.
        calls: number of calls with one row; those with more rows are fewer.
        most: the maximum rows.
    """
    times = {}
    for rows in ROWS:
        if rows > most:
            break
        images = np.repeat(image, rows, 0)
        program(images)
        own = []
        for _ in range(max(20, calls // rows)):
            start = time.perf_counter()
            program(images)
            own.append(time.perf_counter() - start)
        times[rows] = own
    return times
