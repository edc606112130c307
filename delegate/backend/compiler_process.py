"""Separate processes that run the AOT parts of backends. This is the side of the process that lowers.

A vendor library may crash or hang while it compiles. In a separate process it takes nothing else with it: `query`
returns the answers so far, and how the process ended.

- `query(part, question, subject, names, limit)` sends a question about a graph or a region, and waits for the answers.
- The question is a key of `DECODERS`: "check", "preprocess", ... Each named node gets one answer.
- `compiler_worker.questions` is what the other process answers. `transfer` has the form of the messages.
- The subject is sent as a pickle, with tensors in shared memory. Answers are JSON and bytes, and are never unpickled.
- A process serves any backend. It waits for later queries, and ends after a minute without one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO, NamedTuple

from delegate.backend.transfer import (
    MAKE,
    Packed,
    decode_error,
    decode_result,
    decode_support,
    pack,
)
from delegate.common.field_checks import count, text, texts
from delegate.errors import BackendUnavailable
from delegate.plugins import one_line
from delegate.processes.channel import share
from delegate.processes.limits import AOT_LIMIT
from delegate.processes.process import Process, ProcessEnded, search_path

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
    limit: float = AOT_LIMIT
    number: int = -1

    def with_number(self) -> AotPart:
        """Return the description with a new number.

        Raises:
            CannotIsolate: another process cannot import the class.
        """
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
        subject: what the question is about: a graph, a region, or a value that pickles.
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
        compiler = _take_idle(part) or _Compiler()
        try:
            return compiler.query(part, question, packed, names, limit)
        except ProcessEnded as end:
            if not end.has_started:
                raise CannotIsolate(f"no process can be started for a compiler: Python {end.ending}") from end
            # it was killed while it was idle, so another one takes the question


def warm_up(paths: Sequence[str]) -> None:
    """Start a process that imports AOT parts while this process has other work, if none is there."""
    if not _IDLE:
        with contextlib.suppress(CannotIsolate):  # the query reports it
            _IDLE.append(_Compiler(paths))


class _Compiler:
    """A separate process that runs the AOT parts of `compiler_worker.questions`.

    Args:
        paths: The AOT parts to import before the first query, "module:Class" each.

    Raises:
        CannotIsolate: it cannot be started.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        try:
            self.process = Process("delegate.backend.compiler_worker:questions", *paths, idle_limit=_IDLE_LIMIT)
        except OSError as error:
            raise CannotIsolate(f"no process can be started for a compiler: {one_line(error)}") from error
        self.stamps: dict[str, str] = {}  # module of an AOT part that it has imported -> `_stamp` at that time

    def query(self, part: AotPart, question: str, packed: Packed, names: Sequence[str], limit: float) -> Replies:
        """Return the answers, and keep the process for later queries if it runs.

        Raises:
            CannotIsolate: the process cannot read the subject.
            ProcessEnded: it had ended before it took the question.
        """
        self.stamps[part.module] = _stamp(part.module)
        found: list[Any] = []
        is_made = False
        with share((packed.table, *packed.buffers)) as subject, share(()) as out:
            request = {
                "question": question, "names": list(names), "part": part._asdict(), "environment": dict(os.environ),
                "folder": _folder(), "search_path": search_path(),
                "sizes": [len(packed.table), *(len(b) for b in packed.buffers)],
            }  # fmt: skip
            try:
                self.process.send("query", request, (subject.fileno(), out.fileno()))
                made = _decode_reply(_decode_made, self.process.receive(self.process.clock(part.limit)))
                clock, is_made = self.process.clock(limit), True
                if isinstance(made, Exception) or question == MAKE:
                    found = [made] * len(names)
                while len(found) < len(names):
                    found.append(_decode_reply(partial(DECODERS[question], out), self.process.receive(clock)))
            except ProcessEnded as end:
                if not (end.has_started and end.was_taken):
                    raise
                return Replies(found, end.ending, is_late=end.is_late, is_made=is_made)
            except _FAULTS:
                return Replies(found, self.process.reject_answer().ending, is_made=is_made)
            except BaseException:  # the rest of the answers would belong to an earlier question
                self.process.end()
                raise
        _IDLE.append(self)
        return Replies(found)


_IDLE: list[_Compiler] = []  # a query takes one out, so threads that lower at the same time use different processes


def _take_idle(part: AotPart) -> _Compiler | None:
    """Return an idle process in which the file of an AOT part is the present one; None if there is none."""
    while _IDLE:
        compiler = _IDLE.pop()
        stamp = _stamp(part.module)
        if compiler.process.is_running and compiler.stamps.get(part.module, stamp) == stamp:
            return compiler
        compiler.process.end()
    return None


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


def _decode_reply(decode: Callable[[Any], Any], reply: Any) -> Any:
    """Return an answer, or the exception that stands for it; raises one of `_FAULTS` if it makes no sense."""
    if "unreadable" in reply:
        raise CannotIsolate(f"the process of a compiler cannot read its graph: {text(reply, 'unreadable')}")
    return decode(reply["answer"]) if "answer" in reply else decode_error(reply)


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
    "check": lambda _, value: decode_support(value),
    "preprocess": lambda out, value: decode_result(value, _content(out)),
}
