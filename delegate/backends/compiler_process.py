"""Separate processes that run the AOT parts of backends. This is the side of the process that lowers.

A vendor library may crash or hang while it compiles. In a separate process it takes nothing else with it: `query`
returns the answers so far, and how the process ended.

- `query(part, question, subject, names, limit)` sends a question about a graph or a region, and waits for the answers.
- The question is a key of `DECODERS`: "check", "claims", "preprocess", ... Each named node gets one answer.
- `compiler_worker.main` is what the other process runs. `transfer` has the form of the messages.
- The subject is sent as a pickle, with tensors in shared memory. Answers are JSON and bytes, and are never unpickled.
- A process serves any backend. It waits in a pool for later queries, and ends after a minute without one.
- A process is a new Python and no fork. A fork would wait for ever for threads that a library has started here.
"""

from __future__ import annotations

import itertools
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from delegate.backends.transfer import (
    MAKE,
    Decode,
    Packed,
    decode_claims,
    decode_error,
    decode_result,
    decode_verdict,
    pack,
)
from delegate.errors import BackendUnavailable
from delegate.field_checks import count, flag, text, texts
from delegate.plugins import one_line
from delegate.probing.process import LIMITS, Child, Clock, ended, search_path, uninterrupted
from delegate.program.segments import align

try:
    from delegate.runtime.isolation.channel import Channel, shared_file
except ModuleNotFoundError:  # fcntl: the system passes no descriptors to other processes
    HAS_PROCESSES = False
else:
    HAS_PROCESSES = hasattr(socket, "send_fds")

_LARGEST_REPLY = 1 << 26  # bytes of JSON: compile specs and notes, not blobs
_START_LIMIT = LIMITS["aot"]  # seconds to start, and to import torch and the AOT parts of `warm_up`
_EXIT_LIMIT = 5.0  # seconds between the end of the connection and the end of the process
_IDLE_LIMIT = 60.0  # seconds until an unused process ends
_NUMBERS = itertools.count()
_FAULTS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # of a reply that makes no sense


class CannotIsolate(BackendUnavailable):
    """An error: no separate process can be started or can import the AOT part, or a graph cannot be sent to it."""

    def __init__(self, what: str, where: str = "", remedy: str = "set `isolate: none` for the backend") -> None:
        super().__init__(what, where=where, remedy=remedy)


class Replies(NamedTuple):
    """The answers of a separate process to one query.

    Args:
        items: an answer for each name, in the order of the query, up to the one at which the process ended. An error
            of the AOT part is an item, too.
        ending: how the process ended before it had answered everything, e.g. "was killed by SIGSEGV"; else empty.
        is_late: true if the process was killed because the time limit had passed.
        is_made: true if the process had created the AOT part. If not, the question cannot be the cause of the end.
    """

    items: list[Any]
    ending: str = ""
    is_late: bool = False
    is_made: bool = True


class AotPart(NamedTuple):
    """The description from which a separate process creates an AOT part.

    Args:
        name: the backend's name.
        path: Where the class is, as "module:Class".
        options: as JSON.
        runtime: the runtime part, "module:Class", which then opens each new artifact once in the separate process.
            Empty: it does not.
        limit: seconds to import and to create the AOT part.
        number: unique in this process. A separate process creates one object for each number.
    """

    name: str
    path: str
    options: str
    runtime: str = ""
    limit: float = LIMITS["aot"]
    number: int = -1

    def numbered(self) -> AotPart:
        """Return the description with a new number.

        Raises:
            CannotIsolate: this system has no such processes, or they cannot import the class.
        """
        if not HAS_PROCESSES:
            raise CannotIsolate("a compiler in a separate process requires POSIX")
        if not _stamp(self.module):
            what = f"the AOT part of backend {self.name!r} cannot be imported by another process"
            raise CannotIsolate(what, self.path, "define it in a module that has a file, or set `isolate: none`")
        return self._replace(number=next(_NUMBERS))

    @property
    def module(self) -> str:
        """Return the module of the class."""
        return self.path.partition(":")[0]


