"""Application: the open inference protocol over HTTP, as an ASGI application.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md describes the paths
and the JSON of their answers. `/v2/repository` is Triton's list of the models, which loads and unloads them. Paths that
begin with `/v1` belong to `openai`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

import delegate
from delegate_serve.runtime.bodies import EXTENSION, JSON_SIZE, Body, Message, Receive
from delegate_serve.runtime.catalog import Catalog
from delegate_serve.runtime.datatypes import loads
from delegate_serve.runtime.errors import Disconnected, RequestError, shuts_down, status_of
from delegate_serve.runtime.metrics import CONTENT_TYPE, Metrics
from delegate_serve.runtime.model import VERSION, ServedModel
from delegate_serve.runtime.openai import error_event
from delegate_serve.runtime.requests import decode, encode, truth
from delegate_serve.runtime.settings import BODIES_IN_MEMORY, MIB, Settings
from delegate_serve.runtime.shared_memory import Regions

Send = Callable[[Message], Awaitable[None]]

_LOG = logging.getLogger("delegate")
_SLOW_JSON = 64 << 10  # bytes of JSON from which on another thread parses and writes it
_LARGE_ANSWER = 64 << 10  # bytes, more than the buffer of a connection
_CHAT = "v1/chat/completions"
_COMPLETIONS = ("v1/completions", _CHAT)
_NO_PATH = "there is no such path: the paths begin with /v2 or /v1, and /metrics has the metrics"
_NO_MODEL_PATH = "a model has no such path: /v2/models/NAME describes it, then come /infer and /ready"


class Answer(NamedTuple):
    """An answer.

    Args:
        status: The HTTP status.
        parts: The parts of the body.
        content_type: The body's content type.
        headers: further headers.
        stream: parts that follow, as they come.
        held: closes what the stream needs.
    """

    status: int
    parts: list[bytes | memoryview]
    content_type: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()
    stream: AsyncGenerator[bytes, None] | None = None
    held: AbstractAsyncContextManager[Any] = nullcontext()


class Application:
    """The ASGI application of a server.

    Args:
        models: The server's models.
        settings: the limits.
        metrics: The server's metrics.
        regions: The regions of shared memory; None: clients may use none.
    """

    def __init__(self, models: Catalog, settings: Settings, metrics: Metrics, regions: Regions | None = None) -> None:
        self._regions = regions or Regions()
        self._models, self._settings, self._tracing = models, settings, metrics.tracing
        self._in_memory = 0  # bytes of the bodies of all requests
        self.is_closing = False  # the server shuts down, and answers what has arrived
        self.is_over = False  # its time for that is over
        self._pages: dict[str, tuple[str, Callable[[], Answer]]] = {  # path -> the HTTP method, and the answer
            "v2": ("GET", self._server),
            "v2/health/live": ("GET", lambda: _json({"live": True})),
            "v2/health/ready": ("GET", lambda: self._readiness(())),
            "v1/models": ("GET", self._language_models),
            "metrics": ("GET", lambda: Answer(200, [metrics.text()], CONTENT_TYPE)),
        }

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            if self.is_over:
                raise shuts_down()
            answer = await self._answer(scope, receive)
        except Disconnected:
            return
        except asyncio.CancelledError:
            if not self.is_over:  # the client has left
                raise
            answer = _error(shuts_down(), scope["path"])
        except RequestError as error:
            answer = _error(error, scope["path"])
        except Exception as error:
            _LOG.exception("the request for %r failed", scope["path"])
            answer = _error(RequestError(500, f"the request failed: {type(error).__name__}"), scope["path"])
        await self._send(answer, send)

    async def refuse(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Refuse a request, since too many connections are open."""
        error = RequestError(503, "too many connections are open: try again in 1 s", retry_after=1)
        await self._send(_error(error, scope["path"]), send)

    async def _send(self, answer: Answer, send: Send) -> None:
        size = sum(map(len, answer.parts))
        headers = [(b"content-type", answer.content_type.encode()), *answer.headers]
        if answer.stream is None:
            headers.append((b"content-length", b"%d" % size))
        async with answer.held:  # from here on, since a client may leave at once
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            if answer.stream is not None:
                async for part in self._until_over(answer.stream):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            is_large = size > _LARGE_ANSWER  # its client reads it before its next request runs
            await send({"type": "http.response.body", "body": b"".join(answer.parts), "more_body": is_large})
            if is_large:
                await send({"type": "http.response.body"})

    async def _until_over(self, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a stream, and an error if the server cancels it."""
        try:
            async for part in stream:
                yield part
        except asyncio.CancelledError:
            if not self.is_over:
                raise
            yield error_event(shuts_down().message)

    async def _answer(self, scope: Mapping[str, Any], receive: Receive) -> Answer:
        verb, path = scope["method"], scope["path"].strip("/")
        if path.startswith("v2/models/"):
            name, *rest = path.split("/")[2:]
            return await self._answer_for(self._models.find(name), rest, scope, receive)
        if path.startswith("v2/repository/"):
            _require("POST", verb)
            return await self._answer_for_repository(path.split("/")[2:], scope["extensions"][EXTENSION], receive)
        if path.startswith("v2/systemsharedmemory/"):
            return await self._answer_for_regions(path.split("/")[2:], scope, receive)
        if path in _COMPLETIONS:
            _require("POST", verb)
            return await self._complete(path == _CHAT, scope, receive)
        if path not in self._pages:
            raise RequestError(404, _NO_PATH)
        expected, page = self._pages[path]
        _require(expected, verb)
        return page()

    async def _answer_for(
        self, model: ServedModel, path: Sequence[str], scope: Mapping[str, Any], receive: Receive
    ) -> Answer:
        """Answer a request for a model; `path` is the rest of its path."""
        if path[:1] == ["versions"] and len(path) > 1:
            model.require_version(path[1])
            path = path[2:]
        if list(path) not in ([], ["ready"], ["infer"]):
            raise RequestError(404, _NO_MODEL_PATH)
        if list(path) == ["infer"]:
            _require("POST", scope["method"])
            with self._models.pool.request():
                if self._tracing is None:
                    return await self._infer(model, scope, receive)
                with self._tracing.client(scope["headers"]), self._tracing.request(model.name):
                    return await self._infer(model, scope, receive)
        _require("GET", scope["method"])
        return self._readiness([model], {"name": model.name}) if path else _json(model.metadata())

    def _server(self) -> Answer:
        optional = ["system_shared_memory"] if self._regions.is_enabled else []
        extensions = ["binary_tensor_data", "model_repository", *optional]
        return _json({"name": "delegate", "version": delegate.__version__, "extensions": extensions})

    async def _answer_for_regions(self, path: Sequence[str], scope: Mapping[str, Any], receive: Receive) -> Answer:
        """Register or unregister a region of shared memory, or answer with the list of the regions."""
        name = ""
        if path[0] == "region" and len(path) == 3:
            name, path = path[1], path[2:]
        if list(path) == ["status"]:
            _require("GET", scope["method"])
            return _json(self._regions.status(name))
        if list(path) not in (["register"], ["unregister"]):
            raise RequestError(404, _NO_PATH)
        _require("POST", scope["method"])
        fields = await _fields(scope["extensions"][EXTENSION], receive, b"{}")
        if list(path) == ["register"]:
            self._regions.register(name, fields)
        else:
            self._regions.unregister(name)
        return _json({})

    async def _answer_for_repository(self, path: Sequence[str], body: Body, receive: Receive) -> Answer:
        """Answer with the list of the models, or load or unload one."""
        fields = await _fields(body, receive, b"{}")
        match path:
            case ["index"]:
                is_ready = truth(fields.get("ready", False), "ready")
                return _json([row for row in self._models.index() if not is_ready or row["state"] == "READY"])
            case ["models", name, "load"]:
                if fields.get("parameters"):
                    raise RequestError(400, "a model is loaded from its file, without parameters")
                await asyncio.shield(self._models.load(name))  # also if the client leaves
            case ["models", name, "unload"]:
                await asyncio.shield(self._models.unload(name))
            case _:
                raise RequestError(404, _NO_PATH)
        return _json({})

    def _language_models(self) -> Answer:
        names = self._models.language_names()
        rows = [{"id": name, "object": "model", "created": 0, "owned_by": "delegate"} for name in names]
        return _json({"object": "list", "data": rows})

    def _readiness(self, models: Iterable[ServedModel], names: Mapping[str, str] = MappingProxyType({})) -> Answer:
        is_ready = self.is_ready(models)
        return _json({**names, "ready": is_ready}, 200 if is_ready else 503)

    def is_ready(self, models: Iterable[ServedModel] = ()) -> bool:
        """Return True if the server and these models take requests."""
        return not self.is_closing and all(self._models.is_available(model.name) for model in models)

    async def _infer(self, model: ServedModel, scope: Mapping[str, Any], receive: Receive) -> Answer:
        """Run an inference request, and count it."""
        start, status = monotonic(), 200
        body: Body = scope["extensions"][EXTENSION]
        try:
            if dict(scope["headers"]).get(b"content-encoding", b"identity").lower() != b"identity":
                raise RequestError(415, "compressed requests are not supported: send the request without compression")
            data, json_size = await body.read(receive)
            start = monotonic()
            async with self._models.use(model.name) as loaded:
                given = (data, json_size, loaded.signature, self._regions, body.reservation)
                is_slow = json_size > _SLOW_JSON or self._regions.are_large
                request = await in_thread_if(is_slow, decode, *given)
                results = await loaded.run(request)
                is_slow = any(not o.is_binary and results[o.tensor.leaf].nbytes > _SLOW_JSON for o in request.outputs)
                parts, size = await in_thread_if(is_slow, encode, request, results, model.name, VERSION, self._regions)
            if size is None:
                return Answer(200, parts)
            return Answer(200, parts, "application/octet-stream", ((JSON_SIZE, b"%d" % size),))
        except BaseException as error:
            status = status_of(error)
            raise
        finally:
            body.release()
            model.metrics.answered(status, monotonic() - start)

    async def _complete(self, is_chat: bool, scope: Mapping[str, Any], receive: Receive) -> Answer:
        """Answer a request for a completion, and count it."""
        fields = await _fields(scope["extensions"][EXTENSION], receive)
        start, stack = monotonic(), AsyncExitStack()
        async with stack:
            language = await stack.enter_async_context(self._models.use_language(fields.get("model")))
            stack.push(lambda _, error, __: language.metrics.answered(status_of(error), monotonic() - start))
            if self._tracing is not None:
                stack.enter_context(self._tracing.client(scope["headers"]))
                stack.enter_context(self._tracing.request(fields["model"]))
            request = await language.check(fields, is_chat)
            text, stream = await language.answer(request)
            if stream is None:
                return Answer(200, [text])
            stack.push_async_callback(stream.aclose)
            return Answer(200, [], "text/event-stream", stream=_joined(text, stream), held=stack.pop_all())
        raise AssertionError  # the block returns or raises

    def reserve(self, size: int) -> None:
        """Count bytes of bodies in memory; a negative number releases them."""
        limit = BODIES_IN_MEMORY * self._settings.max_body
        if size > 0 and self._in_memory + size > limit:
            what = f"requests of {limit // MIB} MiB are being received or answered"
            raise RequestError(429, f"{what}: try again in 1 s", retry_after=1)
        self._in_memory += size


async def _fields(body: Body, receive: Receive, default: bytes = b"") -> dict[str, Any]:
    """Return the JSON object of a request; `default` stands for an empty body."""
    try:
        data, _ = await body.read(receive)
        fields = loads(data.data or default, "the request")
    finally:
        body.release()
    if not isinstance(fields, dict):
        raise RequestError(400, "the request should be a JSON object")
    return fields


async def _joined(first: bytes, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a stream."""
    yield first
    async for part in stream:
        yield part


async def in_thread_if(is_slow: bool, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, in another thread if it is slow."""
    return await asyncio.to_thread(function, *args) if is_slow else function(*args)


def _require(expected: str, verb: str) -> None:
    allowed = ("GET", "HEAD") if expected == "GET" else (expected,)
    if verb not in allowed:
        raise RequestError(405, f"the path takes {expected}, not {verb}", allow=", ".join(allowed))


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, [orjson.dumps(value)])


def _error(error: RequestError, path: str) -> Answer:
    headers = [] if error.retry_after is None else [(b"retry-after", b"%d" % error.retry_after)]
    headers += [(b"allow", error.allow.encode())] if error.allow else []
    text: Any = error.message
    if path.startswith("/v1/"):  # OpenAI's form
        text = {"message": error.message, "type": "invalid_request_error", "param": None, "code": None}
    return Answer(error.status, [orjson.dumps({"error": text})], headers=tuple(headers))
