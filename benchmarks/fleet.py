"""A fleet of servers as a discrete-event simulation, with service times that were measured on this machine.

python -m benchmarks.fleet measure [--model NAME] [--backend NAME] [-o FILE]      service times by rows of a call
python -m benchmarks.fleet real [--model NAME] [--loads 0.3 0.6 0.8]              the real server beside the simulation
python -m benchmarks.fleet plan FILE --rate N [--within MS]                       replicas for a rate of requests

Requests arrive at random (a Poisson process). A replica computes one call at a time. It takes the waiting requests, up
to the maximum rows of a batch. A simulated call takes one of the measured times for its rows, drawn at random.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import numpy as np
import simpy

import delegate
from benchmarks.quantized import cpu
from benchmarks.serving import SIZE, SMALL, percentile, request, save, server
from benchmarks.serving_client import drive

ROWS = (1, 2, 4, 8, 16, 32)  # of the measured calls; a call with other numbers of rows takes the time of the next one
_CLIENTS = 64  # connections to the real server
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


def simulate(fleet: Fleet, rate: float, times: Times, requests: int, seed: int = 0) -> list[float]:
    """Return the seconds from arrival to answer of each request, without those of the start.

    Args:
        fleet: the replicas.
        rate: requests per second.
        times: seconds of calls, by rows.
        requests: number of simulated requests.
        seed: of the random numbers.
    """
    drawn = random.Random(seed)
    environment = simpy.Environment()
    lines = [_Line() for _ in range(1 if fleet.balancer == "shared" else fleet.replicas)]
    latencies: list[float] = []

    def arrivals() -> Iterator[Any]:
        for _ in range(requests):
            yield environment.timeout(drawn.expovariate(rate))
            _choose(fleet, lines, drawn).put(environment)

    def replica(line: _Line) -> Iterator[Any]:
        while True:
            if not line.waiting:
                yield line.wait(environment)
                continue
            batch = [line.waiting.popleft() for _ in range(min(fleet.most, len(line.waiting)))]
            line.running += len(batch)
            yield environment.timeout(drawn.choice(times[_measured(times, len(batch))]))
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


def _measured(times: Times, rows: int) -> int:
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


def replicas_for(times: Times, rate: float, within: float, fleet: Fleet) -> tuple[int, list[float]]:
    """Return the least number of replicas whose p99 is within a limit, and their latencies.

    Args:
        times: seconds of calls, by rows.
        rate: requests per second.
        within: the limit of p99 in seconds; it must be more than that of a single call.
        fleet: the batches and the balancer.
    """
    if percentile(times[1], 99) >= within:
        raise SystemExit(f"a single call takes {percentile(times[1], 99) * 1e3:.1f} ms at p99: use a larger --within")
    for replicas in count(math.floor(rate / capacity(times, fleet.most)) + 1):
        latencies = simulate(Fleet(replicas, fleet.most, fleet.balancer), rate, times, 100_000)
        if percentile(latencies, 99) <= within:
            return replicas, latencies
    raise AssertionError


def measure(path: Path, image: Any, calls: int) -> dict[int, list[float]]:
    """Return the seconds of the program's own calls, by rows."""
    times = {}
    with delegate.load(path) as program:
        for rows in ROWS:
            images = np.repeat(image, rows, 0)
            program(images)
            own = []
            for _ in range(max(20, calls // rows)):
                start = time.perf_counter()
                program(images)
                own.append(time.perf_counter() - start)
            times[rows] = own
    return times


def real(port: int, message: bytes, requests: int, rate: float | None = None) -> list[float]:
    """Return the seconds of requests at random times, or of as many as possible; those of the start do not count."""
    return drive(port, message, _CLIENTS, requests, rate)[int(WARM * requests) :]


def compare(path: Path, image: Any, loads: Sequence[float], most: int, requests: int) -> None:
    """Print the latencies of the real server beside those of the simulation, at shares of its measured capacity.

    The time of a call in the simulation has the work of the server for each request, which follows from its capacity.
    The way of a request through clients and sockets takes time too, but occupies no replica.
    """
    message = request(image)
    with server(f"net={path}", "--batch", str(most)) as port:
        own = measure(path, image, 200)
        start = time.perf_counter()
        real(port, message, requests)
        most_rate = requests / (time.perf_counter() - start)
        alone = real(port, message, 200, 0.1 * most_rate)
        work = max(0.0, 1 / most_rate - 1 / capacity(own, most))
        way = max(0.0, float(np.median(alone) - np.median(own[1])) - work)
        times = {rows: [t + work * rows for t in seconds] for rows, seconds in own.items()}
        print(
            f"{most_rate:.0f} requests/s at most; each has {work * 1e6:.0f} us of work and {way * 1e6:.0f} us of way\n"
        )
        print("| load | requests/s | real p50, p99, ms | simulated p50, p99, ms |\n|---|---|---|---|")
        for load in loads:
            rate = load * most_rate
            served = real(port, message, requests, rate)
            expected = [way + t for t in simulate(Fleet(1, most), rate, times, 20_000)]
            print(f"| {load} | {rate:.0f} | {_both(served)} | {_both(expected)} |", flush=True)


def _both(times: Sequence[float]) -> str:
    return f"{percentile(times, 50) * 1e3:.1f}, {percentile(times, 99) * 1e3:.1f}"


def plan(times: Times, rate: float, within: float, most: int) -> None:
    """Print the replicas that a rate needs, by balancer and maximum batch."""
    print("| balancer | rows of a batch | replicas | load | p50, p99, ms |\n|---|---|---|---|---|")
    for size in sorted({1, most}):
        for balancer in ("shared", "least", "random"):
            replicas, latencies = replicas_for(times, rate, within, Fleet(1, size, balancer))
            load = rate / (replicas * capacity(times, size))
            print(f"| {balancer} | {size} | {replicas} | {load:.2f} | {_both(latencies)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("measure", "real"):
        command = commands.add_parser(name)
        command.add_argument("--model", default=SMALL, help="of torchvision; small: the network of benchmarks.serving")
        command.add_argument("--backend", default="xnnpack")
        command.add_argument("--most", type=int, default=16, help="rows of a batch")
    commands.choices["measure"].add_argument("-o", "--output", type=Path)
    commands.choices["real"].add_argument("--loads", type=float, nargs="*", default=[0.3, 0.6, 0.8])
    commands.choices["real"].add_argument("--requests", type=int, default=3000)
    planned = commands.add_parser("plan")
    planned.add_argument("file", type=Path)
    planned.add_argument("--rate", type=float, default=10_000)
    planned.add_argument("--within", type=float, default=50, help="milliseconds of p99")
    planned.add_argument("--most", type=int, default=16, help="rows of a batch")
    arguments = parser.parse_args()
    if arguments.command == "plan":
        times = {int(rows): own for rows, own in json.loads(arguments.file.read_text())["seconds"].items()}
        plan(times, arguments.rate, arguments.within / 1e3, arguments.most)
        return
    image = np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.dlg")
        save(path, arguments.backend, arguments.model)
        if arguments.command == "real":
            compare(path, image, arguments.loads, arguments.most, arguments.requests)
            return
        times = measure(path, image, 2000)
    print(f"{cpu()}\n\n| rows of a call | median, ms | p99, ms | rows/s |\n|---|---|---|---|")
    for rows, own in times.items():
        print(f"| {rows} | {np.median(own) * 1e3:.2f} | {percentile(own, 99) * 1e3:.2f} | {rows / np.mean(own):.0f} |")
    if arguments.output:
        about = {"machine": cpu(), "date": time.strftime("%Y-%m-%d"), "model": arguments.model}
        arguments.output.write_text(json.dumps({**about, "backend": arguments.backend, "seconds": times}))


if __name__ == "__main__":
    main()
