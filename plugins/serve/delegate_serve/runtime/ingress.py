"""Ingress: the same HTTP application and gRPC service as a server in one process, as a deployment of Ray Serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from ray import serve

from delegate_serve.runtime.bodies import EXTENSION, Body, too_large
from delegate_serve.runtime.grpc_service import METHODS, Service
from delegate_serve.runtime.http import Application
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.model import ServedModel
from delegate_serve.runtime.openai import Language
from delegate_serve.runtime.remote_models import Handle, RemoteLanguage, RemoteModel, RemoteModels
from delegate_serve.runtime.replica import Description
from delegate_serve.runtime.settings import ModelFile, Settings, Telemetry
from delegate_serve.runtime.tracing import Tracing


class Ingress:
    """The protocols over HTTP and gRPC, for models on replicas.

    Args:
        descriptions: the models.
        files: their programs by name.
        settings, telemetry: of the server.
        handles: the replicas of each group.
    """

    def __init__(
        self,
        descriptions: Sequence[Description],
        files: Mapping[str, ModelFile],
        settings: Settings,
        telemetry: Telemetry | None,
        handles: Mapping[str, Any],
    ) -> None:
        self._tracing = tracing = None if telemetry is None else Tracing(telemetry)
        metrics = Metrics(tracing)
        models: dict[str, ServedModel] = {}
        languages: dict[str, Language] = {}
        programs: dict[str, Language] = {}  # a program and its adapters are one in the metrics
        for model in descriptions:
            file = files[model.file]
            group = handles[file.replicas.group or model.file]
            if file.replicas.group:
                group = group.options(multiplexed_model_id=model.file)
            handle = Handle(group, model.name, model.file, file.settings.timeout)
            if model.signature is None:
                if model.file not in programs:
                    programs[model.file] = RemoteLanguage(handle, model.file, metrics)
                languages[model.name] = programs[model.file]
            else:
                models[model.name] = RemoteModel(handle, model.name, model.signature, metrics)
        self._catalog = catalog = RemoteModels(models, languages)
        self.settings, self.application = settings, Application(catalog, settings, metrics)
        self._calls = Service(catalog, self.application.is_ready, self.application.reserve, tracing).calls()

    async def grpc(self, name: str, data: bytes, context: Any) -> Any:
        """Answer a request over gRPC."""
        own, limit = _Context(context), self.settings.max_body
        if len(data) > limit:  # the proxies of Ray Serve have another limit
            await own.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large(limit).message)
        return _Bytes(await self._calls[name](data, own))

    async def drain(self, seconds: float) -> int:
        """Refuse further requests, and wait until the others are answered, at most so long; return how many are not."""
        self.application.is_closing = True
        return await self._catalog.drain(seconds)

    def __del__(self) -> None:  # Ray Serve calls it when the requests are answered
        if self._tracing is not None:
            self._tracing.close()


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A message that is serialized already."""

    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802  # Ray Serve calls it
        return self.data


class _Aborted(Exception):
    """A request over gRPC ends with the status of its context."""


@dataclass(frozen=True, slots=True)
class _Context:
    """The context of gRPC in Ray Serve, with the methods of grpcio's context."""

    context: Any

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        return self.context.invocation_metadata()  # type: ignore[no-any-return]

    async def abort(self, code: Any, details: str, metadata: Sequence[tuple[str, str]] = ()) -> None:
        self.context.set_code(code)
        self.context.set_details(details)
        self.context.set_trailing_metadata(list(metadata))
        raise _Aborted(details)


def _grpc_method(name: str) -> Any:
    async def call(self: Ingress, request: bytes, grpc_context: Any) -> Any:
        return await self.grpc(name, request, grpc_context)

    return call


for _name in METHODS:  # Ray Serve calls methods of the ingress by the names of the protocol
    setattr(Ingress, _name, _grpc_method(_name))


async def http_app(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request over HTTP by the application of this process's ingress."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
    ingress: Ingress = serve.get_replica_context().servable_object
    body = Body(scope["headers"], ingress.settings.max_body, ingress.application.reserve)

    async def read() -> Any:
        message = await receive()
        if message["type"] == "http.request":
            body.write(message.get("body", b""))
        return {"more_body": False, **message}

    await ingress.application({**scope, "extensions": {EXTENSION: body}}, read, send)
