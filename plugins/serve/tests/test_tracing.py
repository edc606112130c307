"""Spans of requests: an exporter in memory, and a collector that takes OTLP over HTTP."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from delegate_serve.runtime.errors import Disconnected, RequestError
from delegate_serve.runtime.settings import Telemetry
from delegate_serve.runtime.tracing import Tracing
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from tests.support.collector import collecting

from .conftest import HEADERS, PARENT, TRACE, Serve, tracing

IMAGES = np.zeros((2, 3, 8, 8), np.float32)


def infer(kind: Any, client: Any, headers: dict[str, str], images: np.ndarray = IMAGES) -> None:
    tensor = kind.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    client.infer("net", [tensor], headers=dict(headers))  # the client adds to it


def parents(spans: list[ReadableSpan]) -> dict[str, str | None]:
    """Return the name of each span's parent, or its identifier if it is a span of the client."""
    names = {span.context.span_id: span.name for span in spans if span.context}
    found = {}
    for span in spans:
        own = None if span.parent is None else span.parent.span_id
        found[span.name] = None if own is None else names.get(own, f"{own:016x}")
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time
    return found


def test_a_request_continues_the_trace_of_its_client(programs: dict[str, Path], serve: Serve) -> None:
    own, exporter = tracing(partitions=True)
    served = serve({"net": programs["net"]}, tracing=own)
    for kind, client in (
        (triton, served.client()),
        (triton_grpc, triton_grpc.InferenceServerClient(f"127.0.0.1:{served.grpc.port}")),
    ):
        exporter.clear()
        infer(kind, client, HEADERS)
        spans = list(exporter.get_finished_spans())
        partition = next(span.name for span in spans if span.name.startswith("partition "))
        assert parents(spans) == {"infer net": PARENT, "queue": "infer net", "run": "infer net", partition: "run"}
        assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
        attributes = {span.name: dict(span.attributes or {}) for span in spans}
        assert attributes["infer net"] == {"delegate.model": "net", "http.response.status_code": 200}
        assert attributes["run"] == {"delegate.requests": 1}
        assert attributes[partition] == {"delegate.backend": "xnnpack"}
        client.close()


def test_requests_of_a_batch(programs: dict[str, Path], serve: Serve) -> None:
    """Each has the span of the batch that they share."""
    own, exporter = tracing()
    served = serve({"net": programs["net"]}, tracing=own, batch=8, batch_delay=0.2)
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(infer, triton, served.client(), {}) for _ in range(4)]:
            done.result()
    spans = list(exporter.get_finished_spans())
    assert [dict(span.attributes or {}) for span in spans if span.name == "run"] == [{"delegate.requests": 4}] * 4
    assert [dict(span.attributes or {}) for span in spans if span.name == "batch"] == [{"delegate.rows": 8}] * 4
    assert parents(spans) == {"infer net": None, "queue": "infer net", "batch": "infer net", "run": "batch"}


def test_errors_and_samples(programs: dict[str, Path], serve: Serve) -> None:
    own, exporter = tracing(sample=0.0)
    served = serve({"net": programs["net"]}, tracing=own)
    infer(triton, served.client(), {})
    assert exporter.get_finished_spans() == ()
    with pytest.raises(triton.InferenceServerException):
        infer(triton, served.client(), HEADERS, IMAGES[:, :1])
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {})["http.response.status_code"] == 400
    assert "has the shape" in str(span.status.description)
    infer(triton, served.client(), {"traceparent": "00-nonsense"})


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 200),
        (RequestError(429, "later"), 429),
        (Disconnected(), 499),
        (asyncio.CancelledError(), 499),
        (ValueError("no request"), 500),
    ],
    ids=repr,
)
def test_the_status_of_a_span_is_that_of_the_answer(error: BaseException | None, status: int) -> None:
    own, exporter = tracing()
    with suppress(type(error) if error else ValueError), own.request("net"):
        if error is not None:
            raise error
    (span,) = exporter.get_finished_spans()
    assert dict(span.attributes or {}) == {"delegate.model": "net", "http.response.status_code": status}
    assert (span.status.status_code is StatusCode.ERROR) == (status in (429, 500))


def test_a_collector(programs: dict[str, Path], serve: Serve) -> None:
    with collecting() as (url, received):
        own = Tracing(Telemetry(url, service="images"))
        infer(triton, serve({"net": programs["net"]}, tracing=own).client(), HEADERS)
        own.close()
    (resource,) = received
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert attributes["service.name"] == "images"
    assert {span.name for scope in resource.scope_spans for span in scope.spans} == {"infer net", "queue", "run"}
    assert {span.trace_id.hex() for scope in resource.scope_spans for span in scope.spans} == {TRACE}
