"""Fleet: the models of a server as an application of Ray Serve.

An ingress has the protocols: it runs the same HTTP application and gRPC service as a server in one process. Its models
send each request to a replica, an actor that has the programs. Models of a group share replicas, which load them on
demand.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Self

import ray
from delegate_ray.runtime.cluster import cause_of
from delegate_ray.runtime.connection import require_version
from delegate_ray.runtime.threads import with_threads
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import delegate
from delegate.errors import BackendFailed, ConfigError, DelegateError
from delegate_serve.runtime.bodies import EXTENSION, Body
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.grpc_service import METHODS, Service
from delegate_serve.runtime.http import Application
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.model import VERSION, ServedModel, no_states
from delegate_serve.runtime.models import Models, found
from delegate_serve.runtime.openai import Language
from delegate_serve.runtime.pool import Pool
from delegate_serve.runtime.requests import Request
from delegate_serve.runtime.server import bind
from delegate_serve.runtime.settings import ModelFile, Settings, Telemetry
from delegate_serve.runtime.signature import Signature
from delegate_serve.runtime.tracing import Tracing, carrier

Trace = Sequence[tuple[str, str]]  # headers that name a trace
NAME = "delegate"  # of the application
_INGRESS = "ingress"
_ATTEMPTS = 5  # of a request whose replica dies; it changes no state, so it may run twice
_PAUSE = 0.1  # seconds before the second attempt; twice as long before each further one
_MARGIN = 5.0  # seconds that an answer may take beyond the limit of its model
_SILENT = {"log_level": "CRITICAL", "enable_access_log": False}  # clients must not be able to fill a disk
_GRPC = "delegate_serve.runtime.grpc_service.add_to_server"


@dataclass(frozen=True, slots=True)
class Description:
    """A model of a program file, as a node describes it.

    Args:
        name: of the model.
        file: the name of its program.
        signature: of its method; None for a language model.
    """

    name: str
    file: str
    signature: Signature | None


class _Loaded:
    """A program in the memory of a replica."""

    def __init__(self, models: Models) -> None:
        self.models = models

    def __del__(self) -> None:  # Ray Serve calls it when another model takes the place
        self.models.__exit__(None, None, None)


class Replica:
    """Programs that run requests of an ingress.

    Args:
        files: the programs of a group by name. A program without others is loaded now.
        telemetry: for spans of calls.
    """

    def __init__(self, files: Mapping[str, ModelFile], telemetry: Telemetry | None) -> None:
        self._files, self._tracing = files, None if telemetry is None else Tracing(telemetry)
        self._only = self.load(*files) if len(files) == 1 else None

    def load(self, name: str) -> _Loaded:
        """Open a program, with as many threads as the replica has CPUs."""
        file = self._files[name]
        options = with_threads(str(file.path), file.replicas.cpus, file.load.get("options") or {})
        files = {name: replace(file, load={**file.load, "options": options})}
        return _Loaded(Models(files, Metrics(self._tracing), Settings(threads=1)))

    async def open(self, name: str) -> _Loaded:
        """Return a program."""
        assert self._only is not None
        return self._only

    async def run(self, file: str, model: str, request: Request, trace: Trace) -> list[Any]:
        """Return the leaves of the result of a request; raise RequestError if it fails."""
        if self._tracing is None:
            return await self._run(file, model, request)
        with self._tracing.client(trace), self._tracing.request(model):
            return await self._run(file, model, request)

    async def _run(self, file: str, model: str, request: Request) -> list[Any]:
        async with (await self.open(file)).models.use(model) as loaded:
            return await loaded.run(request)

    async def complete(self, file: str, fields: Mapping[str, Any], is_chat: bool) -> AsyncGenerator[Any, None]:
        """Yield the first part of a completion, True if it is a stream, and then the other parts."""
        is_gone = Event()
        try:
            async with (await self.open(file)).models.use_language(fields.get("model")) as language:
                request = await asyncio.to_thread(language.check, fields, is_chat)
                text, stream = await language.answer(request, is_gone)
                yield text
                yield stream is not None
                if stream is not None:
                    async for part in stream:
                        yield part
        finally:
            is_gone.set()


def _sharing(loaded: int) -> type[Replica]:
    """Return the class of a replica that has some programs of its group in memory."""

    class Sharing(Replica):
        @serve.multiplexed(max_num_models_per_replica=loaded)  # type: ignore[untyped-decorator]
        async def open(self, name: str) -> _Loaded:
            return await asyncio.to_thread(self.load, name)

    return Sharing


class _Handle:
    """The way to the replicas of a model.

    Args:
        handle: of Ray Serve.
        name: of the model, for messages.
        file: the name of its program.
        timeout: seconds for an answer.
    """

    def __init__(self, handle: Any, name: str, file: str, timeout: float) -> None:
        self._handle, self._name, self._file, self._timeout = handle, name, file, timeout

    async def call(self, method: str, *args: Any) -> Any:
        """Return the result of a method of a replica; if the replica dies, of another one."""
        return await self._attempt(lambda: getattr(self._handle, method).remote(self._file, *args))

    async def stream(self, method: str, *args: Any) -> tuple[Any, Any]:
        """Return the first result of a method that yields, and an iterator of the others."""

        async def begin() -> tuple[Any, Any]:
            parts = getattr(self._handle.options(stream=True), method).remote(self._file, *args)
            return await anext(parts), parts

        return await self._attempt(begin)  # type: ignore[no-any-return]

    async def _attempt(self, start: Callable[[], Any]) -> Any:
        pause = _PAUSE
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            try:
                return await asyncio.wait_for(start(), self._timeout + _MARGIN)
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
        metrics: of the ingress.
    """

    def __init__(self, handle: _Handle, name: str, signature: Signature, metrics: Metrics) -> None:
        super().__init__(name, signature, metrics.model(name, lambda: self._requests))
        self._handle, self._requests = handle, 0

    async def run(self, request: Request) -> list[Any]:
        """Return the leaves of the result of a request; raise RequestError if it fails."""
        if request.turn is not None:
            raise no_states(self.name)
        self._requests += 1
        try:
            return await self._handle.call("run", self.name, request, carrier())  # type: ignore[no-any-return]
        finally:
            self._requests -= 1


