"""The end of a server: whatever its clients and libraries do, each request gets an answer, and it ends in time."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as triton_grpc

import delegate

from .conftest import serving

PAIR = json.dumps({"inputs": [{"name": n, "shape": [2], "datatype": "FP32", "data": [1, 2.5]} for n in "xy"]}).encode()
HEAD = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
MESSAGE = HEAD % (b"pair", len(PAIR)) + PAIR
SIGNALS = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="the system has no such signals")
IN_TIME = 4.0  # seconds beyond the limit, of which the server itself may use one


class Loop(torch.nn.Module):
    """Counts to n."""

    def forward(self, n: torch.Tensor) -> torch.Tensor:
        start = (torch.zeros((), dtype=torch.int64), n)
        return torch._higher_order_ops.while_loop(lambda i, n: i < n, lambda i, n: (i + 1, n.clone()), start)[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a program whose calls take as long as a request says."""
    path = tmp_path_factory.mktemp("loop") / "loop.dlg"
    delegate.to_backend(torch.export.export(Loop(), (torch.tensor(3),)), []).save(path)
    return path


def counting(steps: int) -> bytes:
    """Return a request for `loop`."""
    row = {"name": "n", "shape": [], "datatype": "INT64", "data": [steps]}
    body = json.dumps({"inputs": [row]}).encode()
    return HEAD % (b"loop", len(body)) + body


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def port_of(url: str) -> int:
    return int(url.split(":")[2].partition("/")[0])


def receive_all(client: socket.socket) -> bytes:
    """Return all that arrives until the server closes the connection."""
    with client:
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def statuses(answers: bytes) -> list[int]:
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


def stop(process: int) -> None:
    """Stop a process, and wait until it has stopped."""
    os.kill(process, signal.SIGSTOP)
    while not Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].startswith(" T"):
        sleep(0.001)


