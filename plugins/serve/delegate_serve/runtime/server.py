"""The server: uvicorn with limits on slow clients, and a shutdown that answers all requests that have arrived."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from delegate.errors import ConfigError
from delegate_serve.runtime.http import Application
from delegate_serve.runtime.settings import MAX_CONNECTIONS, MAX_HEADERS, Settings

if TYPE_CHECKING:
    from delegate_serve.runtime.grpc_service import GrpcServer

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but does not listen yet, so that clients wait for no model.

    Args:
        host: a name or an address.
        port: 0: any free one.

    Raises:
        ConfigError: the address cannot be used.
    """
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        what = f"cannot serve on port {port} of {host!r}: {error.strerror}"
        raise ConfigError(what, remedy="end the other server, or choose another --host or --port") from error
    return bound


class Server(uvicorn.Server):
    """A server of an application.

    Args:
        application: answers the requests.
        settings: the limits.
        on_start: called when clients can connect.
        grpc: a server that starts and stops with this one.
        reload: called at SIGHUP, on systems that have it.
    """

    def __init__(
        self,
        application: Application,
        settings: Settings,
        on_start: Callable[[], None] = lambda: None,
        grpc: GrpcServer | None = None,
        reload: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        protocol = type("Connection", (_Connection,), {"timeout": settings.timeout})
        config = uvicorn.Config(
            application,
            http=protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # clients must not be able to fill a disk
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=math.ceil(settings.timeout),
        )
        super().__init__(config)
        self._application, self._on_start, self._grpc, self._reload = application, on_start, grpc, reload
        self._reloads: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        if self._grpc is not None:
            await self._grpc.start()
        await super().startup(sockets)
        if self._reload is not None and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._begin_reload, self._reload)
        self._on_start()

    def _begin_reload(self, reload: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(reload())
        self._reloads.add(task)  # the loop has no reference of its own
        task.add_done_callback(self._reloads.discard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the requests that have arrived, and no others."""
        self._application.is_closing = True
        await asyncio.gather(super().shutdown(sockets), *([self._grpc.stop()] if self._grpc is not None else []))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down at SIGINT and SIGTERM, which do not end the process: a clean end is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Connection(HttpToolsProtocol):
    """A connection that is closed if a request does not arrive in time, has too many headers, or is not read."""

    timeout: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._end_unread()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._begin()

    def on_headers_complete(self) -> None:
        self._header_bytes = -1
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body if self.cycle.body else b"")
        if not self.cycle.body and not self.cycle.response_complete:
            self.cycle.body = body  # type: ignore[assignment]  # the application takes it as it is, without two copies
            if len(body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        self._end()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._begin_unread()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_unread()

    def data_received(self, data: bytes) -> None:
        was_in_headers = self._header_bytes >= 0
        super().data_received(data)
        if was_in_headers and self._header_bytes >= 0:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADERS:
                self.transport.abort()

    def _begin(self) -> None:
        self._end()
        self._timer = self.loop.call_later(self.timeout, self.transport.abort)

    def _begin_unread(self) -> None:
        self._end_unread()
        self._unread = self.loop.call_later(self.timeout, self._abort_if_unread)

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _abort_if_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def address_of(bound: socket.socket) -> str:
    """Return the host and the port of a socket as in a URL."""
    host, port, *_ = bound.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
