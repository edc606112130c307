"""The program of a separate process: it answers the questions of its parent until that is gone."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from delegate.errors import BackendFailed, DelegateError
from delegate.plugins import AUTHOR, load_object, one_line
from delegate.processes.channel import Channel
from delegate.processes.limits import Clock

Answer = Callable[[Any, Sequence[int]], Any]
"""A function that answers a question: its arguments are the message, and descriptors of files, which it closes.

A generator has several answers. An exception is the answer if it is raised before the first of them.
"""
Questions = Mapping[str, Answer]


def serve(end: int, table: str, arguments: Sequence[Any], is_quiet: bool, idle_limit: float | None) -> None:
    """Answer until the parent closes the connection.

    Args:
        end: descriptor of the connection.
        table, arguments, is_quiet, idle_limit: see `Process`.
    """
    with contextlib.suppress(OSError):
        os.dup2(2, 1)  # what libraries print is not a result
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the parent reports a crash, and nobody reads its core
    if is_quiet:
        faulthandler.enable()
    channel = Channel(socket.socket(fileno=end))
    questions = cast("Callable[..., Questions]", load_object(table))(*arguments)
    with contextlib.suppress(OSError, EOFError):
        channel.send("ready")
        while True:
            clock = None if idle_limit is None else Clock(os.getpid(), idle_limit)
            (question, message, limit), files = channel.receive_with_files(clock)
            shows_hang = is_quiet and limit is not None
            if shows_hang:
                faulthandler.dump_traceback_later(0.9 * limit)
            for reply in _replies(questions[question], message, files):
                channel.send(reply)
            if shows_hang:
                faulthandler.cancel_dump_traceback_later()
    os._exit(0)  # libraries get no chance to hang or crash in their own ends


def _replies(answer: Answer, message: Any, files: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    try:
        value = answer(message, files)
        for item in value if isinstance(value, Iterator) else (value,):
            yield {"value": item}
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        fault = error if isinstance(error, DelegateError) else BackendFailed(one_line(error), remedy=AUTHOR)
        kind = type(fault.at(""))  # a class that the parent knows
        yield {"error": [kind.__name__, fault.what, fault.where, fault.remedy]}