class RemoteLanguage:
    """A language model whose conversations run on replicas.

    Args:
        handle: the way to the replicas.
        name: of the program.
        metrics: of the ingress.
    """

    def __init__(self, handle: _Handle, name: str, metrics: Metrics) -> None:
        self._handle, self.requests = handle, 0
        self.metrics = metrics.model(name, lambda: self.requests)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request. A replica limits their number."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    def check(self, body: Mapping[str, Any], is_chat: bool) -> Any:
        """Return what a replica checks, which has the tokenizer."""
        return body, is_chat

    async def answer(self, request: Any, is_gone: Event) -> tuple[bytes, AsyncGenerator[bytes, None] | None]:
        """Return the complete answer as JSON, or the first part of a stream and the others."""
        text, parts = await self._handle.stream("complete", *request)
        return text, self._rest(parts) if await anext(parts) else None

    async def _rest(self, parts: Any) -> AsyncGenerator[bytes, None]:
        try:
            async for part in parts:
                yield part
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

    def find(self, name: str) -> ServedModel:
        """Return a model; raise RequestError if there is none of this name."""
        return found(name, self.by_name, "model")

    def language_names(self) -> Mapping[str, str]:
        """Return the names of language models, alone and with each of their adapters."""
        return {name: name for name in self.languages}

    def is_available(self, name: str) -> bool:
        """Return True: the replicas load it."""
        return True

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[ServedModel]:
        """Yield a model."""
        yield self.find(name)

    @asynccontextmanager
    async def use_language(self, name: object) -> AsyncIterator[Language]:
        """Count a request of a language model; raise RequestError if there is none of this name."""
        language = found(name, self.languages, "language model")
        with language.request():
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
        tracing = None if telemetry is None else Tracing(telemetry)
        metrics = Metrics(tracing)
        models: dict[str, ServedModel] = {}
        languages: dict[str, Language] = {}
        for model in descriptions:
            file = files[model.file]
            group = handles[file.replicas.group or model.file]
            if file.replicas.group:
                group = group.options(multiplexed_model_id=model.file)
            handle = _Handle(group, model.name, model.file, file.settings.timeout)
            if model.signature is None:
                languages[model.name] = RemoteLanguage(handle, model.name, metrics)
            else:
                models[model.name] = RemoteModel(handle, model.name, model.signature, metrics)
        catalog = RemoteModels(models, languages)
        self.settings, self.application = settings, Application(catalog, settings, metrics)
        self._calls = Service(catalog, lambda: True, tracing).calls()

    async def grpc(self, name: str, data: bytes, context: Any) -> Any:
        """Answer a request over gRPC."""
        return _Bytes(await self._calls[name](data, _Context(context)))


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
    """The context of gRPC in Ray Serve, with the method of that of grpcio."""

    context: Any

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


