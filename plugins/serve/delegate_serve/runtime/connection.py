"""Connection: uvicorn's protocol with limits on slow clients, whose bodies arrive at their final place.

uvicorn stops reading after each 64 KiB until the application takes them, and copies each body several times, which
takes most of an image request's time. Here the HTTP parser receives the heads, and chunked bodies. Other bodies
are received directly into the memory of their tensors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from delegate_serve.runtime.bodies import EXTENSION, Body
from delegate_serve.runtime.eager import run_until_it_waits
from delegate_serve.runtime.http import Application
from delegate_serve.runtime.settings import MAX_HEADERS, Settings

_BUFFER = 16 << 10  # bytes that are read at once
_HEADS = 2 << 10  # of them between bodies, since all requests in them are kept until those before are answered
_MANY_CHUNKS = 256  # of a body, in one buffer
_PAUSE = 0.02  # seconds without reading after so many, since each takes as long as a whole packet
_LINGER = 2.0  # seconds in which a client that sends no HTTP may read the answer
_ALWAYS = (b"/v2/health/", b"/metrics")  # paths that are answered whatever the number of connections


class Connection(asyncio.BufferedProtocol):
    """A connection that is closed if a request does not arrive in time, has too many headers, or is not read.

    Args:
        application: The server's application.
        settings: the limits.
        most: connections of the server. One more closes another that waits for its client.
        arguments: The arguments that uvicorn passes.
    """

    def __init__(self, application: Application, settings: Settings, most: int, **arguments: Any) -> None:
        self._http = _Http(application, settings, most, **arguments)
        self._buffer = memoryview(bytearray(_BUFFER))
        self._is_body = False  # the bytes that are being received

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._http.connection_made(_Transport(transport, self._http))

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._http.direct
        self._is_body = body is not None
        if body is not None:
            return body.place(self._buffer)
        return self._buffer if self._http.is_in_body else self._buffer[:_HEADS]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_body:
            self._http.body_received(nbytes)
        elif not self._http.is_deaf:
            self._http.data_received(self._buffer[:nbytes])  # type: ignore[arg-type]  # any buffer


class _Transport(asyncio.Transport):
    """A transport that sends the head of an answer and its first bytes in one step: two steps wake the client twice.

    If it is closed in the middle of a request, it still receives the rest: a client that sends would get a reset, and
    perhaps not the answer.

    Args:
        transport: The connection's transport.
        http: its protocol.
    """

    def __init__(self, transport: asyncio.Transport, http: _Http) -> None:
        super().__init__()
        self._transport, self._http, self._head = transport, http, b""
        self.is_ending = False  # nothing is sent any more
        self.abort = transport.abort  # type: ignore[method-assign]
        self.get_extra_info, self.get_write_buffer_size = transport.get_extra_info, transport.get_write_buffer_size  # type: ignore[method-assign]
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading  # type: ignore[method-assign]

    def write(self, data: Any) -> None:
        if self.is_closing():  # uvicorn does not tell all requests of a connection that it is lost
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

    @property
    def is_closed(self) -> bool:
        """Return True if nothing is received any more."""
        return self._transport.is_closing()

    def is_closing(self) -> bool:
        return self.is_ending or self.is_closed

    def close(self) -> None:
        self.flush()
        if not self._http.is_in_request:
            self._transport.close()
        elif not self.is_closing():
            self._transport.write_eof()
            self._transport.resume_reading()
            self.is_ending = True


class _Flow(FlowControl):
    """The flow of a connection that reads no further requests while one waits for those before it."""

    def __init__(self, transport: asyncio.Transport, waiting: Collection[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class _Http(HttpToolsProtocol):
    """The protocol of a connection."""

    def __init__(self, application: Application, settings: Settings, most: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._application, self._settings, self._most = application, settings, most
        self._body = Body([], 0, application.reserve)
        self.direct: Body | None = None  # the body that the parser does not get
        self.is_in_request = False  # a request has begun that is not complete
        self.is_deaf = False  # what arrives is dropped
        self._is_parsing = False
        self._header_bytes = 0  # of the request; -1 if they are complete
        self._chunks = 0  # of the bytes that are being parsed
        self._next: tuple[RequestResponseCycle, Any] | None = None  # a request whose head the parser has just read
        self._task: asyncio.Task[None] | None = None  # of the newest request that waits
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    transport: _Transport

    @property
    def is_in_body(self) -> bool:
        """Return True if a head is complete, but not its body."""
        return self.is_in_request and self._header_bytes < 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self.pipeline)
        self._heard = self.loop.time()
        self._begin(self._settings.timeout)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._end_unread()
        super().connection_lost(exc)
        if self._task is not None and self.cycle.disconnected:
            self._task.cancel()  # nobody waits for the answer

    def _make_room(self) -> bool:
        """Return False if too many connections are open, and none can be closed because it waits for its client."""
        if len(self.connections) <= self._most:
            return True
        opened = [each for each in self.connections if isinstance(each, _Http) and not each.transport.is_closed]
        if len(opened) <= self._most:
            return True
        waiting = [each for each in opened if each is not self and each._waits_for_client()]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: each._heard)
        oldest.transport.abort() if oldest.is_in_request else oldest.transport.close()
        return True

    def _waits_for_client(self) -> bool:
        is_idle = self.cycle is None or self.cycle.response_complete
        is_sent = self.flow.write_paused or (self.is_in_body and not self.pipeline)
        return is_idle or is_sent

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self.is_in_request = True
        self._end()  # it begins again if the request is not complete

    def on_headers_complete(self) -> None:
        self._header_bytes = -1
        self._body = Body(self.headers, self._settings.max_body, self._application.reserve)
        self.scope["extensions"] = {EXTENSION: self._body}  # type: ignore[dict-item]
        is_taken = self._make_room() or self.url.startswith(_ALWAYS)
        self.app = self._application if is_taken else self._application.refuse
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._chunks += 1
        self._body.write(body)
        self._wake_if_wrong()

    def on_message_complete(self) -> None:
        self.is_in_request = False
        self._end()
        super().on_message_complete()
        if self.transport.is_ending:
            self.transport.close()

    def on_response_complete(self) -> None:
        self.transport.flush()
        super().on_response_complete()
        self._heard = self.loop.time()
        if self.is_in_body and self.cycle.response_complete:
            self._body.drop()
        if self.transport.get_write_buffer_size():
            self._begin_unread()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_unread()

    def send_400_response(self, msg: str) -> None:
        self.is_in_request = self.is_deaf = True
        super().send_400_response(msg)
        self._begin(min(self._settings.timeout, _LINGER))

    def timeout_keep_alive_handler(self) -> None:
        if not self._has_unread_bytes():
            super().timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        was_in_headers = self._header_bytes >= 0
        self._is_parsing, self._chunks = True, 0
        super().data_received(data)
        self._is_parsing = False
        self._end_if_last()
        if self._chunks > _MANY_CHUNKS and not self.transport.is_closing():
            self.transport.pause_reading()
            self.loop.call_later(_PAUSE, self._read_again)
        if self._timer is None and (self.is_in_request or self.cycle is None or self.cycle.response_complete):
            self._begin(self._settings.timeout)
        self._start_next()
        if was_in_headers and self._header_bytes >= 0:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADERS:
                self.transport.abort()
        elif self.is_in_body and self._body.size is not None:
            self.direct = self._body

    def _read_again(self) -> None:
        if not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.resume_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._is_parsing:
            self._next = cycle, app
        elif not self.transport.is_closing():
            self._end_if_last()
            self._keep(self.loop.create_task(cycle.run_asgi(app)))

    def shutdown(self) -> None:
        self._end_if_last()

    def _end_if_last(self) -> None:
        """In a shutdown, close the connection after the newest request, unless the client has sent another one.

        That is known when the request is complete.
        """
        if not self._application.is_closing or self.transport.is_closed:
            return
        if not self.is_in_request and not self.pipeline and not self._has_unread_bytes():
            super().shutdown()

    def _has_unread_bytes(self) -> bool:
        with DefaultSelector() as selector:
            selector.register(self.transport.get_extra_info("socket").fileno(), EVENT_READ)
            return bool(selector.select(0))

    def _start_next(self) -> None:
        """Start a request. A complete one runs at once until it waits, which most small requests never do."""
        if self._next is None or self.transport.is_closing():
            return
        (cycle, app), self._next = self._next, None
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
        self._heard = self.loop.time()
        if self._body.wrote(size):
            self.direct = None
            self.parser = httptools.HttpRequestParser(self)  # the old one waits for the body
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.on_message_complete()
            self._end_if_last()
        else:
            self._wake_if_wrong()

    def _wake_if_wrong(self) -> None:
        """Answer now if the body is wrong, and drop its rest."""
        if self._body.is_wrong:
            self.cycle.message_event.set()

    def _begin(self, seconds: float) -> None:
        self._end()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

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
