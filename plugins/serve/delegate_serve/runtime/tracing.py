"""Tracing: OpenTelemetry spans of requests, from times of the server and events of programs.

https://opentelemetry.io/docs/specs/semconv/ has the names of attributes, and https://www.w3.org/TR/trace-context/ the
headers of a request that belongs to a trace of its client.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import delegate
from delegate_serve.runtime.errors import GONE, RequestError, status_of
from delegate_serve.runtime.settings import Telemetry
from delegate_serve.runtime.timeline import CURRENT, CallTimes, Timeline

_W3C = TraceContextTextMapPropagator()
_NANOSECONDS = 1e9


class Tracing:
    """The spans of a server.

    Args:
        telemetry: the settings.
        processor: receives the spans; None: one that sends them to the collector of the settings.
    """

    def __init__(self, telemetry: Telemetry, processor: SpanProcessor | None = None) -> None:
        resource = Resource.create({"service.name": telemetry.service, "service.version": delegate.__version__})
        self._provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(telemetry.sample)), resource=resource)
        self._provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter(telemetry.endpoint)))
        self._tracer = self._provider.get_tracer("delegate_serve", delegate.__version__)
        self.has_partitions = telemetry.partitions

    @contextmanager
    def client(self, headers: Iterable[tuple[Any, Any]]) -> Iterator[None]:
        """Continue the trace of a client in a `with` block, if its headers or metadata name one."""
        carrier = {_text(name): _text(value) for name, value in headers if len(name) in (10, 11)}  # those of W3C
        token = contexts.attach(_W3C.extract(carrier))
        try:
            yield
        finally:
            contexts.detach(token)

    @contextmanager
    def request(self, model: str, kind: SpanKind = SpanKind.SERVER) -> Iterator[None]:
        """Record the request of a `with` block as a span, and its call as children."""
        with self._tracer.start_as_current_span(
            f"infer {model}", kind=kind, record_exception=False, set_status_on_exception=False
        ) as span:
            span.set_attribute("delegate.model", model)
            timeline = Timeline() if span.is_recording() else None
            token = CURRENT.set(timeline)
            status = 200
            try:
                yield
            except BaseException as error:
                status = status_of(error)
                if status != GONE:
                    what = error.message if isinstance(error, RequestError) else type(error).__name__
                    span.set_status(Status(StatusCode.ERROR, what))
                raise
            finally:
                CURRENT.reset(token)
                span.set_attribute("http.response.status_code", status)
                if timeline is not None and timeline.call is not None:
                    self._children(span, timeline.call)

    def close(self) -> None:
        """Send the spans that are left."""
        self._provider.shutdown()

    def _children(self, span: Span, call: CallTimes) -> None:
        parent = trace.set_span_in_context(span)
        offset = time.time_ns() - time.monotonic_ns()
        self._child("queue", parent, offset, call.arrived, call.taken)
        if call.requests > 1:
            parent = self._child("batch", parent, offset, call.taken, call.done, rows=call.rows)
        run = self._child("run", parent, offset, call.begin, call.end, requests=call.requests)
        offset = time.time_ns() - time.perf_counter_ns()  # of events
        for partition in call.partitions:
            start, end = partition.start / _NANOSECONDS, (partition.start + partition.duration) / _NANOSECONDS
            name = f"partition {partition.instruction.what}"
            self._child(name, run, offset, start, end, backend=partition.instruction.backend)

    def _child(self, name: str, parent: Any, offset: int, start: float, end: float, **attributes: Any) -> Any:
        """Record a span, and return the context of its children."""
        own = {f"delegate.{key}": value for key, value in attributes.items()}
        span = self._tracer.start_span(name, parent, attributes=own, start_time=offset + int(start * _NANOSECONDS))
        span.end(offset + int(end * _NANOSECONDS))
        return trace.set_span_in_context(span, parent)


def carrier() -> list[tuple[str, str]]:
    """Return the headers that continue the current trace in another process."""
    headers: dict[str, str] = {}
    _W3C.inject(headers)
    return list(headers.items())


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
