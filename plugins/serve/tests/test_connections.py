"""Connections of greedy and slow clients, which take nothing from others, and get their answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import grpc
import pytest
from delegate_serve.runtime import connection, grpc_service, server

PAIR = json.dumps({"inputs": [{"name": n, "shape": [2], "datatype": "FP32", "data": [1, 2.5]} for n in "xy"]}).encode()
INFER = b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
MESSAGE = INFER % len(PAIR) + PAIR
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = (
    b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"%x\r\n%b\r\n0\r\n\r\n" % (len(PAIR), PAIR)
)
MOST = 10


class Gate:
    """Delays the calls of a model until it is opened, and counts them."""

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
def pair(serve: Any, programs: dict[str, Path]) -> Any:
    return serve({"pair": programs["pair"]}, max_body=100_000, timeout=20.0)


def read(client: socket.socket) -> bytes:
    """Return all that arrives until the server closes the connection."""
    answers = b""
    with suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            answers += part
    return answers


def wait_until(is_true: Any, seconds: float = 10.0) -> bool:
    deadline = monotonic() + seconds
    while not (found := is_true()) and monotonic() < deadline:
        sleep(0.005)
    return bool(found)


# -- many requests on one connection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [LIVE, MESSAGE, CHUNKED, b"GET / HTTP/1.1\r\n\r\n"], ids=range(4))
def test_the_requests_of_a_client_that_does_not_read_wait_in_its_system(
    pair: Any, message: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server keeps a few of them, and reads others when those are answered."""
    waiting, count = [0], connection._Http.on_headers_complete

    def record(http: Any) -> None:
        count(http)
        waiting.append(len(http.pipeline))

    monkeypatch.setattr(connection._Http, "on_headers_complete", record)
    with pair.connect() as client:
        client.settimeout(1.0)
        with suppress(TimeoutError):
            for _ in range(20):
                client.sendall(message * 500)
        assert pair.request("GET", "/v2/health/live").status == 200
        assert wait_until(lambda: len(waiting) > 1000)
    assert max(waiting) < 120


@pytest.mark.parametrize("message", [LIVE, MESSAGE, CHUNKED], ids=["get", "infer", "chunked"])
def test_all_requests_of_a_client_that_reads_are_answered(pair: Any, message: bytes) -> None:
    answers, count = b"", 1000
    with pair.connect() as client:
        last = message.replace(b"Host: a", b"Host: a\r\nConnection: close", 1)
        sender = Thread(target=client.sendall, args=(message * (count - 1) + last,))
        sender.start()
        answers = read(client)
        sender.join()
    assert answers.count(b"HTTP/1.1 200 ") == answers.count(b"HTTP/1.1 ") == count


def test_a_client_that_never_reads_is_disconnected(serve: Any, programs: dict[str, Path]) -> None:
    served = serve({"pair": programs["pair"]}, timeout=0.5)
    with served.connect() as client:
        client.settimeout(0.2)

        def is_closed() -> bool:
            try:
                client.sendall(METRICS * 200)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            return False

        assert wait_until(is_closed, 20)


# -- answers before the end of a request -------------------------------------------------------------------------------

HEADS = {  # name -> the head of a request, and the status of its answer
    "too large": (b"POST /v2/models/pair/infer HTTP/1.1\r\n", 413),
    "no model": (b"POST /v2/models/absent/infer HTTP/1.1\r\n", 404),
    "no path": (b"POST / HTTP/1.1\r\n", 404),
    "another verb": (b"POST /v2 HTTP/1.1\r\n", 405),
    "compressed": (b"POST /v2/models/pair/infer HTTP/1.1\r\nContent-Encoding: gzip\r\n", 415),
}


@pytest.mark.parametrize("framing", ["declared", "chunked"])
@pytest.mark.parametrize("kept", [b"close", b"keep-alive"])
@pytest.mark.parametrize("name", HEADS)
def test_a_client_that_still_sends_gets_its_answer(pair: Any, name: str, kept: bytes, framing: str) -> None:
    head, status = HEADS[name]
    body = bytes(5_000_000)
    if framing == "chunked":
        body = (b"10000\r\n" + bytes(0x10000) + b"\r\n") * 80 + b"0\r\n\r\n"
    field = b"Transfer-Encoding: chunked" if framing == "chunked" else b"Content-Length: %d" % len(body)
    with pair.connect() as client:
        client.sendall(b"%bHost: a\r\nConnection: %b\r\n%b\r\n\r\n" % (head, kept, field))
        sleep(0.02)  # the answer is on its way
        client.sendall(body)  # a reset is an error here
        if kept == b"keep-alive":
            client.sendall(LIVE.replace(b"Host", b"Connection: close\r\nHost"))
        answers = read(client)
    expected = [status] if kept == b"close" else [status, 200]
    assert [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]] == expected


def test_bodies_of_requests_that_are_answered_are_not_stored(pair: Any) -> None:
    with pair.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404 ")
        client.sendall(bytes(50_000))
        (http,) = pair.server.server_state.connections
        assert wait_until(lambda: http._body._received >= 50_000)
        assert http._body._data is None


