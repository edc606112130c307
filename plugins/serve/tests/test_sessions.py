"""Conversations with a program that has states: each client has its own, through Triton's clients."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from delegate.errors import BackendFailed


@pytest.fixture
def counter(serve: Any, programs: dict[str, Path]) -> Any:
    return serve({"counter": programs["counter"]}, sessions=2, session_timeout=0.2)


def count(served: Any, number: float, session: int | str | None, model: str = "counter", **turn: bool) -> Any:
    """Send one request over HTTP, and return its first number, or its status and error."""
    row = {"name": "x", "shape": [3], "datatype": "FP32", "data": [number] * 3}
    parameters = {f"sequence_{key}": value for key, value in ({"id": session} | turn).items() if value is not None}
    reply = served.infer(model, {"inputs": [row], "parameters": parameters})
    return reply.json["outputs"][0]["data"][0] if reply.status == 200 else (reply.status, reply.error)


def test_each_session_has_its_own_states(counter: Any) -> None:
    assert count(counter, 1, 7, start=True) == 1
    assert count(counter, 5, "b", start=True) == 5
    assert [count(counter, 1, 7), count(counter, 1, "b"), count(counter, 1, 7)] == [2, 6, 3]
    assert count(counter, 10, 7, "counter.scale") == 30  # the methods of a program share the states
    assert count(counter, 1, 7, start=True) == 1  # begins again
    assert count(counter, 1, 7, end=True) == 2
    status, error = count(counter, 1, 7)
    assert status == 400
    assert error == "program 'counter' has no session '7': it has ended or never begun, so begin with sequence_start"


def test_a_request_without_a_session(counter: Any) -> None:
    status, error = count(counter, 1, None)
    assert status == 400
    assert "program 'counter' has states, but the request has no sequence_id: begin with a sequence_id" in error


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_clients_of_triton(counter: Any, protocol: str) -> None:
    triton = triton_http if protocol == "http" else triton_grpc
    port = counter.port if protocol == "http" else counter.grpc.port
    given = triton.InferInput("x", [3], "FP32").set_data_from_numpy(np.ones(3, np.float32))
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        turns = [{"sequence_start": True}, {}, {"sequence_end": True}]
        results = [client.infer("counter", [given], sequence_id=3, **turn) for turn in turns]
        assert [result.as_numpy("output").tolist() for result in results] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]
        with pytest.raises(Exception, match="has no session '3'"):
            client.infer("counter", [given], sequence_id=3)


def test_too_many_sessions(counter: Any) -> None:
    """One that nobody has used for long gives way to a new one."""
    assert [count(counter, 1, number, start=True) for number in (1, 2)] == [1, 1]
    status, error = count(counter, 1, 3, start=True)
    assert status == 429
    assert "program 'counter' has 2 sessions, and all are in use" in error
    sleep(0.25)
    assert count(counter, 1, 2) == 2
    assert count(counter, 1, 3, start=True) == 1
    assert count(counter, 1, 1)[0] == 400
    assert count(counter, 1, 2) == 3


def test_a_session_in_use_does_not_give_way(counter: Any) -> None:
    worker = counter.models.by_name["counter"].worker
    jobs, opened = worker._call, Event()

    def wait(batch: Any) -> Any:
        assert opened.wait(20)
        return jobs(batch)

    worker._call = wait
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(count, counter, 1, number, start=True) for number in (1, 2)]
        sleep(0.4)
        assert count(counter, 1, 3, start=True)[0] == 429
        opened.set()
        assert [future.result() for future in running] == [1, 1]


def test_a_failed_call_ends_its_session(counter: Any) -> None:
    """It may have written some states, but a wrong request has written none."""
    assert count(counter, 1, 1, start=True) == 1
    assert counter.infer("counter", {"inputs": [], "parameters": {"sequence_id": 1}}).status == 400
    assert count(counter, 1, 1) == 2
    worker = counter.models.by_name["counter"].worker
    call = worker._call

    def fail(batch: Any) -> Any:
        raise BackendFailed("the device is gone")

    worker._call = fail
    assert count(counter, 1, 1)[0] == 500
    worker._call = call
    assert count(counter, 1, 1)[0] == 400
    assert count(counter, 1, 1, start=True) == 1
