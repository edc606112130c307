"""Errors of requests, and the HTTP status of each."""

from __future__ import annotations

import asyncio
from typing import Any

GONE = 499  # the status of clients that have left, as nginx counts them; no failure


class Disconnected(Exception):
    """The client has gone before its request was complete."""


class RequestError(Exception):
    """A request that is answered with an error.

    Args:
        status: The HTTP status.
        message: what is wrong, and what to do about it.
        retry_after: seconds after which the client may try again; None: the request will never succeed.
        allow: the HTTP methods of the path, if another one was used.
        has_begun: the call had begun, so states may be written in part.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        retry_after: int | None = None,
        allow: str = "",
        has_begun: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after, self.allow = status, message, retry_after, allow
        self.has_begun = has_begun

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle needs, for errors of another process."""
        return _rebuild, (self.status, self.message, self.retry_after, self.allow, self.has_begun)


def _rebuild(status: int, message: str, retry_after: int | None, allow: str, has_begun: bool) -> RequestError:
    return RequestError(status, message, retry_after=retry_after, allow=allow, has_begun=has_begun)


def shuts_down() -> RequestError:
    """Return the error of a request that a server does not answer any more."""
    return RequestError(503, "the server shuts down: try another one", retry_after=1)


def status_of(error: BaseException | None) -> int:
    """Return the HTTP status of a request that ends with an error, or without one."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, Disconnected | asyncio.CancelledError):
        return GONE
    return 200 if error is None else 500
