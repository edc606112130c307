"""Calls that take long, or never end: they hold up neither the event loop nor the models of others."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

import grpc
import numpy as np
import orjson
import pytest
import torch
from delegate_serve.runtime import grpc_service
from delegate_serve.runtime.datatypes import dumps, loads, to_json
from delegate_serve.runtime.messages import CLASSES

import delegate
from delegate.program.dtypes import DType

Dim = torch.export.Dim
TABLE = delegate.KernelTable("serve test")
PAIR = {"inputs": [{"name": name, "shape": [2], "datatype": "FP32", "data": [1, 2.5]} for name in "xy"]}


@torch.library.custom_op("servetest::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@same.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@TABLE.kernel("servetest::same")
def same_kernel(x: Any, *, out: Any) -> None:
    out[...] = x


class Loop(torch.nn.Module):
    """Counts to n."""

    def forward(self, n: torch.Tensor) -> torch.Tensor:
        start = (torch.zeros((), dtype=torch.int64), n)
        return torch._higher_order_ops.while_loop(lambda i, n: i < n, lambda i, n: (i + 1, n.clone()), start)[0]  # type: ignore[no-any-return]


class Branch(torch.nn.Module):
    def forward(self, n: torch.Tensor) -> torch.Tensor:
        return torch.cond(n > 3, lambda n: n * 2, lambda n: n - 1, (n,))  # type: ignore[no-any-return]


class Scan(torch.nn.Module):
    def forward(self, n: torch.Tensor) -> torch.Tensor:
        return torch._higher_order_ops.map(lambda row: row * 2, n.reshape(1, 1).expand(4, 1))  # type: ignore[no-any-return]


class Fill(torch.nn.Module):
    """Has a size that is an element of its input."""

    def forward(self, n: torch.Tensor) -> torch.Tensor:
        size = n.item()
        torch._check(size >= 0)
        torch._check(size < 1000)
        return torch.ones(size).sum()  # type: ignore[call-overload, no-any-return]


class Own(torch.nn.Module):
    def forward(self, n: torch.Tensor) -> torch.Tensor:
        return same(n)


class Twice(torch.nn.Module):
    def forward(self, n: torch.Tensor) -> torch.Tensor:
        return n + n


class Times(torch.nn.Module):
    """Takes a number."""

    def forward(self, n: torch.Tensor, count: int) -> torch.Tensor:
        return n.reshape(1).expand(count).sum()


class State(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros((), dtype=torch.int64))

    def forward(self, n: torch.Tensor) -> torch.Tensor:
        self.total += n
        return self.total.clone()


N = torch.tensor(3)
SOURCES: dict[str, tuple[torch.nn.Module, tuple[Any, ...], Any]] = {  # name -> the module, inputs and dynamic sizes
    "loop": (Loop(), (N,), None),
    "branch": (Branch(), (N,), None),
    "scan": (Scan(), (N,), None),
    "fill": (Fill(), (N,), None),
    "own": (Own(), (N,), None),
    "state": (State(), (N,), None),
    "twice": (Twice(), (N,), None),
    "rows": (Twice(), (torch.zeros(3, 2, dtype=torch.int64),), ({0: Dim("rows", min=1), 1: Dim("width", min=1)},)),
    "times": (Times(), (N, 3), (None, Dim.DYNAMIC)),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of programs by name."""
    folder = tmp_path_factory.mktemp("long")
    files = {name: folder / f"{name}.dlg" for name in SOURCES}
    for name, (module, args, shapes) in SOURCES.items():
        exported = torch.export.export(module.eval(), args, dynamic_shapes=shapes)
        delegate.to_backend(exported, [], kernels=[TABLE]).save(files[name])
    return files


def tensor(data: Any, name: str = "n") -> dict[str, Any]:
    array = np.array(data)
    return {"name": name, "shape": list(array.shape), "datatype": "INT64", "data": array.reshape(-1).tolist()}


