"""RemoteModels: the models of an ingress, whose requests run on replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from delegate_serve.runtime.errors import RequestError, shuts_down
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.model import VERSION, ServedModel, no_states
from delegate_serve.runtime.models import found
from delegate_serve.runtime.openai import Language, error_event
from delegate_serve.runtime.pool import Counted, Pool
from delegate_serve.runtime.requests import Request
from delegate_serve.runtime.signature import Signature
from delegate_serve.runtime.tracing import carrier

_ATTEMPTS = 5  # of a request whose replica dies; it changes no state, so it may run twice
_PAUSE = 0.1  # seconds before the second attempt; twice as long before each further one
_POLL = 0.02  # seconds between two checks of the requests that are left
MARGIN = 5.0  # seconds that an answer may take beyond the limit of its model


class Handle:
    """The way to the replicas of a model.

    Args:
        handle: A handle of Ray Serve.
        name: The model's name, for messages.
        file: the name of its program.
        timeout: seconds for an answer.
    """

    def __init__(self, handle: Any, name: str, file: str, timeout: float) -> None:
        self._handle, self._name, self._file, self._timeout = handle, name, file, timeout

    async def call(self, method: str, *args: Any) -> Any:
        """Return the result of a replica's method; if the replica dies, of another one."""

        async def run() -> Any:
            return await self._in_time(getattr(self._handle, method).remote(self._file, *args))

        return await self._attempt(run)

    async def stream(self, method: str, *args: Any) -> tuple[Any, Any]:
        """Return the second result of a method that yields, and an iterator of the others.

        The first result must come in time. It means that a replica has begun, and has limits of its own.
        """

        async def begin() -> tuple[Any, Any]:
            parts = getattr(self._handle.options(stream=True), method).remote(self._file, *args)
            await self._in_time(anext(parts))
            return await anext(parts), parts

        return await self._attempt(begin)  # type: ignore[no-any-return]

    async def _in_time(self, result: Any) -> Any:
        return await asyncio.wait_for(result, self._timeout + MARGIN)

    async def _attempt(self, start: Callable[[], Any]) -> Any:
        pause = _PAUSE
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            try:
                return await start()
            except RayTaskError as error:
                if isinstance(error.cause, RequestError):
                    raise error.cause from None
                raise RequestError(500, f"model {self._name!r} failed: {type(error.cause).__name__}") from error
            except BackPressureError:
                what = f"model {self._name!r} has too many requests: try again in 1 s"
                raise RequestError(429, what, retry_after=1) from None
            except TimeoutError:
                break
            except (RayActorError, DeploymentUnavailableError):
                continue  # with another replica
        raise RequestError(503, f"model {self._name!r} has no replica now: try again in 1 s", retry_after=1)


class RemoteModel(ServedModel):
    """A model whose requests run on replicas.

    Args:
        handle: the way to the replicas.
        name, signature: of the model.
        metrics: The ingress's metrics.
    """

    def __init__(self, handle: Handle, name: str, signature: Signature, metrics: Metrics) -> None:
        super().__init__(name, signature, metrics.model(name, lambda: self._counted.requests))
        self._handle, self._counted = handle, Counted()

    async def run(self, request: Request) -> list[Any]:
        """Return the leaves of a request's result; raise RequestError if it fails."""
        if request.turn is not None:
            raise no_states(self.name)
        with self._counted:
            return await self._handle.call("run", self.name, request, carrier())  # type: ignore[no-any-return]


class RemoteLanguage:
    """A language model whose conversations run on replicas.

    Args:
        handle: the way to the replicas.
        name: The program's name.
        metrics: The ingress's metrics.
    """

    def __init__(self, handle: Handle, name: str, metrics: Metrics) -> None:
        self._handle, self._name, self._counted = handle, name, Counted()
        self.metrics = metrics.model(name, lambda: self._counted.requests)

    def request(self) -> Counted:
        """Return a context manager that counts a request. A replica limits their number."""
        return self._counted

    async def check(self, body: Mapping[str, Any], is_chat: bool) -> Any:
        """Return what a replica checks, which has the tokenizer."""
        return body, is_chat

    async def answer(self, request: Any) -> tuple[bytes, AsyncGenerator[bytes, None] | None]:
        """Return the complete answer as JSON, or the first part of a stream and the others."""
        text, parts = await self._handle.stream("complete", *request)
        return text, self._rest(parts) if await anext(parts) else None

    async def _rest(self, parts: Any) -> AsyncGenerator[bytes, None]:
        try:
            async for part in parts:
                yield part
        except RayActorError:
            yield error_event(f"the replica of language model {self._name!r} ended during the answer: try again")
        finally:
            parts.cancel()


class RemoteModels:
    """The models of an ingress, which replicas load.

    Args:
        by_name, languages: the models and the language models.
    """

    def __init__(self, by_name: Mapping[str, ServedModel], languages: Mapping[str, Language]) -> None:
        self.by_name, self.languages = by_name, languages
        self.pool = Pool(0)  # counts requests
        self._is_closing = False

    async def drain(self, seconds: float) -> int:
        """Refuse further requests, and wait until the others are answered, at most so long; return how many are not."""
        self._is_closing = True
        end = monotonic() + seconds
        while self.pool.requests and monotonic() < end:
            await asyncio.sleep(_POLL)
        return self.pool.requests

    def find(self, name: str) -> ServedModel:
        """Return a model; raise RequestError if there is none of this name, or the server shuts down."""
        self._require_open()
        return found(name, self.by_name, "model")

    def language_names(self) -> Mapping[str, str]:
        """Return the names of language models, alone and with each of their adapters."""
        return {name: name for name in self.languages}

    def is_available(self, name: str) -> bool:
        """Return True: the replicas load it."""
        return True

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[ServedModel]:
        """Yield a model, which `find` has returned for the same request."""
        yield self.by_name[name]

    @asynccontextmanager
    async def use_language(self, name: object) -> AsyncIterator[Language]:
        """Count a request of a language model; raise RequestError as `find`."""
        self._require_open()
        language = found(name, self.languages, "language model")
        with self.pool.request(), language.request():
            yield language

    async def load(self, name: str) -> None:
        """Raise RequestError: the replicas decide."""
        raise RequestError(403, "clients may not load and unload models of replicas")

    async def unload(self, name: str) -> None:
        """Raise RequestError, as `load`."""
        await self.load(name)

    def index(self) -> list[dict[str, str]]:
        """Return the state of each model as Triton's repository does."""
        return [{"name": name, "version": VERSION, "state": "READY"} for name in self.by_name]

    def _require_open(self) -> None:
        if self._is_closing:
            raise shuts_down()
