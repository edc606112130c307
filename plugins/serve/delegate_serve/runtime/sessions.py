"""Sessions: the conversations of clients with a program that has states, each with a context of its own.

A request names its session by the parameters of Triton's sequences: `sequence_id`, and in the first and last request
`sequence_start` and `sequence_end`. All methods of a program share its sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import Any

from delegate.runtime.context import Context
from delegate.runtime.loaded import LoadedProgram
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Turn:
    """The place of a request in its session.

    Args:
        session: the number or name of the session.
        starts, ends: the request is the first or the last one.
    """

    session: int | str
    starts: bool
    ends: bool


@dataclass(slots=True)
class _Session:
    """A session: its context, the number of its requests that wait or run, and the time of the last one.

    Another thread creates the context, since that allocates the states and may prepare partitions.
    """

    context: asyncio.Task[Context]
    requests: int
    used: float


class Sessions:
    """The sessions of a program, which are used on the event loop alone.

    Args:
        program: a program with states.
        name: The program's name, for messages.
        settings: the limits.
    """

    def __init__(self, program: LoadedProgram, name: str, settings: Settings) -> None:
        self._program, self._name, self._settings = program, name, settings
        self._sessions: dict[int | str, _Session] = {}

    @asynccontextmanager
    async def turn(self, turn: Turn | None, method: str) -> AsyncIterator[Callable[[Sequence[Any]], list[Any]]]:
        """Yield the function that runs a method in the session of a request.

        Raises:
            RequestError: the request names no session, or one that does not exist; or there are too many.
        """
        if turn is None:
            what = f"program {self._name!r} has states, but the request has no sequence_id"
            raise RequestError(400, f"{what}: begin with a sequence_id and sequence_start")
        session = self._start(turn.session) if turn.starts else self._find(turn.session)
        session.requests += 1
        try:
            context = await asyncio.shield(session.context)
            yield context.method(method).run
        except Exception as error:
            if not isinstance(error, RequestError) or error.has_begun:  # the states may be written in part
                self._end(turn.session, session)
            raise
        finally:
            session.requests -= 1
            session.used = monotonic()
            if turn.ends:
                self._end(turn.session, session)

    @property
    def is_in_use(self) -> bool:
        """Return True if a session has not timed out, so that the program must stay."""
        limit = monotonic() - self._settings.session_timeout
        return any(session.requests or session.used >= limit for session in self._sessions.values())

    def _find(self, name: int | str) -> _Session:
        session = self._sessions.get(name)
        if session is None:
            what = f"program {self._name!r} has no session {str(name)[:100]!r}"
            raise RequestError(400, f"{what}: it has ended or never begun, so begin with sequence_start")
        return session

    def _start(self, name: int | str) -> _Session:
        """Return a new session, in place of one with that name or one that nobody has used for long."""
        if name in self._sessions:
            self._end(name, self._sessions[name])
        limit = monotonic() - self._settings.session_timeout
        for other, session in list(self._sessions.items()):
            if not session.requests and session.used < limit:
                self._end(other, session)
        if len(self._sessions) >= self._settings.sessions:
            what = f"program {self._name!r} has {len(self._sessions)} sessions, and all are in use"
            raise RequestError(429, f"{what}: try again in 1 s", retry_after=1)
        context = asyncio.create_task(asyncio.to_thread(self._program.context))
        session = self._sessions[name] = _Session(context, 0, monotonic())
        return session

    def _end(self, name: int | str, session: _Session) -> None:
        """Forget a session, and close its context."""
        if self._sessions.get(name) is session:
            del self._sessions[name]
            session.context.add_done_callback(_close)


def _close(created: asyncio.Task[Context]) -> None:
    """Close a context in a thread of its own, since that waits for a running call, which may take any time."""
    if not created.cancelled() and created.exception() is None:
        Thread(target=created.result().close, name="close a session", daemon=True).start()
