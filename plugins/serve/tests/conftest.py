"""A server in a thread of the test process."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from time import sleep
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
import tritonclient.http as triton
from delegate_serve.runtime.grpc_service import GrpcServer, Service
from delegate_serve.runtime.http import Application
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.models import Models
from delegate_serve.runtime.server import Server, bind
from delegate_serve.runtime.settings import ModelFile, Settings, Telemetry
from delegate_serve.runtime.shared_memory import Regions
from delegate_serve.runtime.tracing import Tracing
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import delegate
from tests.support.lowering import assert_runs

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # of a client
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
TYPES = {  # datatype of the protocol -> type of torch
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "UINT16": torch.uint16,
    "UINT32": torch.uint32,
    "UINT64": torch.uint64,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}


class Reply(NamedTuple):
    """The answer to a plain HTTP request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json"
        return str(self.json["error"])


class Served:
    """A server in a thread.

    Args:
        models: name -> file.
        settings: the limits.
        adapters: Name -> folder, for the adapters of each model.
        tracing: records spans.
        load: arguments of `delegate.load`.
    """

    def __init__(
        self,
        models: Mapping[str, Path],
        settings: Settings,
        adapters: Mapping[str, Path] = MappingProxyType({}),
        tracing: Tracing | None = None,
        load: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        metrics = Metrics(tracing)
        files = {name: ModelFile(path, settings, adapters=adapters, load=load) for name, path in models.items()}
        self.models = Models(files, metrics, settings)
        bound = bind("127.0.0.1", 0)
        self.port = bound.getsockname()[1]
        self.regions = Regions(settings.shared_memory)
        application = Application(self.models, settings, metrics, self.regions)
        service = Service(self.models, application.is_ready, application.reserve, tracing, self.regions)
        self.grpc = GrpcServer(service, "127.0.0.1:0", settings)
        self.server = Server(application, settings, grpc=self.grpc)
        self._thread = Thread(target=self.server.run, args=([bound],))
        self._thread.start()
        while not self.server.started:
            sleep(0.001)

    def request(self, verb: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request on a new connection; a body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(verb, path, data, dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def infer(self, model: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """Send an inference request."""
        return self.request("POST", f"/v2/models/{model}/infer", body, headers)

    def client(self, **settings: Any) -> triton.InferenceServerClient:
        """Return a client of Triton's."""
        return triton.InferenceServerClient(f"127.0.0.1:{self.port}", **settings)

    def connect(self) -> socket.socket:
        """Return a connection for bytes that no client sends."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def metric(self, name: str) -> float:
        """Return a metric by its name and labels, 0 if there is none yet."""
        lines = self.request("GET", "/metrics").body.decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def close(self) -> None:
        """Shut the server down as SIGTERM does."""
        self.server.should_exit = True
        self._thread.join()
        self.regions.close()
        self.models.__exit__(None, None, None)


Serve = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A function that starts a server of models by name, with settings."""
    with ExitStack() as stack:

        def start(
            models: Mapping[str, Path],
            adapters: Any = MappingProxyType({}),
            tracing: Tracing | None = None,
            load: Mapping[str, Any] = MappingProxyType({}),
            **settings: Any,
        ) -> Served:
            served = Served(models, Settings(**settings), adapters, tracing, load)
            stack.callback(served.close)
            return served

        yield start


def tracing(**settings: Any) -> tuple[Tracing, InMemorySpanExporter]:
    """Return the spans of a server, and what has them when they end."""
    exporter = InMemorySpanExporter()
    return Tracing(Telemetry("", **settings), SimpleSpanProcessor(exporter)), exporter


class Flip(torch.nn.Module):
    """Reverses rows, in any type."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flip(1)


class Pair(torch.nn.Module):
    """Has two inputs and two outputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": x + y, "product": x * y}


class Flips(torch.nn.Module):
    """Has inputs of all types after one byte, so that their binary data is not aligned."""

    def forward(self, flag: torch.Tensor, rows: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"flag": ~flag, **{name: row.flip(0) for name, row in rows.items()}}


class Double(torch.nn.Module):
    """Takes any sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class Net(torch.nn.Module):
    """An image classifier on XNNPACK."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(image).relu().mean((2, 3)))


class Mean(torch.nn.Module):
    """Has rows that depend on each other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0, keepdim=True)


class Lookup(torch.nn.Module):
    """Fails for indices out of range."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class Counter(torch.nn.Module):
    """Has a state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total.clone()


class Scale(torch.nn.Module):
    """Multiplies the state of a counter."""

    def __init__(self, counter: Counter) -> None:
        super().__init__()
        self.counter = counter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter.total *= x
        return self.counter.total.clone()


class Count(Scale):
    """Adds to the state of a counter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.counter(x)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of programs by name."""
    folder = tmp_path_factory.mktemp("programs")
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=64)

    def export(module: torch.nn.Module, *args: torch.Tensor, dynamic: bool = False) -> torch.export.ExportedProgram:
        shapes = tuple({0: batch} for _ in args) if dynamic else None
        return torch.export.export(module.eval(), args, dynamic_shapes=shapes)

    counter = Counter()
    types = {name.lower(): export(Flip(), torch.zeros(2, 3).to(dtype)) for name, dtype in TYPES.items()}
    rows = {name: torch.zeros(4).to(dtype) for name, dtype in TYPES.items()}
    anything = torch.export.Dim.DYNAMIC
    sizes = {
        name: torch.export.export(
            Double(), (torch.zeros(2, 2, 2, dtype=TYPES[name]),), dynamic_shapes=((anything, anything, anything),)
        )
        for name in ("FP32", "INT32")
    }
    lowered = {
        "flips": delegate.to_backend(torch.export.export(Flips(), (torch.tensor(True), rows)), []),
        "sizes": delegate.to_backend(sizes, []),
        "types": delegate.to_backend(types, []),
        "pair": delegate.to_backend(export(Pair(), torch.zeros(2), torch.zeros(2)), []),
        "net": delegate.to_backend(export(Net(), torch.zeros(2, 3, 8, 8), dynamic=True), "xnnpack"),
        "mean": delegate.to_backend(export(Mean(), torch.zeros(2, 3), dynamic=True), []),
        "lookup": delegate.to_backend(export(Lookup(), torch.zeros(2, 3, dtype=torch.int64), dynamic=True), []),
        "counter": delegate.to_backend(
            {"forward": export(Count(counter), torch.zeros(3)), "scale": export(Scale(counter), torch.zeros(3))}, []
        ),
    }
    assert_runs(lowered["net"], "xnnpack")
    files = {name: folder / f"{name}.dlg" for name in lowered}
    for name, program in lowered.items():
        program.save(files[name])
    return files


@pytest.fixture(scope="module")
def served(programs: dict[str, Path]) -> Iterator[Served]:
    """A server of several models without batching."""
    server = Served(
        {name: programs[name] for name in ("types", "pair", "net", "lookup", "flips", "sizes")},
        Settings(max_body=1 << 20),
    )
    yield server
    server.close()


@contextmanager
def serving(*args: str, run: tuple[str, ...] = ("-m", "delegate")) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the process of `delegate serve`, and the URL that it prints last."""
    command = [sys.executable, "-W", "error", *run, "serve", "--port", "0", *args]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = ""
        for line in process.stdout:
            if line.startswith("serving"):
                break
            url = line.split()[0].rstrip(",") if line.startswith("http") else url
        try:
            yield process, url
        finally:
            process.kill()