async def _http(scope: Any, receive: Any, send: Any) -> None:
    """Answer a request over HTTP by the application of the ingress of this process."""
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


class Fleet:
    """The models of a server on the connected Ray cluster, in a `with` block.

    Args:
        files: the name of each program, and its file, at the same path on all nodes.
        settings, telemetry: of the server.
        host, port, grpc_port: where each node listens. 0 is a free port of this machine.

    Raises:
        ConfigError: the cluster serves another application.
    """

    def __init__(
        self,
        files: Mapping[str, ModelFile],
        settings: Settings,
        telemetry: Telemetry | None,
        host: str,
        port: int,
        grpc_port: int | None,
    ) -> None:
        running = serve.status()
        if running.applications:
            what = f"the cluster serves the application {next(iter(running.applications))!r} already"
            raise ConfigError(what, where="--ray", remedy="end it with `serve shutdown`, or use another cluster")
        self._files = {name: _absolute(file) for name, file in files.items()}
        self._settings, self._telemetry, self._host = settings, telemetry, host
        self.port = _port(host, port)
        self.grpc_port = None if grpc_port is None else _port(host, grpc_port)
        self.groups: dict[str, dict[str, ModelFile]] = {}
        for name, file in self._files.items():
            self.groups.setdefault(file.replicas.group or name, {})[name] = file

    def deploy(self) -> list[Description]:
        """Serve the files; replicas of an earlier call answer their requests, and end. Return the models.

        Raises:
            ConfigError: nodes lack resources, files or packages, or have other versions.
            BackendFailed: replicas do not start.
        """
        descriptions = self._check()
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # this command prints what it does
        grpc_options = {"port": self.grpc_port, "grpc_servicer_functions": [_GRPC]} if self.grpc_port else None
        http_options = {"host": self._host, "port": self.port}
        serve.start("EveryNode", http_options, grpc_options, _SILENT)
        handles = {name: self._deployment(name, files) for name, files in self.groups.items()}
        ingress = serve.deployment(serve.ingress(lambda: _http)(Ingress)).options(
            name=_INGRESS,
            ray_actor_options={"num_cpus": 0},
            max_ongoing_requests=self._settings.queue * len(self._files),
            logging_config=_SILENT,
        )
        try:
            serve.run(ingress.bind(descriptions, self._files, self._settings, self._telemetry, handles), name=NAME)
        except RuntimeError as error:
            remedy = "check the memory of the nodes, and the logs of Ray Serve on the head node"
            what = f"the replicas do not start: {_reason() or error}"
            raise BackendFailed(what, where="--ray", remedy=remedy) from error
        return descriptions

    def _deployment(self, name: str, files: Mapping[str, ModelFile]) -> Any:
        """Return the deployment of a group."""
        file = next(iter(files.values()))
        replicas = file.replicas
        resources = dict(replicas.resources)
        actor = {"num_cpus": replicas.cpus, "num_gpus": resources.pop("GPU", 0), "resources": resources}
        target = max(replicas.target, *(f.settings.batch for f in files.values()))
        options = {
            "name": name,
            "ray_actor_options": actor,
            "autoscaling_config": {
                "min_replicas": replicas.min,
                "max_replicas": replicas.max,
                "target_ongoing_requests": target,
            },
            "max_ongoing_requests": 2 * target,
            "max_queued_requests": file.settings.queue,
            "graceful_shutdown_timeout_s": file.settings.timeout,
            "logging_config": _SILENT,
        }
        kind = _sharing(replicas.loaded) if replicas.group else Replica
        return serve.deployment(kind).options(**options).bind(files, self._telemetry)

    def _check(self) -> list[Description]:
        """Open each file on each node that may run it; return the models."""
        described: dict[str, list[Description]] = {}
        nodes = [node for node in ray.nodes() if node["Alive"]]
        answers = {}
        for name, files in self.groups.items():
            needs = {"CPU": float(next(iter(files.values())).replicas.cpus)}
            needs |= next(iter(files.values())).replicas.resources
            fitting = [n for n in nodes if all(n["Resources"].get(key, 0) >= value for key, value in needs.items())]
            if not fitting:
                text = ", ".join(f"{value:g} {key}" for key, value in needs.items())
                what = f"no node of the cluster has {text}, which a replica of {name!r} needs"
                raise ConfigError(what, where="--ray", remedy="change `replicas` of the model, or add such a node")
            data = pickle.dumps((delegate.__version__, files))
            for node in fitting:
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                task = ray.remote(_probe()).options(num_cpus=0, scheduling_strategy=strategy, max_retries=0)
                answers[task.remote(data)] = node["NodeManagerAddress"], name
        for answer, (address, name) in answers.items():
            described[name] = _answer_of(answer, address)
        models = [model for group in described.values() for model in group]
        names = [model.name for model in models]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two models have the name {name!r}", remedy="give one file another name: NAME=FILE")
        return models

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        serve.shutdown()