def query(part: AotPart, question: str, subject: Any, names: Sequence[str], limit: float) -> Replies:
    """Query an AOT part in a separate process, which is an idle one or a new one.

    Args:
        part: the AOT part, which the process creates unless it has it.
        question: a key of `DECODERS`.
        subject: what the question is about: a graph, a region, a region with its artifact, or a value that pickles.
        names: The subject's nodes, each of which gets an answer. A question about the whole subject has one name, "".
        limit: seconds for all answers, after the AOT part is created.

    Raises:
        CannotIsolate: no process can be started, or the subject cannot be sent.
    """
    try:
        packed = pack(subject)
    except (pickle.PicklingError, TypeError, AttributeError, NotImplementedError) as error:
        what = f"a graph cannot be sent to the process of backend {part.name!r}: {one_line(error)}"
        raise CannotIsolate(what) from error
    while True:
        process = _POOL.take(part)
        was_used = bool(process.stamps)
        try:
            replies = process.query(part, question, packed, names, limit)
        except BaseException:  # also an interrupt: the next reply would belong to an earlier query
            process.end()
            raise
        _POOL.put(process)
        if replies.ending and not replies.is_made and was_used:
            continue  # it was killed while it was idle
        return replies


def warm_up(paths: Sequence[str]) -> None:
    """Start a process that imports AOT parts while this process has other work, if none is there."""
    if HAS_PROCESSES:
        _POOL.warm_up(paths)


class CompilerProcess:
    """One separate process, which runs `compiler_worker.main`. It ends with this object, and with this process.

    Args:
        paths: The AOT parts to import before the first query, "module:Class" each.

    Attributes:
        stamps: module of an AOT part that it has imported -> the file of the module and the file's time.
        used: the time of the last query, by the monotonic clock.

    Raises:
        CannotIsolate: it cannot be started.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        try:
            self._child, self._channel, self._socket = uninterrupted(partial(_start, paths))
        except OSError as error:
            raise CannotIsolate(f"no process can be started for a compiler: {one_line(error)}") from error
        self.stamps: dict[str, str] = {}
        self.used = time.monotonic()
        self._is_ready = self._has_ended = False
        weakref.finalize(self, self._channel.close)
        _PROCESSES.add(self)

    @property
    def is_running(self) -> bool:
        """Return true if it can be queried."""
        return not self._has_ended and self._child.process.poll() is None

    def query(self, part: AotPart, question: str, packed: Packed, names: Sequence[str], limit: float) -> Replies:
        """Return the answers; raises CannotIsolate if the process cannot read the subject."""
        request = {
            "question": question, "names": list(names), "part": part._asdict(), "environment": dict(os.environ),
            "folder": _folder(), "search_path": search_path(),
            "sizes": [len(packed.table), *(len(b) for b in packed.buffers)],
        }  # fmt: skip
        found: list[Any] = []
        clock, is_made = Clock(self._child.process.pid, _START_LIMIT), False
        with uninterrupted(partial(_shared, (packed.table, *packed.buffers))) as subject, uninterrupted(_shared) as out:
            try:
                if not self._is_ready:
                    self._receive(clock)
                    self._is_ready = True
                clock = Clock(self._child.process.pid, part.limit)
                self.stamps[part.module] = _stamp(part.module)
                self._channel.send(request, (subject.fileno(), out.fileno()))
                made = _decoded(_decode_made, self._receive(clock))
                clock, is_made = Clock(self._child.process.pid, limit), True
                if isinstance(made, Exception) or question == MAKE:
                    found = [made] * len(names)
                while len(found) < len(names):
                    found.append(_decoded(partial(DECODERS[question], out), self._receive(clock)))
                return Replies(found)
            except TimeoutError:
                ending = f"gave no answer in {clock.limit:g} s"
                return Replies(found, ending, is_late=True, is_made=is_made)
            except (OSError, EOFError):
                return Replies(found, self._wait(), is_made=is_made)
            except _FAULTS:
                return Replies(found, "returned an invalid answer", is_made=is_made)
            finally:
                self.used = time.monotonic()
                if len(found) < len(names):
                    self.end()

    def end(self) -> None:
        """Kill it."""
        if not self._has_ended:
            self._has_ended = True
            self._child.end()
            self._channel.close()

    def abandon(self) -> None:
        """Close the connection without ending the process, in a fork of the process that started it."""
        self._has_ended = True
        self._child.abandon()
        self._channel.close()

    def _receive(self, clock: Clock) -> Any:
        """Return the next message; an interrupt right before the wait is noticed a second later."""
        while not select.select([self._socket], [], [], max(0.0, min(clock.left, 1.0)))[0]:
            if clock.left <= 0:
                raise TimeoutError
        self._channel.wait_at_most(max(clock.left, 1.0))
        return self._channel.receive()

    def _wait(self) -> str:
        """Return how the process ended after it had closed its connection."""
        try:
            return ended(self._child.process.wait(_EXIT_LIMIT))
        except subprocess.TimeoutExpired:
            return "closed its connection"


class _Pool:
    """The idle processes. A query takes one out, so threads that lower at the same time use different processes."""

    def __init__(self) -> None:
        self._lock, self._idle = threading.RLock(), list[CompilerProcess]()
        self._timer: threading.Timer | None = None

    def take(self, part: AotPart) -> CompilerProcess:
        """Return an idle process in which the file of an AOT part is the present one, or a new process."""
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                return CompilerProcess()
            if process.is_running and process.stamps.get(part.module, stamp := _stamp(part.module)) == stamp:
                return process
            process.end()

    def put(self, process: CompilerProcess) -> None:
        """Keep a process for later queries if it runs."""
        if process.is_running:
            with self._lock:
                self._idle.append(process)
                self._end_later()
        else:
            process.end()

    def warm_up(self, paths: Sequence[str]) -> None:
        """Start a process unless an idle one is there."""
        if not self._idle:
            self.put(CompilerProcess(paths))

    def _end_later(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_IDLE_LIMIT, self._end_idle)
            self._timer.daemon = True
            self._timer.start()

    def _end_idle(self) -> None:
        oldest = time.monotonic() - _IDLE_LIMIT
        with self._lock:
            self._timer = None
            idle, self._idle = self._idle, [p for p in self._idle if p.used > oldest]
            if self._idle:
                self._end_later()
        for process in idle:
            if process.used <= oldest:
                process.end()


def _start(paths: Sequence[str]) -> tuple[Child, Channel, socket.socket]:
    own, other = socket.socketpair()
    channel = Channel(own, _LARGEST_REPLY)
    try:
        with other:
            main = "delegate.backends.compiler_worker:main"
            child = Child.start(main, other.fileno(), *paths, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
    except BaseException:
        channel.close()
        raise
    return child, channel, own


def _stamp(module: str) -> str:
    """Return the file of an AOT part's module with its time; empty if another process cannot import the module."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or file is None:
        return ""
    try:
        status = os.stat(file)
    except OSError:  # of an archive
        return str(file)
    return f"{file} {status.st_size} {status.st_mtime_ns}"