def body(*rows: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    return {"inputs": list(rows), "parameters": parameters}


class Spy:
    """Records whether the calls of a model run on the event loop."""

    def __init__(self, served: Any, name: str) -> None:
        self.worker = worker = served.models.by_name[name].worker
        self._run, self.seen, self.pause = worker._method, list[bool](), 0.0  # seconds of calls on the event loop
        worker._method = self

    def __call__(self, leaves: Any) -> Any:
        try:
            asyncio.get_running_loop()
            self.seen.append(True)
        except RuntimeError:
            self.seen.append(False)
        sleep(self.pause if self.seen[-1] else 0.0)
        return self._run(leaves)

    def runs_on_loop(self, ask: Callable[[], Any]) -> bool:
        """Return True if a call runs on the event loop sooner or later: on a busy machine a short call may be long."""
        for _ in range(100):
            assert ask().status == 200
            if self.seen[-1]:
                return True
        return False


@pytest.mark.parametrize("name", ["loop", "branch", "scan", "fill", "own"])
def test_data_that_may_make_a_call_long_keeps_it_off_the_event_loop(serve: Any, sources: Any, name: str) -> None:
    served = serve({name: sources[name]}, load={"kernels": [TABLE]})
    spy = Spy(served, name)
    for _ in range(6):
        assert served.infer(name, body(tensor(5))).status == 200
    assert spy.seen == [False] * 6


def test_calls_with_states_run_off_the_event_loop(serve: Any, sources: Any) -> None:
    served = serve({"state": sources["state"]})
    session = served.models._programs["state"].opened.sessions
    opened, created = Event(), session._program.context
    session._program.context = lambda: opened.wait(20) and created()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(served.infer, "state", body(tensor(5), sequence_id=1, sequence_start=True))
        sleep(0.1)
        assert served.request("GET", "/v2/health/live").status == 200
        assert not first.done()  # its context is being created
        opened.set()
        assert first.result().json["outputs"][0]["data"] == [5]
    assert served.infer("state", body(tensor(5), sequence_id=1)).json["outputs"][0]["data"] == [10]
    worker = served.models.by_name["state"].worker
    assert worker._short_sizes is None or not worker._is_bounded


def test_isolated_calls_run_off_the_event_loop(serve: Any, programs: dict[str, Path]) -> None:
    served = serve({"net": programs["net"]}, load={"isolate": True})
    spy = Spy(served, "net")
    row = {"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [0.5] * 192}
    for _ in range(6):
        assert served.infer("net", body(row)).status == 200
    assert spy.seen == [False] * 6


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("rows", [tensor([[1, 2, 3, 4]])], [tensor([[1], [2], [3], [4]])]),  # as many bytes
        ("rows", [tensor([[1, 2, 3, 4]])], [tensor([[1, 2]])]),
        ("rows", [tensor([[1, 2, 3, 4]])], [tensor([[1]])]),
        ("times", [tensor(1), tensor([4], "count")], [tensor(1), tensor([5], "count")]),
    ],
)
def test_a_call_of_other_sizes_may_take_another_time(
    serve: Any, sources: Any, name: str, one: list[Any], other: list[Any]
) -> None:
    served = serve({name: sources[name]})
    spy = Spy(served, name)
    for first, second in ((one, other), (other, one)):
        spy.worker._off_loop_until = 0.0  # a machine that is busy may have made a call long
        assert spy.runs_on_loop(lambda first=first: served.infer(name, body(*first)))  # type: ignore[misc]
        assert served.infer(name, body(*second)).status == 200
        assert not spy.seen[-1]


def test_a_long_call_ends_calls_on_the_event_loop(serve: Any, sources: Any) -> None:
    served = serve({"twice": sources["twice"]})
    spy = Spy(served, "twice")
    spy.pause = 0.05
    assert spy.runs_on_loop(lambda: served.infer("twice", body(tensor(1))))
    spy.pause = 0.0
    assert not spy.runs_on_loop(lambda: served.infer("twice", body(tensor(1))))


def test_a_loop_that_is_suddenly_long_holds_up_nobody(serve: Any, sources: Any) -> None:
    served = serve({"loop": sources["loop"], "twice": sources["twice"]}, threads=2)
    for _ in range(3):
        assert served.infer("loop", body(tensor(3))).status == 200
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(served.infer, "loop", body(tensor(100_000)))
        sleep(0.1)
        assert served.request("GET", "/v2/health/live").status == 200
        assert served.infer("twice", body(tensor(3))).json["outputs"][0]["data"] == [6]
        assert not long.done()
        assert long.result().json["outputs"][0]["data"] == [100_000]


class Gate:
    """Delays the calls of a model until it is opened."""

    def __init__(self, served: Any, name: str) -> None:
        worker = served.models.by_name[name].worker
        self._run, self._open, self.begun = worker._method, Event(), Event()
        worker._method = self
        self.open = self._open.set

    def __call__(self, leaves: Any) -> Any:
        self.begun.set()
        assert self._open.wait(20)
        return self._run(leaves)


@contextmanager
def leave_call(served: Any, path: str) -> Iterator[socket.socket]:
    """Begin a call, whose client leaves at the end."""
    text = orjson.dumps(body(tensor(3)))
    with served.connect() as client:
        client.sendall(
            b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(text), text)
        )
        yield client


