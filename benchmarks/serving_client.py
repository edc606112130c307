"""Clients for benchmarks.serving: many connections in one thread, hostile ones, and a server that does nothing.

python -m benchmarks.serving_client floor            prints its port, and drops the requests that it answers
python -m benchmarks.serving_client hostile PORT     sends what no client should, until it is ended
"""

from __future__ import annotations

import random
import selectors
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, islice, repeat
from typing import cast

END = b"\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + bytes(100)
HEAD = "POST /v2/models/net/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n"
IDLE = 2.0  # seconds after which a connection is opened again, since servers close those that are idle
SLOW = 100  # connections that send a byte now and then
LOST = 60.0  # seconds without any answer after which requests are lost
PAUSE = 0.02  # seconds between two requests that are wrong


def size_of(head: bytes) -> int:
    """Return the bytes that follow the headers of a response, which must be a result."""
    if not head.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(head.decode())
    return int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])


class Connection:
    """A connection that sends one request after another.

    Args:
        port: of a server on this machine.
        message: the bytes of a request.
    """

    def __init__(self, port: int, message: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._message = message
        self.unsent, self.start, self.used = memoryview(b""), 0.0, time.perf_counter()
        self._answer = b""

    def begin(self, start: float) -> None:
        """Begin a request whose time counts from `start`."""
        self.unsent, self.start, self._answer = memoryview(self._message), start, b""

    def send(self) -> None:
        """Send what the system takes."""
        self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def receive(self) -> bool:
        """Receive what has arrived; return True if the answer is complete."""
        data = b""
        with suppress(ConnectionResetError):
            data = self.socket.recv(1 << 16)
        if not data:
            raise SystemExit("the server closed a connection before its answer")
        self._answer += data
        head, end, body = self._answer.partition(END)
        return bool(end) and len(body) == size_of(head + b"\r\n")


def random_gaps(rate: float) -> Iterator[float]:
    """Yield the seconds from each request to the next, at random times: a Poisson process, and always the same one.

    Args:
        rate: requests per second.
    """
    numbers = random.Random(0)
    while True:
        yield numbers.expovariate(rate)


def even_gaps(rate: float) -> Iterator[float]:
    """Yield the seconds from each request to the next, all equal."""
    return repeat(1 / rate)


def drive(port: int, message: bytes, connections: int, count: int, gaps: Iterator[float] | None = None) -> list[float]:
    """Send requests, and return the seconds of each one that is answered.

    Args:
        port: of the server.
        message: the bytes of a request.
        connections: the number of connections.
        count: the number of requests.
        gaps: seconds from each request to the next. A request's seconds count from then on, also if no connection is
            free. None: each connection sends its next request when it has an answer.
    """
    selector = selectors.DefaultSelector()
    free = [Connection(port, message) for _ in range(connections)]
    first = time.perf_counter()
    due = deque(accumulate(islice(repeat(0.0) if gaps is None else gaps, count), initial=first))
    due.popleft()
    times: list[float] = []
    while len(times) < count:
        now = time.perf_counter()
        while free and due and due[0] <= now:
            connection, start = free.pop(), due.popleft()
            if now - connection.used > IDLE:
                connection.socket.close()
                connection = Connection(port, message)
            connection.begin(now if gaps is None else start)
            selector.register(connection.socket, selectors.EVENT_WRITE, connection)
        wait = max(due[0] - now, 0.0) if due and free else LOST
        ready = selector.select(wait)
        if not ready and wait == LOST:
            break
        for key, events in ready:
            connection = key.data
            if events & selectors.EVENT_WRITE:
                connection.send()
                if not connection.unsent:
                    selector.modify(connection.socket, selectors.EVENT_READ, connection)
            elif connection.receive():
                connection.used = time.perf_counter()
                times.append(connection.used - connection.start)
                selector.unregister(connection.socket)
                free.append(connection)
    for connection in free:
        connection.socket.close()
    return times


def floor() -> None:
    """Drop complete requests, and send an answer at once; print the CPU time whenever the last client has gone."""
    selector, memory, left = selectors.DefaultSelector(), memoryview(bytearray(1 << 20)), dict[socket.socket, int]()
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    selector.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listening:
                connection, _ = listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                left[connection] = 0
                continue
            connection = cast(socket.socket, key.fileobj)
            size = connection.recv_into(memory, left[connection])
            if not size:
                selector.unregister(connection)
                connection.close()
                del left[connection]
                if not left:
                    print(time.process_time(), flush=True)
                continue
            if not left[connection]:
                head, _, body = bytes(memory[:size]).partition(END)
                left[connection] = int(head.partition(b"\r\nContent-Length: ")[2].partition(b"\r\n")[0])
                size = len(body)
            left[connection] -= size
            if not left[connection]:
                connection.sendall(ANSWER)


def wrong_requests() -> list[bytes]:
    """Return requests with wrong lengths, sizes and numbers, and bytes that are no requests."""
    size = '{"inputs":[{"name":"image","shape":[2147483648,3,224,224],"datatype":"FP32","data":[]}]}'
    bodies = [size, size.replace("2147483648", "1").replace("[]", "[NaN]"), "[" * 100_000, "{", '{"inputs": 3}']
    requests = [HEAD.format(len(body)).encode() + body.encode() for body in bodies]
    short = HEAD.format(602_112).encode() + bytes(1000)  # the rest never comes
    long = HEAD.format(2).encode() + b"{}" + bytes(1000)
    header = b"\r\nInference-Header-Content-Length: 99999999\r\n\r\n"
    return [
        *requests,
        short,
        long,
        HEAD.format(10).encode()[:-4] + header + bytes(10),
        bytes(5000),
        b"GET /" + b"a" * 70_000,
    ]


def hostile(port: int) -> None:
    """Send wrong requests and slow ones, until this process is ended."""
    slow: list[socket.socket] = []
    wrong = wrong_requests()
    number = 0
    while True:
        number += 1
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(wrong[number % len(wrong)])
            connection.settimeout(0.05)
            connection.recv(1 << 16)
        while len(slow) < SLOW:
            slow.append(socket.create_connection(("127.0.0.1", port)))
            slow[-1].sendall(HEAD.format(1_000_000).encode()[: 20 + number % 60])
        try:
            slow[number % SLOW].sendall(b"a")
        except OSError:
            slow.pop(number % SLOW).close()
        time.sleep(PAUSE)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["floor"]:
            floor()
        case ["hostile", port]:
            hostile(int(port))
        case _:
            raise SystemExit(__doc__)
