"""The parent's side of a separate process: start it, ask it, and learn how it ended."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any

from delegate import errors
from delegate.errors import DelegateError
from delegate.processes.channel import Channel
from delegate.processes.limits import START_LIMIT, Clock
from delegate.program.cores import BackgroundCall

# `-P` keeps the working directory out of the path. The process is bound to its parent before it imports anything else.
_START = (
    "import sys; sys.path[:] = {path!r}; from delegate.processes.lifeline import end_with_parent; "
    "end_with_parent({life}); from delegate.processes.answering import serve; serve({end}, *{arguments!r})"
)
_EXIT_LIMIT = 5.0  # seconds between the end of the connection and the end of the process
_MAX_OUTPUT = 10_000  # characters of the output of a process that ended
_KINDS = {
    kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DelegateError)
}


class ProcessEnded(Exception):
    """A process ended, or was ended because it did not answer in time or made no sense.

    Attributes:
        ending: how it ended, e.g. "was killed by SIGSEGV" or "gave no answer in 10 s".
        output: the end of what it printed, such as the Python stack of a crash; empty unless it is quiet.
        has_started: false if it ended before it could take a question.
        was_taken: false if it ended before it took the last question, so that another process can take it.
        is_late: true if its time was up.
    """

    def __init__(self, ending: str, output: str, *, has_started: bool, was_taken: bool, is_late: bool) -> None:
        super().__init__(ending)
        self.ending, self.output = ending, output
        self.has_started, self.was_taken, self.is_late = has_started, was_taken, is_late


class Process:
    """A Python process that answers one question at a time. It ends with this object, and with this process.

    An interrupt while it is awaited ends it, since its next answer would belong to an earlier question.

    Args:
        table: "module:function" that returns its questions; see `answering.Questions`.
        arguments: The function's arguments, plain values.
        is_quiet: its output is kept for `ProcessEnded`, with the Python stack of a crash or a hang; otherwise it goes
            to stderr.
        idle_limit: seconds without a question after which it ends; None: it stays.

    Attributes:
        process: The process itself.
        has_ended: True if it was ended here, by `end` or because it gave no answer.

    Raises:
        OSError: it cannot be started here.
    """

    def __init__(self, table: str, *arguments: Any, is_quiet: bool = False, idle_limit: float | None = None) -> None:
        if not hasattr(socket, "send_fds"):
            raise OSError("separate processes require POSIX")
        if not sys.executable:
            raise OSError("Python does not report the path of its executable")
        self._owner, self._is_ready, self.has_ended = os.getpid(), False, False
        with contextlib.ExitStack() as held, contextlib.ExitStack() as passed:
            own, end = socket.socketpair()
            passed.enter_context(end)
            self._channel = held.enter_context(contextlib.closing(Channel(own)))
            self._output = held.enter_context(tempfile.TemporaryFile()) if is_quiet else None
            life, lifeline = os.pipe()
            passed.callback(os.close, life)
            held.callback(os.close, lifeline)
            serve = table, arguments, is_quiet, idle_limit
            code = _START.format(path=search_path(), life=life, end=end.fileno(), arguments=serve)
            # `Popen` in the main thread could lose its process: an interrupt may come before it has stored the number.
            start = BackgroundCall(
                lambda: subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    pass_fds=(end.fileno(), life),
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    start_new_session=True,  # interrupts at the terminal are not for it; what it starts ends with it
                )
            )
            passed.callback(start.result)  # an interrupt leaves the descriptors open until it has started
            self.process = start.result()
            # An interrupt before this line closes the lifeline, which ends a process that has no owner.
            self._finalizer = weakref.finalize(self, _end, self.process, self._owner, held.pop_all())

    @property
    def is_running(self) -> bool:
        """Return true if it can be asked, by this process and not by a fork of it."""
        return not self.has_ended and os.getpid() == self._owner and self.process.poll() is None

    def ask(self, question: str, message: Any = None, files: Sequence[int] = (), limit: float | None = None) -> Any:
        """Send a question and return its answer; see `send` and `receive`.

        Args:
            question, message, files: see `send`.
            limit: seconds for the answer; None: no limit.
        """
        self.send(question, message, files, limit)
        return self.receive(None if limit is None else self.clock(limit))

    def clock(self, limit: float, most: float = math.inf) -> Clock:
        """Return a clock for an answer that begins now. The start of Python does not count, and is awaited first.

        Args:
            limit, most: see `Clock`.

        Raises:
            ProcessEnded: it has ended before it could take a question.
        """
        if not self._is_ready:
            self._receive(Clock(self.process.pid, START_LIMIT))
            self._is_ready = True
        return Clock(self.process.pid, limit, most)

    def send(self, question: str, message: Any = None, files: Sequence[int] = (), limit: float | None = None) -> None:
        """Send a question, which it takes as soon as it has started.

        Args:
            question: a key of its table.
            message: a JSON value.
            files: descriptors that it gets a copy of, two at most.
            limit: seconds for the answer. A quiet process prints its Python stack before they are over.

        Raises:
            ProcessEnded: it has ended.
        """
        try:
            self._channel.send([question, message, limit], files)
        except OSError as error:
            raise self._fail(was_taken=False) from error
        except BaseException:
            self.end()
            raise

    def receive(self, clock: Clock | None = None) -> Any:
        """Return the next answer.

        Args:
            clock: of `clock`; None: no limit.

        Raises:
            ProcessEnded: it has ended, or it was ended because a valid answer did not come in time.
            DelegateError: the answer is an error.
        """
        if not self._is_ready:
            self.clock(0.0)
        answer = self._receive(clock)
        match answer:
            case {"value": value}:
                return value
            case {"error": [str(kind), str(what), str(where), str(remedy)]} if kind in _KINDS:
                raise _KINDS[kind](what, where=where, remedy=remedy)
            case _:
                raise self.reject_answer()

    def _receive(self, clock: Clock | None) -> Any:
        try:
            return self._channel.receive(clock)
        except TimeoutError as error:
            assert clock is not None
            raise self._fail(f"gave no answer in {clock.limit:.3g} s", is_late=True) from error
        except (OSError, EOFError) as error:
            raise self._fail(was_taken=not isinstance(error, ConnectionResetError)) from error
        except (ValueError, RecursionError) as error:
            raise self.reject_answer() from error
        except BaseException:
            self.end()
            raise

    def reject_answer(self) -> ProcessEnded:
        """End it because an answer makes no sense to the caller, and return the error to raise."""
        return self._fail("returned an invalid answer")

    def end(self) -> None:
        """Kill it and what it started."""
        self.has_ended = True
        self._finalizer()

    def _fail(self, ending: str = "", *, was_taken: bool = True, is_late: bool = False) -> ProcessEnded:
        """End the process and return the error that tells how it ended."""
        if not ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_EXIT_LIMIT)
            code = self.process.returncode
            ending = "closed its connection" if code is None else describe_exit(code)
        output = ""
        if self._output is not None and not self._output.closed:
            self._output.seek(0)
            output = self._output.read().decode(errors="replace")[-_MAX_OUTPUT:].strip()
        self.end()
        return ProcessEnded(ending, output, has_started=self._is_ready, was_taken=was_taken, is_late=is_late)


def describe_exit(code: int) -> str:
    """Describe the end of a process, e.g. "was killed by SIGSEGV"."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def search_path() -> list[str]:
    """Return the absolute module search path, for a process that may start in another folder."""
    return [os.path.abspath(entry) for entry in sys.path]


def _end(process: subprocess.Popen[bytes], owner: int, held: contextlib.ExitStack) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    else:
        process.returncode = 0  # it is left to the process that this one is a fork of
    held.close()