def test_bytes_that_are_no_http_get_their_answer(pair: Any) -> None:
    with pair.connect() as client:
        client.sendall(b"\x16\x03\x01" * 1000)
        with suppress(ConnectionError):
            for _ in range(50):
                client.sendall(bytes(100_000))
        assert read(client).startswith(b"HTTP/1.1 400 ")
        start = monotonic()
    assert monotonic() - start < 5
    assert wait_until(lambda: not pair.server.server_state.connections)


# -- idle connections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", LIVE, MESSAGE, LIVE + b"\r\n", LIVE + b"\r\n\r\n", LIVE + b"GET"], ids=range(6))
def test_idle_connections_end_after_the_limit(serve: Any, programs: dict[str, Path], sent: bytes) -> None:
    served = serve({"pair": programs["pair"]}, timeout=1.0)
    with served.connect() as client:
        start = monotonic()
        client.sendall(sent)
        answers = read(client)
        assert 0.8 < monotonic() - start < 4
    assert answers.count(b"HTTP/1.1 200 ") == (sent != b"")


# -- many connections --------------------------------------------------------------------------------------------------


@pytest.fixture
def small(serve: Any, programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server of few connections."""
    monkeypatch.setattr(server, "MAX_CONNECTIONS", MOST)
    return serve({"pair": programs["pair"]}, timeout=20.0)


@contextmanager
def clients(served: Any, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(served.connect()))
            opened[-1].sendall(sent)
        sleep(0.1)
        yield opened


@pytest.mark.parametrize("sent", [b"", LIVE, LIVE[:10], MESSAGE[:-1], MESSAGE + MESSAGE[:-1]], ids=range(5))
def test_clients_that_wait_give_way_to_others(small: Any, sent: bytes) -> None:
    with clients(small, 3 * MOST, sent):
        for _ in range(3):
            assert small.request("GET", "/v2/health/live").status == 200
            assert small.request("GET", "/v2/health/ready").status == 200
            assert small.infer("pair", PAIR).status == 200
        assert len(small.server.server_state.connections) <= MOST + 1


def test_the_oldest_connection_gives_way(small: Any) -> None:
    with clients(small, MOST, LIVE) as opened:
        for client in (*opened, opened[0]):
            client.recv(1 << 16)
            client.sendall(LIVE)
            sleep(0.005)  # times are in milliseconds
        assert small.infer("pair", PAIR).status == 200
        assert read(opened[1]).count(b"HTTP/1.1 200 ") == 1
        for client in (opened[0], *opened[2:]):
            client.recv(1 << 16)
            client.sendall(LIVE)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_requests_that_run_do_not_give_way(small: Any) -> None:
    """Others are refused, but for the health of the server."""
    gate = Gate(small)
    with clients(small, MOST, MESSAGE) as opened, ThreadPoolExecutor(1) as pool:
        assert gate.begun.wait(20)
        assert small.request("GET", "/v2/health/live").status == 200
        assert small.request("GET", "/v2/health/ready").status == 200
        assert small.request("GET", "/metrics").status == 200
        refused = pool.submit(small.infer, "pair", PAIR).result()
        gate.open()
        assert all(client.recv(1 << 16).startswith(b"HTTP/1.1 200 ") for client in opened)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert refused.error == "too many connections are open: try again in 1 s"
    assert small.infer("pair", PAIR).status == 200


def test_idle_connections_of_grpc_give_way(
    serve: Any, programs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_service, "MAX_CONNECTIONS", 4)
    served = serve({"pair": programs["pair"]}, timeout=0.5)

    def is_live() -> bool:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{served.grpc.port}", options) as channel:
            try:
                channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=5)
            except grpc.RpcError:
                return False
        return True

    address = f"127.0.0.1:{served.grpc.port}"
    channels = [grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)]
    for channel in channels:
        channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=20)
    assert not is_live()  # the limit holds, also while this is open
    assert served.request("GET", "/v2/health/live").status == 200
    assert wait_until(is_live, 20)
    for channel in channels:
        channel.close()


# -- HEAD --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/pair", "/v2/models/pair/ready",
        "/v2/models/pair/versions/1", "/v1/models", "/absent", "/v2/models/absent", "/metrics",
    ],
)  # fmt: skip
def test_head_is_get_without_a_body(pair: Any, path: str) -> None:
    head, get = pair.request("HEAD", path), pair.request("GET", path)
    assert (head.status, head.body) == (get.status, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    if path != "/metrics":
        assert head.headers["content-length"] == get.headers["content-length"]
    with pair.connect() as client:  # the connection goes on
        message = b"HEAD %b HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode()
        client.sendall(message * 2 + LIVE.replace(b"Host", b"Connection: close\r\nHost"))
        answers = read(client)
    assert answers.count(b"HTTP/1.1 ") == 3
    assert answers.endswith(b'{"live":true}')


def test_head_of_paths_for_post(pair: Any) -> None:
    reply = pair.request("HEAD", "/v2/models/pair/infer")
    assert (reply.status, reply.headers["allow"], reply.body) == (405, "POST", b"")