@pytest.mark.parametrize("how", ["leaves", "is late"])
def test_a_call_that_nobody_waits_for_takes_no_thread_from_others(serve: Any, sources: Any, how: str) -> None:
    """The server has one thread, but the call goes on, and the thread that replaced its thread stays the only one."""
    files = {"twice": sources["twice"], "rows": sources["rows"]}
    served = serve(files, threads=1, timeout=20.0 if how == "leaves" else 0.5)
    served.models.by_name["twice"].worker._is_bounded = False  # the gate may be open after a millisecond
    for _ in range(3):
        gate = Gate(served, "twice")
        with leave_call(served, "/v2/models/twice/infer") as client:
            assert gate.begun.wait(20)
            if how == "is late":
                assert client.recv(100).startswith(b"HTTP/1.1 504")
        for _ in range(2):
            assert served.infer("rows", body(tensor([[4]]))).json["outputs"][0]["data"] == [8]
        gate.open()
        served.models.by_name["twice"].worker._method = gate._run
        while served.models.pool.has_calls:
            sleep(0.001)
    assert served.infer("twice", body(tensor(3))).json["outputs"][0]["data"] == [6]
    deadline = monotonic() + 10
    while len(alive := [t for t in served.models.pool._threads if t.is_alive()]) != 1 and monotonic() < deadline:
        sleep(0.01)
    assert len(alive) == 1


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")
def test_an_isolated_process_that_stops_holds_up_nobody(serve: Any, sources: Any, programs: dict[str, Path]) -> None:
    files = {"twice": sources["twice"], "net": programs["net"]}
    row = {"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [0.5] * 192}
    before = processes()
    served = serve(files, threads=1, timeout=2.0, load={"isolate": True})
    (process,) = processes() - before
    for _ in range(3):
        assert served.infer("net", body(row)).status == 200
    os.kill(process, signal.SIGSTOP)
    while not Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].startswith(" T"):
        sleep(0.001)
    try:
        with ThreadPoolExecutor(1) as pool:
            stuck: Future[Any] = pool.submit(served.infer, "net", body(row))
            sleep(0.2)
            assert served.request("GET", "/v2/health/live").status == 200
            assert not stuck.done(), stuck.result()
            assert stuck.result().status == 504, stuck.result().body
        assert served.infer("twice", body(tensor(3))).json["outputs"][0]["data"] == [6]
    finally:
        os.kill(process, signal.SIGCONT)
    deadline = monotonic() + 20
    while (status := served.infer("net", body(row)).status) != 200 and monotonic() < deadline:
        sleep(0.05)
    assert status == 200


def processes() -> set[int]:
    """Return the processes that this one has started."""
    return {int(n) for file in Path("/proc/self/task").glob("*/children") for n in file.read_text().split()}


@pytest.mark.parametrize("dtype", [DType.float32, DType.float16, DType.bfloat16, DType.int64, DType.bool, DType.uint8])
@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_000])
def test_large_results_are_written_in_parts(dtype: DType, size: int) -> None:
    """The JSON writer holds up all threads."""
    array = (np.arange(size) % 97).astype(dtype.numpy)
    expected = [[1.0] * size] if dtype is DType.bfloat16 else [array.tolist()]
    given = np.full(size, 0x3F80, np.uint16) if dtype is DType.bfloat16 else array
    assert loads(dumps([to_json(given, dtype, "x")]), "x") == expected


@pytest.mark.parametrize("field", ["contents", "shape", "inputs", "parameters"])
def test_messages_that_are_no_binary_data(serve: Any, sources: Any, field: str, monkeypatch: Any) -> None:
    """To parse them takes much longer than their bytes, and holds up all threads."""
    monkeypatch.setattr(grpc_service, "MAX_JSON", 1 << 16)
    served = serve({"rows": sources["rows"]})
    message = CLASSES["InferRequest"](model_name="rows")
    row = message.inputs.add(name="n", datatype="INT64", shape=[1 << 17, 1])
    if field == "contents":
        row.contents.int64_contents.extend([1] * (1 << 17))
    elif field == "shape":
        row.shape.extend([1] * (1 << 17))
    elif field == "inputs":
        for _ in range(1 << 16):
            message.inputs.add()
    else:
        for number in range(1 << 14):
            message.parameters[str(number)].bool_param = True
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc.port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(message.SerializeToString(), timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert "send tensors as raw_input_contents" in caught.value.details()  # type: ignore[attr-defined]
        message = CLASSES["InferRequest"](model_name="rows", raw_input_contents=[np.ones(1 << 17, np.int64).tobytes()])
        message.inputs.add(name="n", datatype="INT64", shape=[1 << 17, 1])
        answer = CLASSES["InferResponse"].FromString(call(message.SerializeToString(), timeout=20))
    assert answer.raw_output_contents == [np.full(1 << 17, 2, np.int64).tobytes()]
