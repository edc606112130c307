"""A fleet of servers as a discrete-event simulation, with service times that were measured on this machine.

python -m benchmarks.fleet measure [--model NAME] [--backend NAME] [-o FILE]      service times by rows of a call
python -m benchmarks.fleet plan FILE --rate N [--within MS]                       replicas for a rate of requests

Requests arrive at random (a Poisson process) at the queues of benchmarks.queues. `python -m benchmarks.serving load`
has the real server beside such a queue.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np

import delegate
from benchmarks.quantized import cpu
from benchmarks.queues import Fleet, Times, capacity, measure_calls, simulate
from benchmarks.serving import SIZE, SMALL, percentile, save
from benchmarks.serving_client import random_gaps


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
        latencies = simulate(Fleet(replicas, fleet.most, fleet.balancer), random_gaps(rate), times, 100_000)
        if percentile(latencies, 99) <= within:
            return replicas, latencies
    raise AssertionError


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
    measured = commands.add_parser("measure")
    measured.add_argument("--model", default=SMALL, help="of torchvision; small: the network of benchmarks.serving")
    measured.add_argument("--backend", default="xnnpack")
    measured.add_argument("-o", "--output", type=Path)
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
        with delegate.load(path) as program:
            times = measure_calls(program, image, 2000)
    print(f"{cpu()}\n\n| rows of a call | median, ms | p99, ms | rows/s |\n|---|---|---|---|")
    for rows, own in times.items():
        print(f"| {rows} | {np.median(own) * 1e3:.2f} | {percentile(own, 99) * 1e3:.2f} | {rows / np.mean(own):.0f} |")
    if arguments.output:
        about = {"machine": cpu(), "date": time.strftime("%Y-%m-%d"), "model": arguments.model}
        arguments.output.write_text(json.dumps({**about, "backend": arguments.backend, "seconds": times}))


if __name__ == "__main__":
    main()
