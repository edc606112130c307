"""The process that runs the delegates of a program. It serves each in a thread, and ends with the program."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from delegate.errors import BackendFailed, DelegateError
from delegate.plugins import AUTHOR, load_object, one_line
from delegate.runtime.backend import Array, BackendRuntime, Delegate
from delegate.runtime.delegates import open_blob
from delegate.runtime.isolation.channel import CLOSE, Channel, Tensors

_LONGEST = 4000  # characters of each part of an error


def main(control: int) -> None:
    """Serve until the program ends.

    Args:
        control: descriptor of the socket over which delegates are requested.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected here, and its core is of no use
    requests, runtimes = Channel(socket.socket(fileno=control)), dict[str, BackendRuntime]()
    with contextlib.suppress(OSError, EOFError):
        requests.send()
        while True:
            message, (blob, end) = requests.receive_with_files()
            _take(runtimes, message, blob, Channel(socket.socket(fileno=end)))
    os._exit(0)  # libraries that a file has confused get no chance to hang in their own ends


def _take(runtimes: dict[str, BackendRuntime], message: Mapping[str, Any], blob: int, channel: Channel) -> None:
    """Answer a request for a delegate: first that it was taken, then that the delegate was created."""
    with contextlib.suppress(OSError):  # the program does not wait any more
        channel.send()
        channel.send(_answer(partial(_open, runtimes, message, blob, channel)))


def _open(runtimes: dict[str, BackendRuntime], message: Mapping[str, Any], blob: int, channel: Channel) -> None:
    """Create a delegate and serve it in its own thread."""
    name = message["runtime"]
    if name not in runtimes:
        runtimes[name] = cast("Callable[[], BackendRuntime]", load_object(name))()
    size = os.fstat(blob).st_size
    content = memoryview(mmap.mmap(blob, size, access=mmap.ACCESS_READ)) if size else memoryview(b"")
    os.close(blob)
    first, *data = (content[start:end] for start, end in message["parts"])
    delegate = open_blob(runtimes[name], first, data, message["compile_specs"], trust_code=message["trust_code"])
    threading.Thread(target=_Server(delegate, channel).serve, daemon=True).start()


class _Server:
    """Runs a delegate on its program's requests."""

    def __init__(self, delegate: Delegate, channel: Channel) -> None:
        self._delegate, self._channel = delegate, channel
        self._memory: mmap.mmap
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []

    def serve(self) -> None:
        """Answer until the program closes the channel."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                message, files = self._channel.receive_with_files()
                self._channel.send(_answer(partial(self._handle, message, files)))

    def _handle(self, message: Any, files: Sequence[int]) -> None:
        if message is None:
            self._delegate.execute(self._inputs, self._outputs)
        elif message == CLOSE:
            self._inputs, self._outputs = [], []
            self._delegate.close()
        else:
            self._set_tensors(message["inputs"], Tensors.from_json(message["tensors"]), *files)

    def _set_tensors(self, count: int, tensors: Tensors, file: int | None = None) -> None:
        """Place the arrays in the memory that the program shares; a file belongs to a new memory."""
        if file is not None:
            self._memory = mmap.mmap(file, os.fstat(file).st_size)
            os.close(file)
        arrays = tensors.arrays(self._memory)
        self._inputs, self._outputs = arrays[:count], arrays[count:]
        self._delegate.prepare(tensors.types[:count], tensors.types[count:])


def _answer(work: Callable[[], None]) -> Any:
    """Return the answer after some work: None, or its error as plain JSON."""
    try:
        return work()
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        translated = error if isinstance(error, DelegateError) else BackendFailed(one_line(error), remedy=AUTHOR)
        kind = translated.at("")  # of a class that the program knows
        return [
            type(kind).__name__,
            *(part[:_LONGEST] for part in (translated.what, translated.where, translated.remedy)),
        ]
