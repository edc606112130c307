"""Models of the protocol, and `Model`: a method of a program file as one of them."""

from __future__ import annotations

from typing import Any

from delegate.program import model
from delegate.program.instructions import walk
from delegate.program.model import DelegateCall, KernelCall
from delegate.program.stages import depends_on_data
from delegate.runtime.batching import batching_of
from delegate.runtime.method import Method
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.metrics import Metrics, ModelMetrics
from delegate_serve.runtime.pool import Pool
from delegate_serve.runtime.requests import Request
from delegate_serve.runtime.sessions import Sessions
from delegate_serve.runtime.settings import Settings
from delegate_serve.runtime.signature import Signature, signature_of
from delegate_serve.runtime.worker import Worker

VERSION = "1"  # the only version of each model
PLATFORM = "delegate"


class ServedModel:
    """A model of the protocol, wherever it runs.

    Args:
        name: The model's name.
        signature: its inputs and outputs.
        metrics: The model's metrics.
    """

    def __init__(self, name: str, signature: Signature, metrics: ModelMetrics) -> None:
        self.name, self.signature, self.metrics = name, signature, metrics

    async def run(self, request: Request) -> list[Any]:
        """Return the leaves of a request's result; raise RequestError if it fails."""
        raise NotImplementedError

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


class Model(ServedModel):
    """A method of a program file as a model of the protocol.

    Args:
        name: The model's name.
        method: the method.
        where: its file, for messages.
        sessions: The program's sessions, if it has states; they have no batches.
        settings: the limits.
        pool: the threads.
        metrics: The server's metrics.
        is_bounded: see `Worker`.

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
        is_bounded: bool,
    ) -> None:
        self._method, self._sessions = method.name, sessions
        signature = signature_of(method.definition, where)
        remedy = "serve it without --batch"
        self.batching = None if sessions else batching_of(method, settings.batch, f"model {name!r}", remedy)
        self.worker = Worker(name, method.run, method.check, self.batching, pool, settings, metrics, is_bounded)
        super().__init__(name, signature, self.worker.metrics)

    @property
    def has_states(self) -> bool:
        """Return True if each conversation has states of its own."""
        return self._sessions is not None

    async def run(self, request: Request) -> list[Any]:
        """Return the leaves of a request's result; raise RequestError if it fails."""
        if self._sessions is None:
            if request.turn is not None:
                raise no_states(self.name)
            return await self.worker.run(request.leaves, request.timeout, request.priority)
        async with self._sessions.turn(request.turn, self._method) as run:
            return await self.worker.run(request.leaves, request.timeout, request.priority, run)


def is_bounded(program: model.Program, method: model.MethodDefinition) -> bool:
    """Return True if the sizes of the arguments bound the work of a method.

    They do not bound the work of loops, of sizes that depend on data, and of kernels for a user's own operators.
    """
    calls = list(walk(method.instructions))
    if depends_on_data(method) or not all(isinstance(call, KernelCall | DelegateCall) for call in calls):
        return False
    operators = {program.operators[call.operator] for call in calls if isinstance(call, KernelCall)}
    if not operators:
        return True
    from delegate.kernels.portable import TABLE  # many programs need no kernels

    return all(operator in TABLE for operator in operators)


def no_states(name: str) -> RequestError:
    """Return the error of a request in a session for a model without states."""
    return RequestError(400, f"the request has a sequence_id, but model {name!r} has no states")
