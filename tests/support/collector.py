"""A collector of OpenTelemetry that takes spans by OTLP over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class _Handler(BaseHTTPRequestHandler):
    received: list[Any]

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        data = self.rfile.read(int(self.headers["content-length"]))
        data = gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data
        assert self.path == "/v1/traces"
        self.received.extend(ExportTraceServiceRequest.FromString(data).resource_spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def collecting() -> Iterator[tuple[str, list[Any]]]:
    """Yield the URL of a collector, and the messages ResourceSpans that it has received."""
    handler = type("Handler", (_Handler,), {"received": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", handler.received
        finally:
            server.shutdown()
            thread.join()