def describe(version: str, files: Mapping[str, ModelFile]) -> list[Description]:
    """Open program files on this node, and return their models.

    Args:
        version: of the driver.
        files: the programs by name.

    Raises:
        ConfigError: the node has another version, or a program has states, which no replica shares.
        DelegateError: a file cannot be loaded or served.
    """
    require_version(version)
    descriptions = []
    for name, file in files.items():
        with Models({name: file}, Metrics()) as models:
            descriptions += [Description(language, name, None) for language in models.language_names()]
            for model in models.by_name.values():
                if not model.has_states:
                    descriptions.append(Description(model.name, name, model.signature))
                elif name not in models.languages:
                    what = f"model {model.name!r} has states, whose sessions are in one process"
                    raise ConfigError(what, where=str(file.path), remedy="serve it without --ray")
    return descriptions


def _probe() -> Callable[[bytes], Any]:
    """Return a task that needs no package on the node until it runs: it is sent by value."""

    def probe(data: bytes) -> Any:
        try:
            from delegate_serve.runtime.fleet import describe
        except ModuleNotFoundError as error:
            return error.name
        import pickle

        return describe(*pickle.loads(data))

    return probe


def _answer_of(answer: Any, address: str) -> list[Description]:
    """Return what a node answers; raise ConfigError that names the node."""
    try:
        described = ray.get(answer)
    except RayTaskError as error:
        problem: DelegateError = cause_of(error)
        raise ConfigError(f"node {address}: {problem.what}", where=problem.where, remedy=problem.remedy) from error
    except RayError as error:
        first, _, _ = str(error).partition("\n")
        raise BackendFailed(f"node {address}: {first}", where="--ray", remedy="check the memory of the node") from error
    if isinstance(described, str):
        what = f"node {address} has no package {described!r}"
        raise ConfigError(what, where="--ray", remedy="pip install 'delegate-serve[ray]' on all nodes")
    return list(described)


def _reason() -> str:
    """Return the error of a deployment that does not start."""
    deployments = (d for app in serve.status().applications.values() for d in app.deployments.items())
    return next((f"{name}: {d.message.strip().splitlines()[-1]}" for name, d in deployments if d.message), "")


def _absolute(file: ModelFile) -> ModelFile:
    """Return a program file with paths that do not depend on the folder of a process."""
    adapters = {name: folder.absolute() for name, folder in file.adapters.items()}
    return replace(file, path=file.path.absolute(), adapters=adapters)


def _port(host: str, port: int) -> int:
    """Return the port, or a free one for 0; raise ConfigError if this machine uses it."""
    with bind(host, port) as bound:
        return int(bound.getsockname()[1])
