"""The server of plugins/serve: its time over the program's own call, and the throughput of dynamic batching.

python -m benchmarks.serving [--backend NAME] [--requests N] [--clients N] [--batch N]

A small network takes an image of 600 KB in binary form. The server is another process, and clients are plain sockets.
First one client and the program's own calls take turns. Then many clients send at once, beside the best batch of the
program's own calls, which run before and after the server's. `--backend onnxruntime` serves ONNX Runtime in the same
way.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

import delegate

SIZE = 224
MOST = 64  # rows of a batch
BATCHES = (1, 2, 4, 8, 16, 32)


class Net(torch.nn.Module):
    """A few convolutions, of some milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64)
        self.body = torch.nn.Sequential(*(torch.nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in pairwise(widths)))
        self.head = torch.nn.Linear(widths[-1], 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(image).relu().mean((2, 3)))


def save(path: Path, backend: str) -> None:
    """Lower the network with a dynamic batch."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=MOST)
    images = torch.zeros(2, 3, SIZE, SIZE)
    exported = torch.export.export(Net().eval(), (images,), dynamic_shapes=({0: batch},))
    delegate.to_backend(exported, backend).save(path)


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


def request(image: Any) -> bytes:
    """Return the bytes of an inference request."""
    row = {"name": "image", "shape": list(image.shape), "datatype": "FP32"}
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


def size_of(head: bytes) -> int:
    """Return the bytes that follow the headers of a response, which must be a result."""
    if not head.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(head.decode())
    return int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])


def ask(connection: socket.socket, message: bytes) -> None:
    """Send a request, and read the complete response."""
    connection.sendall(message)
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    left = size_of(head) - len(body)
    while left:
        left -= len(connection.recv(left))


def latency(path: Path, image: Any, count: int) -> None:
    """Print the times of one client beside those of the program's own calls, in turns."""
    own: list[float] = []
    served: list[float] = []
    message = request(image)
    with (
        delegate.load(path) as program,
        server(f"net={path}") as port,
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(count + 20):
            start = time.perf_counter()
            program(image)
            middle = time.perf_counter()
            ask(connection, message)
            end = time.perf_counter()
            if number >= 20:
                own.append(middle - start)
                served.append(end - middle)
    over = statistics.median(served) - statistics.median(own)
    print("| concurrency 1 | p50, us | p99, us |\n|---|---|---|")
    for name, times in (("own call", own), ("server", served)):
        print(f"| {name} | {statistics.median(times) * 1e6:.0f} | {percentile(times, 99) * 1e6:.0f} |")
    print(f"\nthe server takes {over * 1e6:.0f} us over the program's own call\n")


async def throughput(port: int, message: bytes, clients: int, count: int) -> tuple[float, list[float]]:
    """Return the requests per second of many clients, and the seconds of each request."""
    times: list[float] = []

    async def client(requests: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(requests):
            start = time.perf_counter()
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(size_of(head))
            times.append(time.perf_counter() - start)
        writer.close()

    start = time.perf_counter()
    await asyncio.gather(*(client(count // clients) for _ in range(clients)))
    return len(times) / (time.perf_counter() - start), times


def offline(path: Path, seconds: float = 0.5) -> dict[int, float]:
    """Return the rows per second of the program's own calls, by the rows of a call."""
    rates = {}
    with delegate.load(path) as program:
        for rows in BATCHES:
            images = np.zeros((rows, 3, SIZE, SIZE), np.float32)
            program(images)
            calls, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                program(images)
                calls += 1
            rates[rows] = calls * rows / (time.perf_counter() - start)
    return rates


def percentile(times: Sequence[float], part: int) -> float:
    return float(np.percentile(times, part))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="xnnpack")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    image = np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.dlg")
        save(path, arguments.backend)
        latency(path, image, arguments.requests)
        before = offline(path)
        with server(f"net={path}", "--batch", str(arguments.batch)) as port:
            run = throughput(port, request(image), arguments.clients, arguments.requests)
            rate, times = asyncio.run(run)
        best = max(*before.values(), *offline(path).values())
    print(f"| {arguments.clients} clients | images/s | p50, ms | p99, ms |\n|---|---|---|---|")
    print(f"| best batch of own calls | {best:.0f} | | |")
    print(f"| server | {rate:.0f} | {percentile(times, 50) * 1e3:.1f} | {percentile(times, 99) * 1e3:.1f} |")
    print(f"\nthe server has {rate / best:.2f} of the best batch")


if __name__ == "__main__":
    main()
