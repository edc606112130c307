"""The short way of small requests: they run at once until they wait, and a thread that ends a call takes the next."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from queue import SimpleQueue
from threading import get_ident
from typing import Any

import pytest
from delegate_serve.runtime import connection
from delegate_serve.runtime.eager import run_until_it_waits
from delegate_serve.runtime.pool import Pool

PAIR = json.dumps({"inputs": [{"name": n, "shape": [2], "datatype": "FP32", "data": [1, 2.5]} for n in "xy"]}).encode()
MESSAGE = b"POST /v2/models/pair/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(PAIR) + PAIR
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
COUNT = ContextVar("count", default=0)


@pytest.mark.parametrize(
    "message", [MESSAGE, b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["infer", "live"]
)
def test_a_complete_request_needs_no_task(served: Any, message: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = list[Any]()

    def run(*args: Any) -> Any:
        tasks.append(run_until_it_waits(*args))
        return tasks[-1]

    served.infer("pair", PAIR)  # the first call is not known to be short
    monkeypatch.setattr(connection, "run_until_it_waits", run)
    with served.connect() as client:
        client.sendall(message)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    assert tasks == [None]


def test_requests_in_one_packet(served: Any) -> None:
    """All are answered in their order, the last one also if its end arrives later."""
    with served.connect() as client:
        client.sendall(MESSAGE * 3 + MESSAGE[:-5])
        client.sendall(MESSAGE[-5:] + b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert answers.count(b"HTTP/1.1 200 ") == 5
    assert answers.endswith(b'{"live":true}')


async def wait(future: Any, seen: list[Any]) -> None:
    token = COUNT.set(1)
    for _ in range(2):
        try:
            seen.append(await future())
        except (ValueError, asyncio.CancelledError) as error:
            seen.append(type(error))
    COUNT.reset(token)  # an error in another context


def test_a_coroutine_that_waits() -> None:
    """Its rest is a task with results, errors and the end of the task, in one context."""

    async def main() -> None:
        loop, seen, futures = asyncio.get_running_loop(), list[Any](), list[Any]()

        def future() -> Any:
            futures.append(loop.create_future())
            return futures[-1]

        task = run_until_it_waits(wait(future, seen), loop)
        assert task is not None
        assert COUNT.get() == 0
        futures[0].set_exception(ValueError())
        await asyncio.sleep(0.001)
        futures[1].set_result(3)
        await task
        assert seen == [ValueError, 3]
        task = run_until_it_waits(wait(future, seen), loop)
        assert task is not None
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.001)
        futures[3].set_result(4)
        await task
        assert seen[2:] == [asyncio.CancelledError, 4]

    asyncio.run(main())


def test_a_thread_takes_the_next_call_itself() -> None:
    pool, seen = Pool(2), SimpleQueue[tuple[int, int]]()

    def call(left: int) -> None:
        seen.put((left, get_ident()))
        if left:
            pool.submit(1, lambda: call(left - 1))

    pool.submit(1, lambda: call(20))
    calls = [seen.get() for _ in range(21)]
    pool.close()
    assert [left for left, _ in calls] == list(range(20, -1, -1))
    assert len({thread for _, thread in calls}) == 1