def _folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _shared(parts: Sequence[bytes | memoryview] = ()) -> BinaryIO:
    """Return a file in memory that holds these bytes, each from a multiple of the alignment on."""
    starts = [0, *itertools.accumulate(align(len(part)) for part in parts)]
    file = open(shared_file(starts[-1]), "r+b")  # noqa: SIM115 - the caller closes it
    for start, part in zip(starts, parts, strict=False):
        file.seek(start)
        file.write(part)
    file.flush()
    return file


def _decoded(decode: Decode, reply: Any) -> Any:
    """Return an answer, or the exception that stands for it; raises one of `_FAULTS` if it makes no sense."""
    if "unreadable" in reply:
        raise CannotIsolate(f"the process of a compiler cannot read its graph: {text(reply, 'unreadable')}")
    return decode(reply["value"]) if "value" in reply else decode_error(reply)


def _decode_made(value: Any) -> tuple[frozenset[str], int | None]:
    most = None if value["most_constants"] is None else count(value, "most_constants")
    return frozenset(texts(value, "preserve_ops")), most


def _content(file: BinaryIO) -> bytes:
    """Return what another process has written to a file. It is read, since a mapping of a damaged file may end this."""
    file.seek(0)
    return file.read()


DECODERS: dict[str, Callable[[BinaryIO, Any], Any]] = {
    MAKE: lambda _, value: _decode_made(value),
    "identity": lambda _, value: None if value["text"] is None else text(value, "text"),
    "check": lambda _, value: decode_verdict(value),
    "claims": lambda _, value: decode_claims(value),
    "check_artifact": lambda _, value: flag(value, "sound"),
    "preprocess": lambda out, value: decode_result(value, _content(out)),
}

_PROCESSES = weakref.WeakSet[CompilerProcess]()
_POOL = _Pool()


def _abandon_all() -> None:
    _POOL.__init__()  # type: ignore[misc]  # its lock may be held by a thread that is not here
    for process in list(_PROCESSES):
        process.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