@SIGNALS
@pytest.mark.parametrize("pipelined", [1, 16])
def test_requests_that_arrived_before_the_signal_are_answered(programs: dict[str, Path], pipelined: int) -> None:
    """On kept connections and on new ones, over gRPC, too. The server reads none of them before the signal."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        grpc_port = free.getsockname()[1]
    with serving(str(programs["pair"]), "--grpc-port", str(grpc_port)) as (process, url):
        kept = [connect(port_of(url)) for _ in range(8)]
        for client in kept:
            client.sendall(MESSAGE)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        inputs = [triton_grpc.InferInput(n, [2], "FP32").set_data_from_numpy(np.ones(2, np.float32)) for n in "xy"]
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as triton, ThreadPoolExecutor(1) as pool:
            triton.infer("pair", inputs)
            stop(process.pid)
            for client in kept:
                client.sendall(MESSAGE * pipelined)
            new = [connect(port_of(url)) for _ in range(8)]
            for client in new:
                client.sendall(MESSAGE)
            called = pool.submit(triton.infer, "pair", inputs)
            sleep(0.2)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            assert called.result().as_numpy("sum").tolist() == [2.0, 2.0]
        assert [statuses(receive_all(client)) for client in kept] == [[200] * pipelined] * 8
        assert [statuses(receive_all(client)) for client in new] == [[200]] * 8
        assert process.communicate(timeout=20) == ("ended: all requests are answered\n", "")
        assert process.returncode == 0


@SIGNALS
@pytest.mark.parametrize("isolate", ["", "killed", "stopped"])
def test_it_ends_in_time_with_0(programs: dict[str, Path], loop: Path, isolate: str) -> None:
    """A call cannot be ended, and a library may hang in its end. That an idle process has died is not a failure."""
    options = ("--isolate", str(programs["net"])) if isolate else (str(programs["pair"]),)
    with serving(str(loop), *options, "--timeout", "1") as (process, url):
        if isolate:
            os.kill(worker_of(process.pid), signal.SIGKILL if isolate == "killed" else signal.SIGSTOP)
        late = connect(port_of(url))
        late.sendall(counting(0 if isolate else 10_000_000))
        sleep(0.2)
        process.send_signal(signal.SIGTERM)
        begin = monotonic()
        assert statuses(receive_all(late)) == [200 if isolate else 504]
        stdout, stderr = process.communicate(timeout=20)
        assert monotonic() - begin < 1 + IN_TIME
    assert (process.returncode, stdout, stderr) == (0, "ended: all requests are answered\n", "")


def worker_of(process: int) -> int:
    """Return the process that runs the delegates of a server."""
    children = [n for f in Path(f"/proc/{process}/task").glob("*/children") for n in f.read_text().split()]
    (worker,) = [n for n in children if "runtime.isolated" in Path(f"/proc/{n}/cmdline").read_text()]
    return int(worker)


@SIGNALS
def test_requests_that_take_too_long_get_503(loop: Path) -> None:
    """None is dropped, and the server does not say that all are answered."""
    with serving(str(loop), "--timeout", "1") as (process, url):
        clients = [connect(port_of(url)) for _ in range(3)]
        for client in clients:
            client.sendall(counting(20_000) * 10)
        sleep(0.2)
        process.send_signal(signal.SIGTERM)
        begin = monotonic()
        answers = [statuses(receive_all(client)) for client in clients]
        stdout, _ = process.communicate(timeout=20)
        assert monotonic() - begin < 1 + IN_TIME
    assert [len(each) for each in answers] == [10] * 3
    seen = {status for each in answers for status in each}
    assert {503} < seen <= {200, 429, 503, 504}
    count = sum(each.count(503) for each in answers)
    assert (process.returncode, stdout) == (0, f"ended before {count} requests were done\n")


@SIGNALS
def test_a_second_interrupt_ends_it_at_once(loop: Path) -> None:
    with serving(str(loop)) as (process, url), connect(port_of(url)) as client:
        client.sendall(counting(10_000_000))
        sleep(0.2)
        process.send_signal(signal.SIGINT)
        sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=5)
    assert (process.returncode, stdout, stderr) == (0, "ended before 1 request was done\n", "")


class Gate:
    """Delays the calls of a model until it is opened."""

    def __init__(self, served: Any, name: str = "pair") -> None:
        worker = served.models.by_name[name].worker
        self._run, self._open, self.begun = worker._method, Event(), Event()
        worker._method = self
        self.open = self._open.set

    def __call__(self, leaves: Any) -> Any:
        self.begun.set()
        assert self._open.wait(20)
        return self._run(leaves)


@pytest.fixture
def shutting(serve: Any, programs: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """A function that starts a server, lets a client do something, and begins its shutdown."""
    threads = []

    def begin(act: Callable[[Any], Any], timeout: float = 0.5) -> tuple[Any, Any]:
        served = serve({"pair": programs["pair"]}, timeout=timeout)
        done = act(served)
        served.server.should_exit = True
        threads.append(served._thread)
        return served, done

    yield begin
    for thread in threads:
        thread.join()


def ends(served: Any, seconds: float = 0.5 + IN_TIME) -> bool:
    served._thread.join(seconds)
    return not served._thread.is_alive()


def test_the_last_answer_says_so(shutting: Any) -> None:
    """A client that sends its next request elsewhere loses none."""
    gate = None

    def act(served: Any) -> socket.socket:
        nonlocal gate
        gate, client = Gate(served), served.connect()
        client.sendall(MESSAGE)
        assert gate.begun.wait(20)
        return client  # type: ignore[no-any-return]

    served, client = shutting(act, 20.0)
    while not served.server._application.is_closing:
        sleep(0.001)
    sleep(0.1)
    gate.open()  # type: ignore[attr-defined]
    answer = receive_all(client)
    assert statuses(answer) == [200]
    assert b"\r\nconnection: close" in answer.partition(b"\r\n\r\n")[0]
    assert ends(served, 5)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", []),
        (MESSAGE[:20], []),
        (MESSAGE[:-1], []),
        (MESSAGE + MESSAGE[:-1], [200]),
        (MESSAGE * 3 + MESSAGE[:10], [200] * 3),
    ],
    ids=["nothing", "head", "body", "second body", "second head"],
)
def test_requests_that_do_not_arrive_in_time(shutting: Any, sent: bytes, expected: list[int]) -> None:
    def act(served: Any) -> socket.socket:
        client = served.connect()
        client.sendall(sent)
        sleep(0.1)
        return client  # type: ignore[no-any-return]

    served, client = shutting(act)
    answers = b""
    with client, suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            answers += part
    assert statuses(answers) == expected
    assert ends(served)


def test_clients_that_do_not_read(serve: Any, tmp_path: Path) -> None:
    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.expand(4_000_000) * 2

    delegate.to_backend(torch.export.export(Wide(), (torch.zeros(1),)), []).save(tmp_path / "wide.dlg")
    served = serve({"wide": tmp_path / "wide.dlg"}, timeout=1.0)
    row = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [row], "parameters": {"binary_data_output": True}}).encode()
    with served.connect() as client:
        client.sendall((HEAD % (b"wide", len(body)) + body) * 3)
        assert client.recv(12) == b"HTTP/1.1 200"
        served.server.should_exit = True
        assert ends(served, 1 + IN_TIME)


def test_a_second_request_in_the_shutdown_of_a_busy_client(shutting: Any) -> None:
    """It has a limit of its own, but does not keep the server: its connection ends with the first answer."""

    def ask(served: Any, answers: list[bytes]) -> None:
        with served.connect() as client:
            while True:
                try:
                    client.sendall(MESSAGE)
                    answers.append(client.recv(1 << 16))
                except ConnectionError:
                    return
                if not answers[-1] or b"connection: close" in answers[-1]:
                    return

    answers: list[list[bytes]] = [[] for _ in range(4)]

    def act(served: Any) -> list[Thread]:
        threads = [Thread(target=ask, args=(served, each)) for each in answers]
        for thread in threads:
            thread.start()
        sleep(0.3)
        return threads

    served, threads = shutting(act, 20.0)
    assert ends(served, 5)
    for thread in threads:
        thread.join()
    for each in answers:
        assert len(each) > 1
        assert b"connection: close" in each[-1]
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in each)
