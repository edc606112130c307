"""The server: uvicorn with limits on slow clients, and a shutdown that answers all requests that have arrived."""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from delegate.errors import ConfigError
from delegate_serve.runtime.connection import Connection
from delegate_serve.runtime.http import Application
from delegate_serve.runtime.settings import MAX_CONNECTIONS, Settings

if TYPE_CHECKING:
    from delegate_serve.runtime.grpc_service import GrpcServer

_READ = 0.02  # seconds in which the requests are read that have arrived before a shutdown
_TURNS = 5  # of the event loop after that: each accepts connections, but on a busy machine none may fit into the time
_LATE = 0.5  # seconds for the clients of requests that are cancelled
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
        on_shutdown: called when the server begins to shut down.
        on_force: called at a second SIGINT.

    Attributes:
        unfinished: requests that the end of a shutdown did not wait for.
    """

    def __init__(
        self,
        application: Application,
        settings: Settings,
        on_start: Callable[[], None] = lambda: None,
        grpc: GrpcServer | None = None,
        reload: Callable[[], Coroutine[Any, Any, None]] | None = None,
        on_shutdown: Callable[[], None] = lambda: None,
        on_force: Callable[[], None] = lambda: None,
    ) -> None:
        config = uvicorn.Config(
            application,
            http=functools.partial(Connection, application, settings, MAX_CONNECTIONS),  # type: ignore[arg-type]
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # clients must not be able to fill a disk
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=settings.timeout,  # type: ignore[arg-type]  # any number
        )
        super().__init__(config)
        self._application, self._on_start, self._grpc, self._reload = application, on_start, grpc, reload
        self._timeout, self._on_shutdown, self._on_force = settings.timeout, on_shutdown, on_force
        self.unfinished = 0
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
        """Answer the requests that have arrived, and no others; those that are not done in time with the status 503."""
        self._application.is_closing = True
        self._on_shutdown()
        await asyncio.sleep(_READ)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(self._timeout, self._cancel)
        stops = [] if self._grpc is None else [self._grpc.stop(self._timeout + _LATE)]
        await asyncio.gather(super().shutdown(sockets), *stops)

    def _cancel(self) -> None:
        """Answer the requests that are left at once, and drop clients that do not take the answer."""
        self._count()
        self._application.is_over = True
        for task in list(self.server_state.tasks):
            task.cancel()
        if self._grpc is not None:
            self._grpc.cancel()
        asyncio.get_running_loop().call_later(_LATE, self._abort)

    def _count(self) -> None:
        """Count the requests that have no answer."""
        waiting = sum(len(getattr(connection, "pipeline", ())) for connection in list(self.server_state.connections))
        self.unfinished = len(self.server_state.tasks) + waiting + (self._grpc.requests if self._grpc else 0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit:
            self._count()
            self._on_force()

    def _abort(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down at SIGINT and SIGTERM, which do not end the process: a clean end is not a failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def address_of(bound: socket.socket) -> str:
    """Return the host and the port of a socket as in a URL."""
    host, port, *_ = bound.getsockname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
