"""The server of plugins/serve: time over the program's own call, batching, load, hostile clients, and long runs.

python -m benchmarks.serving [--backend NAME] [--model NAME] [--requests N] [--clients N] [--batch N]
    [--threads N] [PART ...]

A small network takes an image of 600 KB in binary form. The server and the clients are processes of their own.

- `latency`: one client, a server that does nothing, and the program's own calls take turns.
- `batching`: many clients at once, and the best batch of the program's own calls with the same threads, in turns. The
  cores of server and clients are those that they used.
- `load`: requests at random times and at even ones, at shares of the most requests per second (`--loads`). Each is
  beside a perfect queue, a simulation with measured service times and the same arrivals.
- `hostile`: requests at random times at 40 %, without and with clients that are slow or send what is wrong.
- `long`: many small requests; the memory of the server, and the number of answers.

`--backend onnxruntime` serves ONNX Runtime in the same way. Parts: latency, batching, load, hostile by default.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch

import delegate
from benchmarks.queues import WARM, Fleet, Times, capacity, equal_times_percentile, measure_calls, simulate
from benchmarks.serving_client import Connection, drive, even_gaps, random_gaps
from tests.support.zoo import libraries

SIZE = 224
MOST = 64  # rows of a batch
BATCHES = (1, 2, 4, 8, 16, 32)
PARTS = ("latency", "batching", "load", "hostile", "long")
ROUNDS = 10  # of own calls and the server
RUNS = 5  # of a load, and of many clients that find the most requests
SECONDS = 4  # of a load
SMALL = "small"
SHARED = "delegate-benchmark-"  # first letters of the shared memory


class Net(torch.nn.Module):
    """A few convolutions, of some milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64)
        self.body = torch.nn.Sequential(*(torch.nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths)))
        self.head = torch.nn.Linear(widths[-1], 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(image).relu().mean((2, 3)))


def save(path: Path, backend: str, model: str = SMALL) -> None:
    """Lower a model of torchvision, or the small network, with a dynamic batch."""
    torch.manual_seed(0)
    module: torch.nn.Module = Net()
    if model != SMALL:
        with libraries():
            import torchvision

        module = torchvision.models.get_model(model, weights=None)
    batch = torch.export.Dim("batch", min=1, max=MOST)
    exported = torch.export.export(module.eval(), (torch.zeros(2, 3, SIZE, SIZE),), dynamic_shapes=({0: batch},))
    delegate.to_backend(exported, backend).save(path)


def input_of(model: str) -> str:
    """Return the name of the input of a model that `save` lowers."""
    return "image" if model == SMALL else "x"


