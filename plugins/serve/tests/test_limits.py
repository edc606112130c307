"""Limits on body size, queue, time and connections, slow clients, and the shutdown during requests."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from delegate_serve.runtime import bodies, http

import delegate
from delegate.errors import BackendFailed

PAIR = {"inputs": [{"name": name, "shape": [2], "datatype": "FP32", "data": [1, 2.5]} for name in "xy"]}
HEAD = b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"


class Gate:
    """Delays the calls of a model until it is opened, and counts them."""

    def __init__(self, served: Any, name: str = "pair") -> None:
        worker = served.models.by_name[name].worker
        self._run, self._open, self.calls = worker._method, threading.Event(), 0
        worker._method = self

    def __call__(self, leaves: Any) -> Any:
        self.calls += 1
        assert self._open.wait(20)
        return self._run(leaves)

    def open(self) -> None:
        self._open.set()

    def wait(self, calls: int) -> None:
        """Wait until so many calls have begun."""
        while self.calls < calls:
            sleep(0.001)


def wait_for_queue(served: Any, length: int) -> None:
    while served.models.by_name["pair"].worker.waiting < length:
        sleep(0.001)


def test_a_full_queue(serve: Any, programs: dict[str, Path]) -> None:
    """One request runs and two wait, so the fourth is refused; the others are answered."""
    served = serve({"pair": programs["pair"]}, queue=2)
    gate = Gate(served)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(served.infer, "pair", PAIR)
        gate.wait(1)
        others = [pool.submit(served.infer, "pair", PAIR) for _ in range(2)]
        wait_for_queue(served, 2)
        refused = served.infer("pair", PAIR)
        assert served.request("GET", "/v2/health/live").status == 200
        gate.open()
        assert [f.result().status for f in (first, *others)] == [200] * 3
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert "model 'pair' has 2 requests in its queue: try again in" in refused.error
    assert served.metric('delegate_requests_total{model="pair",status="429"}') == 1


def test_requests_of_clients_that_leave_are_not_run(serve: Any, programs: dict[str, Path]) -> None:
    """One runs, and its result is dropped, while others wait, and leave the queue. The next client gets its result."""
    served = serve({"pair": programs["pair"]})
    gate = Gate(served)
    body = json.dumps(PAIR).encode()
    with ThreadPoolExecutor(1) as pool:
        clients = [served.connect() for _ in range(5)]
        for number, client in enumerate(clients):
            client.sendall(HEAD.replace(b"100", b"%d" % len(body)) + body)
            gate.wait(1)
            wait_for_queue(served, number)
        for client in clients:
            client.close()
        until = monotonic() + 5
        while served.metric('delegate_requests_total{model="pair",status="499"}') < 5:
            assert monotonic() < until
            sleep(0.001)
        last = pool.submit(served.infer, "pair", PAIR)
        wait_for_queue(served, 5)
        gate.open()
        assert last.result().status == 200
    assert gate.calls == 2


@pytest.mark.parametrize("timeout", [None, 50_000])
def test_time_limits(serve: Any, programs: dict[str, Path], timeout: int | None) -> None:
    """A request that waits too long is never run; one that runs too long is answered without its result."""
    served = serve({"pair": programs["pair"]}, timeout=20.0 if timeout else 0.05)
    body = PAIR | ({"parameters": {"timeout": timeout}} if timeout else {})
    gate = Gate(served)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(served.infer, "pair", body)
        gate.wait(1)
        waiting = pool.submit(served.infer, "pair", body)
        slow, late = running.result(), waiting.result()
    assert slow.status == 504
    assert slow.error == "model 'pair' did not answer within 0.05 s"
    assert late.status == 429
    assert "the request waited 0.05 s in the queue of model 'pair'" in late.error
    assert late.headers["retry-after"] == "1"
    gate.open()
    assert served.infer("pair", PAIR).status == 200
    assert gate.calls == 2


@pytest.mark.parametrize("is_chunked", [True, False])
def test_the_size_of_a_body(serve: Any, programs: dict[str, Path], is_chunked: bool) -> None:
    """The rest of a body that is too large is dropped, so that the client can read the answer."""
    served = serve({"pair": programs["pair"]}, max_body=10_000)
    with served.connect() as connection:
        if is_chunked:
            body = b"1000\r\n" + bytes(0x1000) + b"\r\n"
            head = b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head + body * 20 + b"0\r\n\r\n")
        else:
            connection.sendall(HEAD.replace(b"100\r", b"80000\r") + bytes(80_000))
        assert b"HTTP/1.1 413 " in connection.recv(1 << 16)
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"HTTP/1.1 200 " in connection.recv(1 << 16)


def test_the_size_of_json(serve: Any, programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MAX_JSON", 1 << 20)
    served = serve({"pair": programs["pair"]})
    reply = served.infer("pair", b" " * (1 << 20) + b"{}")
    assert reply.status == 413
    assert "more than 1 MiB of JSON: send tensors as binary data" in reply.error


def test_the_memory_of_all_bodies(serve: Any, programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that have arrived count, and not those that clients have declared."""
    monkeypatch.setattr(http, "BODIES_IN_MEMORY", 2)
    served = serve({"pair": programs["pair"]}, max_body=10_000)
    connections = [served.connect() for _ in range(5)]
    for connection in connections:
        connection.sendall(HEAD.replace(b"100\r", b"10000\r"))
    assert served.infer("pair", PAIR).status == 200
    for connection in connections[:2]:
        connection.sendall(bytes(9_990))
    deadline = monotonic() + 10
    while (reply := served.infer("pair", PAIR)).status == 200 and monotonic() < deadline:
        sleep(0.01)
    assert reply.status == 429
    assert reply.headers["retry-after"] == "1"
    for connection in connections:
        connection.close()
    while served.infer("pair", PAIR).status != 200 and monotonic() < deadline:
        sleep(0.01)
    assert served.infer("pair", PAIR).status == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v2/mod", HEAD, HEAD + b"{"], ids=["nothing", "line", "head", "body"])
def test_slow_clients_are_disconnected(serve: Any, programs: dict[str, Path], sent: bytes) -> None:
    served = serve({"pair": programs["pair"]}, timeout=0.2)
    with served.connect() as connection:
        start = monotonic()
        connection.sendall(sent)
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""
        assert 0.1 < monotonic() - start < 10


def test_a_client_that_sends_a_byte_at_a_time_is_disconnected(serve: Any, programs: dict[str, Path]) -> None:
    served = serve({"pair": programs["pair"]}, timeout=0.3)

    def send(connection: Any) -> None:
        for byte in HEAD * 10:
            connection.sendall(bytes([byte]))
            sleep(0.01)

    with served.connect() as connection, pytest.raises(ConnectionError):
        send(connection)


class Wide(torch.nn.Module):
    """Has a result of 16 MB, more than the buffers of the system take."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(4_000_000) * 2


@pytest.mark.parametrize("is_last", [True, False])
def test_clients_that_do_not_read_are_disconnected(serve: Any, tmp_path: Path, is_last: bool) -> None:
    delegate.to_backend(torch.export.export(Wide(), (torch.zeros(1),)), []).save(tmp_path / "wide.dlg")
    served = serve({"wide": tmp_path / "wide.dlg"}, timeout=0.5)
    row = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    body = json.dumps({"inputs": [row], "parameters": {"binary_data_output": True}})
    head = f"POST /v2/models/wide/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    last = "Connection: close\r\n" if is_last else ""
    connections = served.server.server_state.connections
    with served.connect() as connection:
        connection.sendall(f"{head}{last}\r\n{body}".encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        deadline = monotonic() + 10
        while connections and monotonic() < deadline:
            sleep(0.02)
        assert not connections
    assert served.request("GET", "/v2/health/ready").status == 200


def test_slow_clients_do_not_hold_up_others(serve: Any, programs: dict[str, Path]) -> None:
    served = serve({"pair": programs["pair"]})
    connections = [served.connect() for _ in range(100)]
    for connection in connections:
        connection.sendall(HEAD[:-2])
    for _ in range(20):
        assert served.infer("pair", PAIR).status == 200
        for connection in connections:
            connection.sendall(b"A: b\r\n")
    for connection in connections:
        connection.close()


def test_a_shutdown_answers_what_has_arrived(serve: Any, programs: dict[str, Path]) -> None:
    """Also what waits in the queue; nothing new is accepted, and the server is not ready."""
    served = serve({"pair": programs["pair"]})
    gate = Gate(served)
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(served.infer, "pair", PAIR)
        gate.wait(1)
        waiting = [pool.submit(served.infer, "pair", PAIR) for _ in range(2)]
        wait_for_queue(served, 2)
        served.server.should_exit = True
        while not served.server._application.is_closing:
            sleep(0.01)
        sleep(0.1)
        with pytest.raises(ConnectionError):
            served.request("GET", "/v2/health/ready")
        gate.open()
        assert [f.result().status for f in (running, *waiting)] == [200] * 3
    assert gate.calls == 3


def test_readiness_during_a_shutdown(serve: Any, programs: dict[str, Path]) -> None:
    served = serve({"pair": programs["pair"]})
    served.server._application.is_closing = True
    assert served.request("GET", "/v2/health/ready").status == 503
    assert served.request("GET", "/v2/models/pair/ready").status == 503
    assert served.request("GET", "/v2/health/live").status == 200


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (BackendFailed("the device is on fire"), "model 'pair' failed: the device is on fire"),
        (RuntimeError("a secret"), "model 'pair' failed: RuntimeError"),
    ],
)
def test_a_model_that_fails(serve: Any, programs: dict[str, Path], error: Exception, message: str) -> None:
    """Errors that are not of this project may have anything in their texts, so clients do not get these."""
    served = serve({"pair": programs["pair"]})
    worker = served.models.by_name["pair"].worker
    run = worker._method

    def fail(leaves: Any) -> Any:
        raise error

    worker._method = fail
    reply = served.infer("pair", PAIR)
    assert (reply.status, reply.error) == (500, message)
    worker._method = run
    assert served.infer("pair", PAIR).status == 200


def test_memory_is_flat(serve: Any, programs: dict[str, Path]) -> None:
    """The bodies of answered requests are free, also of those with errors."""
    served = serve({"pair": programs["pair"]})
    for body in (PAIR, {"inputs": []}, b"{"):
        served.infer("pair", body)
    assert served.server._application._in_memory == 0


def test_a_body_of_tiny_chunks(served: Any) -> None:
    """It is read in parts with pauses, so that it does not delay other requests; it is answered all the same."""
    body = json.dumps(PAIR).encode() + b" " * 20_000
    head = b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with served.connect() as connection:
        start = monotonic()
        connection.sendall(head + chunks + b"0\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert monotonic() - start > 6 * 0.02  # a pause after each 16 KiB
