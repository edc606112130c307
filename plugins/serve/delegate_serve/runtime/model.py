"""Model: a method of a program file as a model of the protocol."""

from __future__ import annotations

from typing import Any

from delegate.runtime.batching import batching_of
from delegate.runtime.method import Method
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.pool import Pool
from delegate_serve.runtime.requests import Request
from delegate_serve.runtime.sessions import Sessions
from delegate_serve.runtime.settings import Settings
from delegate_serve.runtime.signature import signature_of
from delegate_serve.runtime.worker import Worker

VERSION = "1"  # the only version of each model
PLATFORM = "delegate"


class Model:
    """A method of a program file as a model of the protocol.

    Args:
        name: of the model.
        method: the method.
        where: its file, for messages.
        sessions: of the program, if it has states; they have no batches.
        settings: the limits.
        pool: the threads.
        metrics: of the server.

    Raises:
        ConfigError: the method cannot be served.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        where: str,
        sessions: Sessions | None,
        settings: Settings,
        pool: Pool,
        metrics: Metrics,
    ) -> None:
        self.name, self._method, self._sessions = name, method.name, sessions
        self.signature = signature_of(method.definition, where)
        remedy = "serve it without --batch"
        self.batching = None if sessions else batching_of(method, settings.batch, f"model {name!r}", remedy)
        self.worker = Worker(name, method.run, method.check, self.batching, pool, settings, metrics)

    async def run(self, request: Request) -> list[Any]:
        """Return the leaves of the result of a request; raise RequestError if it fails."""
        if self._sessions is None:
            if request.turn is not None:
                raise RequestError(400, f"the request has a sequence_id, but model {self.name!r} has no states")
            return await self.worker.run(request.leaves, request.timeout, request.priority)
        with self._sessions.turn(request.turn, self._method) as run:
            return await self.worker.run(request.leaves, request.timeout, request.priority, run)

    def require_version(self, version: str) -> None:
        """Raise RequestError if the model has no such version."""
        if version != VERSION:
            raise RequestError(404, f"model {self.name!r} has no version {version[:100]!r}: it has {VERSION}")

    def metadata(self) -> dict[str, Any]:
        """Return the description of the protocol."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": PLATFORM,
            "inputs": [tensor.metadata() for tensor in self.signature.inputs.values()],
            "outputs": [tensor.metadata() for tensor in self.signature.outputs.values()],
        }
