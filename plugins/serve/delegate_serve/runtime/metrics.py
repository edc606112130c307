"""Prometheus metrics of a server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

if TYPE_CHECKING:
    from delegate_serve.runtime.tracing import Tracing

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of all models, in a registry of their own.

    Args:
        tracing: records spans of requests, too.
    """

    def __init__(self, tracing: Tracing | None = None) -> None:
        self.tracing = tracing
        self._registry = own = CollectorRegistry()
        PlatformCollector(own)
        ProcessCollector(registry=own)
        model = ("model",)
        self._requests = Counter("delegate_requests", "Requests by HTTP status", ("model", "status"), registry=own)
        self._waiting = Gauge("delegate_queue_requests", "Requests that wait for a call", model, registry=own)
        self._seconds = Histogram(
            "delegate_request_seconds", "From a complete request to its answer", model, registry=own, buckets=_SECONDS
        )
        self._runs = Histogram("delegate_run_seconds", "Calls of the method", model, registry=own, buckets=_SECONDS)
        self._batches = Histogram(
            "delegate_batch_requests", "Requests that share a call", model, registry=own, buckets=_ROWS
        )

    def model(self, name: str, waiting: Callable[[], float]) -> ModelMetrics:
        """Return the metrics of one model; `waiting` returns the number of requests in its queue."""
        self._waiting.labels(name).set_function(waiting)
        return ModelMetrics(
            name, self._requests, self._seconds.labels(name), self._runs.labels(name), self._batches.labels(name)
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class ModelMetrics:
    """The metrics of one model.

    Args:
        name: The model's name.
        requests: counts requests by model and status.
        seconds, runs, batches: of this model.
    """

    def __init__(self, name: str, requests: Counter, seconds: Histogram, runs: Histogram, batches: Histogram) -> None:
        self._seconds, self._runs, self._batches = seconds, runs, batches
        self._answers = functools.cache(lambda status: requests.labels(name, str(status)))

    def answered(self, status: int, seconds: float) -> None:
        """Count a request."""
        self._answers(status).inc()
        self._seconds.observe(seconds)

    def ran(self, requests: int, seconds: float) -> None:
        """Count a call."""
        self._batches.observe(requests)
        self._runs.observe(seconds)
