"""Connection: uvicorn's protocol with limits on slow clients, whose bodies arrive at their final place.

uvicorn stops reading after each 64 KiB until the application takes them, and copies each body several times. That takes
most of the time of a request with an image. Here the parser of HTTP gets the heads, and chunked bodies. Other bodies
are received directly into the memory of their tensors.
"""

from __future__ import annotations

import asyncio
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from delegate_serve.runtime.bodies import EXTENSION, Body
from delegate_serve.runtime.eager import run_until_it_waits
from delegate_serve.runtime.http import Application
from delegate_serve.runtime.settings import MAX_HEADERS, Settings

_BUFFER = 16 << 10
_MANY_CHUNKS = 256  # of a body, in one buffer
_PAUSE = 0.02  # seconds without reading after so many, since each takes as long as a whole packet


class Connection(asyncio.BufferedProtocol):
    """A connection that is closed if a request does not arrive in time, has too many headers, or is not read.

    Args:
        application: of the server.
        settings: the limits.
        arguments: of uvicorn.
    """

    def __init__(self, application: Application, settings: Settings, **arguments: Any) -> None:
        self._http = _Http(application, settings, **arguments)
        self._buffer = memoryview(bytearray(_BUFFER))
        self._is_body = False  # the bytes that are being received

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._http.connection_made(_Joining(transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._http.direct
        self._is_body = body is not None
        return self._buffer if body is None else body.place(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_body:
            self._http.body_received(nbytes)
        else:
            self._http.data_received(self._buffer[:nbytes])  # type: ignore[arg-type]  # any buffer


class _Joining(asyncio.Transport):
    """A transport that sends the head of an answer and its first bytes in one step: two steps wake the client twice.

    Args:
        transport: of the connection.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport, self._head = transport, b""
        self.abort, self.is_closing = transport.abort, transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info, self.get_write_buffer_size = transport.get_extra_info, transport.get_write_buffer_size  # type: ignore[method-assign]
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading  # type: ignore[method-assign]

    def write(self, data: Any) -> None:
        if self._transport.is_closing():  # uvicorn does not tell all requests of a connection that it is lost
            return
        if not self._head and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100 "):
            self._head = data
        else:
            self._transport.write(self._head + data)
            self._head = b""

    def flush(self) -> None:
        """Send the head of an answer that has no body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()


class _Http(HttpToolsProtocol):
    """The protocol of a connection."""

    def __init__(self, application: Application, settings: Settings, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._application, self._settings = application, settings
        self._body = Body([], 0, application.reserve)
        self.direct: Body | None = None  # the body that the parser does not get
        self._is_parsing = False
        self._chunks = 0  # of the bytes that are being parsed
        self._next: tuple[RequestResponseCycle, Any] | None = None  # a request whose head the parser has just read
        self._task: asyncio.Task[None] | None = None  # of the newest request that waits

    transport: _Joining

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._is_complete = True  # no request has begun that is not complete
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._end_unread()
        super().connection_lost(exc)
        if self._task is not None and self.cycle.disconnected:
            self._task.cancel()  # nobody waits for the answer

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._is_complete = False
        self._end()  # it begins again if the request is not complete

    def on_headers_complete(self) -> None:
        self._header_bytes = -1
        self._body = Body(self.headers, self._settings.max_body, self._application.reserve)
        self.scope["extensions"] = {EXTENSION: self._body}  # type: ignore[dict-item]
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._chunks += 1
        self._body.write(body)
        self._wake_if_wrong()

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._end()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.transport.flush()
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
        self._is_parsing, self._chunks = True, 0
        super().data_received(data)
        self._is_parsing = False
        if self._chunks > _MANY_CHUNKS and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_later(_PAUSE, self._read_again)
        if self._timer is None and (not self._is_complete or self.cycle is None or self.cycle.response_complete):
            self._begin()
        self._start_next()
        if was_in_headers and self._header_bytes >= 0:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADERS:
                self.transport.abort()
        elif not self._is_complete and self._header_bytes < 0 and self._body.size is not None:
            self.direct = self._body

    def _read_again(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._is_parsing:
            self._next = cycle, app
        else:
            self._end_if_last()
            self._keep(self.loop.create_task(cycle.run_asgi(app)))

    def shutdown(self) -> None:
        self._end_if_last()

    def _end_if_last(self) -> None:
        """In a shutdown, close the connection after the newest request, unless the client has sent another one."""
        if not self._application.is_closing:
            return
        has_other = self._has_unread_bytes() if self._is_complete else self._header_bytes >= 0
        if not has_other and not self.pipeline:
            super().shutdown()

    def _has_unread_bytes(self) -> bool:
        with DefaultSelector() as selector:
            selector.register(self.transport.get_extra_info("socket").fileno(), EVENT_READ)
            return bool(selector.select(0))

    def _start_next(self) -> None:
        """Start a request. A complete one runs at once until it waits, which most small requests never do."""
        if self._next is None:
            return
        (cycle, app), self._next = self._next, None
        self._end_if_last()
        if cycle.more_body:
            self._keep(self.loop.create_task(cycle.run_asgi(app)))
        elif (task := run_until_it_waits(cycle.run_asgi(app), self.loop)) is not None:
            self._keep(task)

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Keep the task of a request, so that a client that leaves ends it."""
        self._task = task
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def body_received(self, size: int) -> None:
        """Count bytes that have arrived at their place."""
        if self._body.wrote(size):
            self.direct = None
            self.parser = httptools.HttpRequestParser(self)  # the old one waits for the body
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.on_message_complete()
        else:
            self._wake_if_wrong()

    def _wake_if_wrong(self) -> None:
        """Answer now if the body is wrong, and drop its rest."""
        if self._body.is_wrong:
            self.cycle.message_event.set()

    def _begin(self) -> None:
        self._end()
        self._timer = self.loop.call_later(self._settings.timeout, self.transport.abort)

    def _begin_unread(self) -> None:
        self._end_unread()
        self._unread = self.loop.call_later(self._settings.timeout, self._abort_if_unread)

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