@contextmanager
def server(*arguments: str) -> Iterator[int]:
    """Yield the port of a server in another process."""
    command = [sys.executable, "-m", "delegate", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = 0
        for line in process.stdout:
            if line.startswith("serving"):
                break
            port = int(line.split("/")[2].rpartition(":")[2])  # http://host:port/...
        try:
            yield port
        finally:
            process.terminate()


def request(image: Any, name: str = "image") -> bytes:
    """Return the bytes of an inference request."""
    row = {"name": name, "shape": list(image.shape), "datatype": "FP32"}
    text = orjson.dumps({
        "inputs": [row | {"parameters": {"binary_data_size": image.nbytes}}],
        "parameters": {"binary_data_output": True},
    })  # fmt: skip
    lines = (
        "POST /v2/models/net/infer HTTP/1.1",
        "Host: localhost",
        f"Inference-Header-Content-Length: {len(text)}",
        f"Content-Length: {len(text) + image.nbytes}",
        "\r\n",
    )
    return "\r\n".join(lines).encode() + text + image.tobytes()


def shared_request(image: Any, name: str) -> bytes:
    """Return the bytes of an inference request whose image is in the region of shared memory `image`."""
    place = {"shared_memory_region": "image", "shared_memory_byte_size": image.nbytes}
    row = {"name": name, "shape": list(image.shape), "datatype": "FP32", "parameters": place}
    text = orjson.dumps({"inputs": [row], "parameters": {"binary_data_output": True}})
    head = f"POST /v2/models/net/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
    return head.encode() + text


@contextmanager
def region(port: int, image: Any) -> Iterator[Any]:
    """Yield an array in shared memory, which the server has as region `image`."""
    memory = shared_memory.SharedMemory(f"{SHARED}{os.getpid()}", create=True, size=image.nbytes)
    try:
        array = np.ndarray(image.shape, image.dtype, buffer=memory.buf)
        fields = orjson.dumps({"key": memory.name, "byte_size": image.nbytes})
        address = f"http://127.0.0.1:{port}/v2/systemsharedmemory/region/image/register"
        urllib.request.urlopen(address, fields).close()
        yield array
        del array
    finally:
        memory.close()
        memory.unlink()


def ask(connection: Connection, message: bytes) -> None:
    """Send a request, and read the complete response."""
    connection.begin(0.0)
    connection.socket.sendall(message)
    while not connection.receive():
        pass


@contextmanager
def client(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Yield another process of benchmarks.serving_client."""
    command = [sys.executable, "-m", "benchmarks.serving_client", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def connect(port: int, message: bytes) -> Connection:
    """Return a connection that waits for its answers."""
    connection = Connection(port, message)
    connection.socket.setblocking(True)
    return connection


def latency(path: Path, image: Any, name: str, count: int, options: Options) -> None:
    """Print the times of one client beside those of the program's own calls and of a server that does nothing."""
    columns = ("own call", "server that does nothing", "server", "server, shared memory")
    times: dict[str, list[float]] = {column: [] for column in columns}
    message = request(image, name)
    with (
        delegate.load(path, options=options.load) as program,
        server(f"net={path}", *options.arguments, "--shared-memory", SHARED) as port,
        client("floor") as floor,
        region(port, image) as place,
    ):
        assert floor.stdout is not None
        nothing, served = connect(int(floor.stdout.readline()), message), connect(port, message)
        reference = shared_request(image, name)
        short = connect(port, reference)

        def share() -> None:
            place[:] = image
            ask(short, reference)

        steps = (lambda: program(image), lambda: ask(nothing, message), lambda: ask(served, message), share)
        for number in range(count + 20):
            for row, step in zip(times.values(), steps, strict=True):
                start = time.perf_counter()
                step()
                if number >= 20:
                    row.append(time.perf_counter() - start)
        for connection in (nothing, served, short):
            connection.socket.close()
    own = times["own call"]
    print("| concurrency 1 | least, us | p50, us | p99, us | least over own | p50 over own |")
    print("|---|---|---|---|---|---|")
    for column, row in times.items():
        least, middle = min(row), statistics.median(row)
        cells = (least, middle, percentile(row, 99), least - min(own), middle - statistics.median(own))
        print(f"| {column} | {' | '.join(f'{cell * 1e6:.0f}' for cell in cells)} |")
    print()


def metric(port: int, name: str) -> float:
    """Return a metric of the server's process."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def batching(path: Path, message: bytes, options: Options, clients: int, count: int) -> None:
    """Print the rate of many clients beside that of the best batch of own calls; they take turns.

    The bound is the rate of a server whose only work is to receive requests and to call the program, on the cores that
    it shares with the clients. A server that drops requests has the CPU time of receiving them.
    """
    own, served, times = list[Rate](), list[float](), list[float]()
    share = count // ROUNDS  # requests of a round
    transports = list[float]()  # CPU seconds of client and server per request
    clients_cpu = seconds = 0.0
    with (
        delegate.load(path, options=options.load) as program,
        server(f"net={path}", *options.arguments) as port,
        client("floor") as floor,
    ):
        assert floor.stdout is not None
        floor_port, floor_cpu = int(floor.stdout.readline()), 0.0
        rows = options.batch
        drive(port, message, clients, 4 * clients)
        cpu = metric(port, "process_cpu_seconds_total")
        for _ in range(ROUNDS):
            own.append(offline(program, rows))
            start, used = time.perf_counter(), time.process_time()
            times += drive(port, message, clients, share)
            served.append(share / (time.perf_counter() - start))
            seconds += time.perf_counter() - start
            clients_cpu += time.process_time() - used
            used = time.process_time()
            drive(floor_port, message, clients, share)
            used, before, floor_cpu = time.process_time() - used, floor_cpu, float(floor.stdout.readline())
            transports.append((used + floor_cpu - before) / share)
        cpu = metric(port, "process_cpu_seconds_total") - cpu
    images, call = len(times), statistics.median(rate.cpu for rate in own)
    best, rate, transport = (statistics.median(row) for row in ([r.images for r in own], served, transports))
    p50, p99 = (percentile(times, part) * 1e3 for part in (50, 99))
    print(f"| {clients} clients | images/s | p50, ms | p99, ms | cores | CPU per image, us |")
    print("|---|---|---|---|---|---|")
    print(f"| own calls, {rows} rows | {best:.0f} | | | | {call * 1e6:.0f} |")
    print(f"| server | {rate:.0f} | {p50:.1f} | {p99:.1f} | {cpu / seconds:.2f} | {cpu / images * 1e6:.0f} |")
    print(f"| clients | | | | {clients_cpu / seconds:.2f} | {clients_cpu / images * 1e6:.0f} |")
    print(f"| server that does nothing, with clients | | | | | {transport * 1e6:.0f} |")
    ratio = statistics.median(a / b.images for a, b in zip(served, own, strict=True))
    bound = min(best, len(os.sched_getaffinity(0)) / (call + transport))
    print(f"\nthe server has {ratio:.2f} of own calls; the bound is {bound / best:.2f}\n")


def most_requests(port: int, message: bytes, clients: int, count: int) -> float:
    """Return the requests per second of many clients, the most of several runs."""
    rates = []
    for _ in range(RUNS):
        start = time.perf_counter()
        drive(port, message, clients, count // RUNS)
        rates.append(count // RUNS / (time.perf_counter() - start))
    return max(rates)


class PerfectQueue(NamedTuple):
    """A queue in which nothing but the measured times of calls and of the server's work takes time.

    Args:
        times: seconds of calls by rows, with the work of the server for each request, which follows from its most
            requests per second.
        way: seconds of a request in clients and sockets, which occupy no replica.
        rows: of a batch at most.
    """

    times: Times
    way: float
    rows: int

    def latencies(self, gaps: Iterator[float], count: int) -> list[float]:
        """Return the simulated seconds of requests."""
        return [self.way + t for t in simulate(Fleet(1, self.rows), gaps, self.times, count)]


def measure_queue(port: int, message: bytes, own: Times, rows: int, rate: float) -> PerfectQueue:
    """Return the perfect queue for a server with these own calls, and these most requests per second."""
    work = max(0.0, 1 / rate - 1 / capacity(own, rows))
    single = drive(port, message, 4, 200, even_gaps(0.1 * rate))
    way = max(0.0, statistics.median(single) - statistics.median(own[1]) - work)
    return PerfectQueue({n: [t + work * n for t in seconds] for n, seconds in own.items()}, way, rows)


def load(
    path: Path, image: Any, message: bytes, options: Options, clients: int, count: int, shares: Sequence[float]
) -> None:
    """Print the times of requests at shares of the most requests per second, beside those of a perfect queue.

    Each round measures the most requests again, because other work on the machine changes them.
    """
    kinds = {"random": random_gaps, "even": even_gaps}
    rounds: dict[tuple[float, str], list[tuple[float, ...]]] = {(s, kind): [] for s in shares for kind in kinds}
    with delegate.load(path, options=options.load) as program, server(f"net={path}", *options.arguments) as port:
        own = measure_calls(program, image, 500, options.batch)
        for _ in range(RUNS):
            most = most_requests(port, message, clients, count)
            queue = measure_queue(port, message, own, options.batch, most)
            for (share, kind), rows in rounds.items():
                rate, requests, gaps = share * most, int(SECONDS * share * most), kinds[kind]
                times = drive(port, message, 4 * clients, requests, gaps(rate))[int(WARM * requests) :]
                rows.append((rate, *spread(times), *spread(queue.latencies(gaps(rate), requests))))
    print(f"calls of up to {options.batch} rows, medians of {RUNS} rounds\n")
    print("| load | arrivals | requests/s | p50, ms | p99, ms | p99 / p50 | perfect queue: p50 | p99 | p99 / p50 |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (share, kind), rows in rounds.items():
        rate, *cells = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"| {share:.0%} | {kind} | {rate:.0f} | {' | '.join(f'{cell:.3g}' for cell in cells)} |")
    for share in shares:
        ratio = equal_times_percentile(share, 99) / equal_times_percentile(share, 50)
        print(f"\nequal service times and random arrivals have p99 / p50 = {ratio:.1f} at {share:.0%} load, exactly")
    print()


def hostile(path: Path, message: bytes, options: Options, clients: int, count: int) -> None:
    """Print the times of requests without and with hostile clients."""
    with server(f"net={path}", *options.arguments) as port:
        rate = 0.4 * most_requests(port, message, clients, count)
        print("| 40 % load | requests/s | p50, ms | p99, ms | p99 / p50 |\n|---|---|---|---|---|")
        for _ in range(2):
            for name in ("alone", "with hostile clients"):
                with client("hostile", str(port)) if name != "alone" else nullcontext():
                    time.sleep(1)
                    times = drive(port, message, 4 * clients, int(SECONDS * rate), random_gaps(rate))
                    cells = " | ".join(f"{cell:.3g}" for cell in spread(times))
                    print(f"| {name} | {rate:.0f} | {cells} |", flush=True)
    print()


def spread(times: Sequence[float]) -> tuple[float, float, float]:
    """Return p50 and p99 in ms, and their ratio."""
    p50, p99 = (percentile(times, part) * 1e3 for part in (50, 99))
    return p50, p99, p99 / p50


def long(path: Path, options: Options, clients: int, count: int) -> None:
    """Print the memory of the server during many small requests."""
    torch.manual_seed(0)
    exported = torch.export.export(torch.nn.Linear(8, 4).eval(), (torch.zeros(1, 8),))
    delegate.to_backend(exported, options.backend).save(path)
    message = request(np.zeros((1, 8), np.float32), "input")
    print("| requests | lost | seconds | requests/s | memory, MiB |\n|---|---|---|---|---|")
    with server(f"net={path}", *options.arguments) as port:
        drive(port, message, clients, 2000)
        first, lost, begin = memory(port), 0, time.perf_counter()
        for part in range(1, 11):
            start = time.perf_counter()
            lost += count // 10 - (answers := len(drive(port, message, clients, count // 10)))
            now = time.perf_counter()
            cells = f"{lost} | {now - begin:.0f} | {answers / (now - start):.0f} | {memory(port):.1f}"
            print(f"| {count // 10 * part} | {cells} |", flush=True)
        print(
            f"\nmemory at the start {first:.1f} MiB, at the end {memory(port):.1f} MiB; {lost} requests lost; "
            f"{time.perf_counter() - begin:.0f} s\n"
        )


def memory(port: int) -> float:
    """Return the MiB of the server's process."""
    return metric(port, "process_resident_memory_bytes") / 2**20


def fastest(path: Path, options: Options) -> int:
    """Return the rows of the fastest own calls with several rows, after printing all rates."""
    with delegate.load(path, options=options.load) as program:
        rounds = [{rows: offline(program, rows, 0.1).images for rows in BATCHES} for _ in range(ROUNDS)]
    rates = {rows: max(row[rows] for row in rounds) for rows in BATCHES}
    print("own calls, images/s by rows:", ", ".join(f"{rows}: {rate:.0f}" for rows, rate in rates.items()), "\n")
    return max(BATCHES[1:], key=lambda rows: rates[rows])


class Rate(NamedTuple):
    """Images per second, and seconds of CPU per image."""

    images: float
    cpu: float


def offline(program: Any, rows: int, seconds: float = 0.5) -> Rate:
    """Return the rate of own calls of a number of rows."""
    images = np.zeros((rows, 3, SIZE, SIZE), np.float32)
    program(images)
    calls, start, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        program(images)
        calls += 1
    count = calls * rows
    return Rate(count / (time.perf_counter() - start), (time.process_time() - cpu) / count)


def percentile(times: Sequence[float], part: int) -> float:
    return float(np.percentile(times, part))


@dataclass(frozen=True)
class Options:
    """The options of a server and of own calls.

    Args:
        backend: of the network.
        threads: of one call.
        batch: rows of a call of the server; 1: no batching.
    """

    backend: str
    threads: int
    batch: int = 1

    @property
    def load(self) -> dict[str, dict[str, Any]]:
        """The options of `delegate.load`."""
        return {self.backend: {"threads": self.threads}}

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options of `delegate serve`."""
        return ("--option", f"{self.backend}.threads={self.threads}", "--batch", str(self.batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART")
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--model", default=SMALL, help="of torchvision; default: a network of a few convolutions")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--batch", type=int, help="rows of a call; default: the fastest of own calls")
    parser.add_argument("--threads", type=int, default=1, help="of one call")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.4, 0.8], help="shares of the most requests/s")
    parser.add_argument("--count", type=int, default=100_000, help="requests of the long run")
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS[:-1]
    image = np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE), np.float32)
    name = input_of(arguments.model)
    message = request(image, name)
    single = Options(arguments.backend, arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.dlg")
        save(path, arguments.backend, arguments.model)
        gc.freeze()  # a full collection examines all of torch, and would stop the clients for 0.1 s
        if "latency" in parts:
            latency(path, image, name, arguments.requests, single)
        if {"batching", "load", "hostile"} & {*parts}:
            batched = replace(single, batch=arguments.batch or fastest(path, single))
            if "batching" in parts:
                batching(path, message, batched, arguments.clients, arguments.requests)
            if "load" in parts:
                load(path, image, message, batched, arguments.clients, arguments.requests, arguments.loads)
            if "hostile" in parts:
                hostile(path, message, batched, arguments.clients, arguments.requests)
        if "long" in parts:
            long(path, single, arguments.clients, arguments.count)


if __name__ == "__main__":
    main()
