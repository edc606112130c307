"""The program's side of isolation: the process that runs its delegates, and a proxy for each of them."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import signal
import socket
import subprocess
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any, BinaryIO, TypeVar

from delegate import errors
from delegate.errors import BackendError, BackendFailed, BackendUnavailable, DelegateError, Stopped
from delegate.plugins import one_line
from delegate.probing.process import Child, uninterrupted
from delegate.program.model import DelegateSpec, Program
from delegate.program.segments import align
from delegate.registry import Registry
from delegate.runtime.backend import Array, BackendRuntime, Delegate, TensorType
from delegate.runtime.call_lock import CallLock
from delegate.runtime.isolation.channel import CLOSE, Channel, Tensors, shared_file

T = TypeVar("T")

_START_SECONDS = 60.0  # seconds for the start of Python; they do not count as the library's time
_OPENING = 2  # answers to the request for a delegate
_CLOSE_SECONDS = 5.0  # seconds for a worker to close a delegate, or to end after it has closed its connections
_SUSPECT = "the blob may be damaged or malicious, or the library has a bug"
_KINDS = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BackendError)
}


class NotTaken(BackendFailed):
    """The process ended before it took the request, so that another process can take it."""


class Isolated:
    """Creates the delegates of a program in a separate process, which is started for the first one.

    Args:
        program: verified.
        registry: source of backends.
        trust_code: open blobs of machine code too.
        limit: seconds for the creation of a delegate and for each call; None: no limit.

    Attributes:
        runtimes: empty: tensors between delegates lie in the host's memory.
    """

    def __init__(self, program: Program, registry: Registry, trust_code: bool, limit: float | None = None) -> None:
        self.runtimes: dict[str, BackendRuntime] = {}
        self._limit = limit
        self._program, self._registry, self._trust_code = program, registry, trust_code
        self._opening, self._lock = CallLock("the process of the program's delegates"), RLock()
        self._worker: Worker | None = None

    def __call__(self, spec: DelegateSpec) -> Delegate:
        parts = [memoryview(self._program.segments[i]) for i in (spec.segment, *spec.data)]
        return self.create(spec.backend, spec.compile_specs, parts)

    def create(self, backend: str, compile_specs: Mapping[str, Any], parts: Sequence[memoryview]) -> Delegate:
        """Create a delegate of a blob and its data, the first and the other parts; raises BackendError."""
        runtime = self._registry.runtime(backend)
        if runtime.__module__ == "__main__":
            what = "its runtime part is in __main__, which another process cannot import"
            raise BackendUnavailable(what, remedy="put it in a module, or load without isolate")
        request = {
            "runtime": f"{runtime.__module__}:{runtime.__qualname__}",
            "compile_specs": dict(compile_specs),
            "trust_code": self._trust_code,
        }
        return IsolatedDelegate(partial(self._open, request, parts))

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._worker is not None:
                self._worker.end()

    def _open(self, request: Any, parts: Sequence[memoryview]) -> tuple[Worker, Channel]:
        """Create a delegate in the process, which is started again if it has ended.

        Delegates are created one after another, so that the time of one does not count for the next.
        """
        with self._opening.hold():
            return _retry_if_not_taken(partial(self._open_once, request, parts))

    def _open_once(self, request: Any, parts: Sequence[memoryview]) -> tuple[Worker, Channel]:
        worker, channel = uninterrupted(partial(self._request, request, parts))
        try:
            worker.receive(channel)  # that it was taken
            worker.receive(channel)
        except BaseException:
            channel.close()
            raise
        return worker, channel

    def _request(self, request: Any, parts: Sequence[memoryview]) -> tuple[Worker, Channel]:
        with self._lock:
            if self._worker is None or self._worker.ended:
                self._worker = Worker(self._limit)
            return self._worker, self._worker.open(request, parts)


def _retry_if_not_taken(work: Callable[[], T]) -> T:
    """Repeat work if the process ended before it took the request: it was killed while it was idle."""
    try:
        return work()
    except NotTaken:
        return work()


class Worker:
    """A process that runs delegates. It ends with this object, and with this process, however that ends.

    Args:
        limit: seconds that each answer may take; None: any number.

    Raises:
        BackendUnavailable: it cannot be started here.

    Attributes:
        ended: True if it runs no delegates any more.
    """

    def __init__(self, limit: float | None = None) -> None:
        if not hasattr(socket, "send_fds"):
            remedy = "load the file without isolate if you trust it"
            raise BackendUnavailable("delegates in a separate process need POSIX", remedy=remedy)
        self.ended = self._interrupted = False
        self._limit = limit
        try:
            self._child, self._control = uninterrupted(_start_worker)
        except (OSError, ValueError) as error:  # no descriptors are left, or no processes
            raise BackendUnavailable("cannot start a process for delegates", where=one_line(error)) from error
        weakref.finalize(self, self._control.close)
        _WORKERS.add(self)

    def open(self, request: Any, parts: Sequence[memoryview]) -> Channel:
        """Request a delegate of a blob and its data, in memory that is shared with the process.

        Return the channel of the delegate. Two answers come first: that the request was taken, and that the delegate
        was created. Raise BackendUnavailable, NotTaken or BackendFailed.
        """
        starts = [0, *itertools.accumulate(align(part.nbytes) for part in parts)]
        request = {**request, "parts": [(at, at + part.nbytes) for at, part in zip(starts, parts, strict=False)]}
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as passed:
            try:
                channel, end = Channel.pair()
                failed.callback(channel.close)
                passed.callback(end.close)
                file = shared_file(starts[-1])
                passed.callback(os.close, file)
                with open(file, "wb", closefd=False) as written:
                    for at, part in zip(starts, parts, strict=False):
                        written.seek(at)
                        written.write(part)
            except OSError as error:  # no descriptors are left, or no memory
                raise BackendUnavailable(
                    "cannot pass the blob to the process of the delegate", where=one_line(error)
                ) from error
            channel.wait_at_most(self._limit)
            channel.awaited = _OPENING
            self.send(self._control, request, (file, end.fileno()))
            failed.pop_all()
        return channel

    def call(self, channel: Channel, message: Any = None, files: Sequence[int] = ()) -> None:
        """Send a request and wait for the answer; see `send` and `receive`."""
        channel.awaited = 1
        try:
            self.send(channel, message, files)
        except DelegateError:
            raise
        except BaseException:
            self.interrupt()
            raise
        self.receive(channel)

    def send(self, channel: Channel, message: Any = None, files: Sequence[int] = ()) -> None:
        """Send a request; raise NotTaken or BackendFailed if the process has ended."""
        try:
            channel.send(message, files)
        except (OSError, ValueError) as error:
            raise self._failed(error, channel) from error

    def receive(self, channel: Channel) -> None:
        """Wait for the answer to a request.

        Raises:
            NotTaken: the process had ended before it took the request.
            BackendFailed: the process has ended, or its answer is invalid.
            DelegateError: the backend raised it.
        """
        try:
            answer = channel.receive()
        except (OSError, EOFError, ValueError, RecursionError) as error:
            raise self._failed(error, channel) from error
        except BaseException:  # an interrupt: nobody waits for the answer any more
            self.interrupt()
            raise
        channel.awaited -= 1
        if answer is not None:
            channel.awaited = 0
            raise _error_from(answer)

    def interrupt(self) -> None:
        """Kill the process because a call was interrupted. Calls of other delegates raise `Stopped`."""
        self._interrupted = True
        self.end()

    def end(self) -> None:
        """Kill it."""
        self.ended = True
        self._child.end()
        self._control.close()

    def abandon(self) -> None:
        """Drop the process without ending it, in a fork of its owner."""
        self.ended = True
        self._child.abandon()
        self._control.close()

    def _failed(self, error: Exception, channel: Channel) -> BackendFailed:
        """End the process; return the error that describes its end."""
        if self._interrupted:
            return Stopped("the process that runs it was ended because a call of another partition was interrupted")
        if _was_not_taken(error, channel):
            self.end()
            return NotTaken("the process that runs it had ended before the call", remedy=_SUSPECT)
        if self.ended:
            return BackendFailed("the process that runs it was ended because of another partition", remedy=_SUSPECT)
        if isinstance(error, TimeoutError):
            self.end()
            return BackendFailed(f"the process that runs it gave no answer in {channel.limit:g} s", remedy=_SUSPECT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.process.wait(0 if isinstance(error, ValueError | RecursionError) else _CLOSE_SECONDS)
        code = self._child.process.returncode
        self.end()
        return BackendFailed(f"the process that runs it {_ending(code)}", remedy=_SUSPECT)


class IsolatedDelegate(Delegate):
    """A delegate in another process. If that has ended, the next call starts it again.

    Args:
        open_: creates the delegate there.
    """

    def __init__(self, open_: Callable[[], tuple[Worker, Channel]]) -> None:
        self._open = open_
        self._worker, self._channel = open_()
        self._shapes: list[tuple[int, ...]] | None = None
        self._memory: mmap.mmap | None = None
        self._inputs: list[Array] = []
        self._outputs: list[Array] = []

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        """Set up such tensors in shared memory on both sides, and let the delegate check them."""
        _retry_if_not_taken(partial(self._prepare, inputs, outputs))

    def _prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        self._shapes = None
        if self._channel.awaited:  # an interrupted call may still run there, and its answer is not that of the next
            self._worker.interrupt()
        if self._worker.ended:
            self._channel.close()
            self._worker, self._channel = self._open()
            self._memory = None
        tensors = Tensors([*inputs, *outputs])
        layout = {"inputs": len(inputs), "tensors": tensors.to_json()}
        try:
            if self._memory is None or len(self._memory) < tensors.size:
                file, self._memory = uninterrupted(partial(_shared_memory, tensors.size))
                with file:
                    self._worker.call(self._channel, layout, (file.fileno(),))
            else:
                self._worker.call(self._channel, layout)
        except BaseException:
            self._memory = None
            raise
        arrays = tensors.arrays(self._memory)
        self._inputs, self._outputs = arrays[: len(inputs)], arrays[len(inputs) :]
        self._shapes = [shape for shape, _ in tensors.types]

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _retry_if_not_taken(partial(self._execute, inputs, outputs))

    def _execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        is_ready = not self._worker.ended and not self._channel.awaited
        if not is_ready or [a.shape for a in (*inputs, *outputs)] != self._shapes:
            self._prepare(*([TensorType(a.shape, a.dtype) for a in arrays] for arrays in (inputs, outputs)))
        for own, array in zip(self._inputs, inputs, strict=True):
            own[...] = array
        self._worker.call(self._channel)
        for array, own in zip(outputs, self._outputs, strict=True):
            array[...] = own

    def close(self) -> None:
        try:
            if not self._worker.ended:
                limit = min(self._channel.limit or _CLOSE_SECONDS, _CLOSE_SECONDS)
                self._channel.wait_at_most(limit)  # a library may hang here too
                with contextlib.suppress(NotTaken):  # the delegate has ended with its process
                    self._worker.call(self._channel, CLOSE)
        finally:
            self._channel.close()
            self._inputs, self._outputs, self._memory = [], [], None


def _start_worker() -> tuple[Child, Channel]:
    """Start a process that runs delegates, and return it and its connection when it is ready; raise OSError or
    ValueError.
    """
    control, end = Channel.pair()
    try:
        with end:
            child = Child.start(
                "delegate.runtime.isolation.worker:main",
                end.fileno(),
                pass_fds=(end.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # results are printed by this process alone
            )
        control.wait_at_most(_START_SECONDS)
        control.receive()
        control.wait_at_most(None)
    except EOFError as error:
        control.close()
        raise OSError(f"Python {_ending(child.process.wait())}") from error
    except BaseException:
        control.close()
        raise
    return child, control


def _shared_memory(size: int) -> tuple[BinaryIO, mmap.mmap]:
    """Return memory to share, and its file."""
    file = open(shared_file(size), "r+b", buffering=0)  # noqa: SIM115 - it owns the descriptor
    return file, mmap.mmap(file.fileno(), size)


def _was_not_taken(error: Exception, channel: Channel) -> bool:
    """Return True if the other end closed before it read the request.

    The socket reports it: nothing can be sent, or the sent bytes are lost (ECONNRESET). After a request was read, the
    stream just ends. A request for a delegate goes another way, so its receipt is the first of two answers.
    """
    if isinstance(error, BrokenPipeError | ConnectionResetError):
        return True
    return isinstance(error, EOFError) and channel.awaited == _OPENING


def _error_from(answer: Any) -> DelegateError:
    """Return the error in a worker's answer."""
    match answer:
        case [str(kind), str(what), str(where), str(remedy)]:
            return _KINDS.get(kind, BackendFailed)(what, where=where, remedy=remedy)
        case _:
            return BackendFailed("the process that runs it gave an invalid answer", remedy=_SUSPECT)


def _ending(code: int | None) -> str:
    """Describe the end of a process, for people."""
    if code is None:
        return "closed the connection"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


_WORKERS = weakref.WeakSet[Worker]()


def _abandon_all() -> None:
    for worker in list(_WORKERS):
        worker.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
