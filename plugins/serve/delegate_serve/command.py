"""`delegate serve`: serve program files by the open inference protocol."""

from __future__ import annotations

import functools
import gc
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from delegate.cli import output
from delegate.cli.options import LoadOptions, parse_load_options
from delegate.errors import ConfigError, DelegateError
from delegate_serve.runtime.settings import MAX_CONNECTIONS, MAX_THREADS, MIB, ModelFile, Settings

if TYPE_CHECKING:
    from delegate_serve.config import ServerConfig
    from delegate_serve.runtime.grpc_service import GrpcServer
    from delegate_serve.runtime.http import Application
    from delegate_serve.runtime.models import Models
    from delegate_serve.runtime.server import Server
    from delegate_serve.runtime.settings import Telemetry
    from delegate_serve.runtime.shared_memory import Regions
    from delegate_serve.runtime.tracing import Tracing

_MICROSECONDS = 1e6
_PORTS = {"http": 80, "https": 443}
_PATIENCE = 1.0  # seconds for a collector of traces
_OTHER_FILES = 512  # open files of libraries, processes and shared memory
_CLOSING = 1.0  # seconds beyond the limit of a shutdown, after which the process ends whatever it does
_DEFAULT = Settings()
_IN_ONE_PROCESS = {  # an option that needs a server in one process -> the way without it
    "shared_memory": "clients can send binary data",
    "memory": "`replicas.loaded` is the limit for the models of a group",
    "threads": "`replicas.cpus` is the number of threads of a replica",
    "control": "SIGHUP loads new files",
}


@dataclass(frozen=True, slots=True)
class AddressOptions:
    """Where the server listens, and where it runs."""

    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 is all.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="Port for HTTP; 0: a free one.")] = 8000
    grpc_port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Port for gRPC. Default: no gRPC.")
    ] = None
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Serve on this Ray cluster: host:port, or auto.")
    ] = None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How requests are joined, limited and ordered."""

    batch: Annotated[
        int,
        typer.Option(min=1, metavar="ROWS", help="Join requests of programs with a dynamic batch, up to these rows."),
    ] = _DEFAULT.batch
    batch_delay: Annotated[
        float,
        typer.Option(min=0, max=_MICROSECONDS, metavar="MICROSECONDS", help="With --batch: time to wait for others."),
    ] = _DEFAULT.batch_delay
    queue: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests of a model that may wait; others get the status 429.")
    ] = _DEFAULT.queue
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001, max=86400, metavar="SECONDS", help="Limit for a request to arrive, and then for its answer."
        ),
    ] = _DEFAULT.timeout
    max_body: Annotated[int, typer.Option(min=1, metavar="MIB", help="Limit for the size of a request.")] = (
        _DEFAULT.max_body // MIB
    )
    sessions: Annotated[
        int, typer.Option(min=1, metavar="N", help="Conversations at once with a program that has states.")
    ] = _DEFAULT.sessions
    session_timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Time without requests after which one may end for another."),
    ] = _DEFAULT.session_timeout
    priority: Annotated[
        int, typer.Option(min=1, metavar="N", help="Of requests that have none; smaller numbers run first.")
    ] = _DEFAULT.priority


@dataclass(frozen=True, slots=True)
class ResourceOptions:
    """What the models may use, and what clients may do with them."""

    threads: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_THREADS, metavar="N", help="Calls of all models at once. Default: the number of cores."
        ),
    ] = _DEFAULT.threads
    memory: Annotated[
        int | None,
        typer.Option(min=1, metavar="MIB", help="Memory of all models. Those not in use are closed for others."),
    ] = None
    model_memory: Annotated[int | None, typer.Option(min=1, metavar="MIB", help="Memory of one program.")] = None
    control: Annotated[bool, typer.Option("--control", help="Let clients load and unload models.")] = False
    shared_memory: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX", help="Let clients on this machine use shared memory whose names begin with PREFIX."
        ),
    ] = None


def serve(
    context: typer.Context,
    address: AddressOptions,
    requests: RequestOptions,
    resources: ResourceOptions,
    load: LoadOptions,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=]FILE", help="Program files. Default name: that of the file."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="YAML file of models and limits. Options here replace it."),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of that file, for editors.")] = False,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[MODEL:]NAME=FOLDER",
            help="LoRA adapter of a language model; requests select it as MODEL:NAME. May be repeated.",
        ),
    ] = None,
) -> None:
    """Serve program files over HTTP and gRPC, by the open inference protocol of KServe and Triton.

    The server ends at SIGINT or SIGTERM, after it has answered all requests that have arrived, or after --timeout.
    """
    from delegate_serve import config as configs  # not for the help

    if schema:
        output.print_json(configs.json_schema())
        return
    if not files and config is None:
        raise typer.BadParameter("FILE is missing: give program files, or --config")
    server = configs.read(config, _paths_by_name(files or ()), _list_given_options(context))
    program_files = _with_adapters(server.files(), adapter or ())
    print(_ending((_serve_here if server.ray is None else _serve_on_ray)(server, program_files)))


def _serve_here(server: ServerConfig, files: Mapping[str, ModelFile]) -> int:
    """Serve in this process until a signal, and return the number of requests that its end did not wait for."""
    from delegate_serve.runtime.http import Application
    from delegate_serve.runtime.metrics import Metrics
    from delegate_serve.runtime.models import Models
    from delegate_serve.runtime.server import Server, address_of, bind

    settings = server.settings()
    _allow_open_files(2 * MAX_CONNECTIONS + _OTHER_FILES)
    with ExitStack() as stack, bind(server.host, server.port) as bound:
        gc.collect()
        gc.freeze()  # full collections need not examine what is imported, which would stop all requests for 20 ms
        stack.callback(gc.unfreeze)
        tracing = _tracing(server.traces())
        if tracing is not None:
            stack.callback(tracing.close)
        metrics = Metrics(tracing)
        grpc_address = None if server.grpc_port is None else _free_address(server.host, server.grpc_port)
        with output.working(f"loading {', '.join(str(file.path) for file in files.values())}"):
            models = Models(files, metrics, settings)
        stack.callback(_close, models)
        regions = _regions(settings)
        stack.callback(regions.close)
        application = Application(models, settings, metrics, regions)
        grpc = None
        if grpc_address is not None:
            grpc = _grpc_server(application, models, grpc_address, settings, tracing, regions)
        _warn_if_silent(server.traces())
        start = functools.partial(_describe, models, address_of(bound), grpc_address)
        timer = Timer(settings.timeout + _CLOSING, lambda: _end(running))
        timer.daemon = True
        reload = functools.partial(_reload, models)
        running = Server(application, settings, start, grpc, reload, timer.start, lambda: _end(running))
        running.run([bound])
    timer.cancel()
    return running.unfinished


def _allow_open_files(count: int) -> None:
    """Raise the limit of open files to so many, if the system lets it, for the sockets of HTTP and gRPC."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < count:
            most = count if hard == resource.RLIM_INFINITY else min(count, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _close(models: Models) -> None:
    """Close the models. That all requests are answered is what counts, so an error is only a warning."""
    try:
        models.close()
    except DelegateError as error:
        output.warn(str(error))


def _end(server: Server) -> None:
    """End the process: a call that nobody waits for any more, or a library that hangs, must not keep it."""
    print(_ending(server.unfinished), flush=True)
    os._exit(0)


def _ending(unfinished: int) -> str:
    """Describe the end of a server that did not wait for some requests."""
    if unfinished == 0:
        return "ended: all requests are answered"
    return f"ended before {unfinished} request{'s were' if unfinished > 1 else ' was'} done"


def _serve_on_ray(server: ServerConfig, files: Mapping[str, ModelFile]) -> int:
    """Serve on a Ray cluster until a signal; see `_serve_here` for the result."""
    for name, remedy in _IN_ONE_PROCESS.items():
        if getattr(server, name):
            option = f"--{name.replace('_', '-')}"
            what = f"{option} needs a server in one process"
            raise ConfigError(what, remedy=f"leave out --ray, or {option}: {remedy}")
    try:
        from delegate_ray.runtime.connection import connected

        from delegate_serve.runtime.fleet import Fleet
    except ModuleNotFoundError as error:
        what = f"--ray needs {error.name}, which is not installed"
        raise ConfigError(what, remedy="pip install './plugins/serve[ray]'") from None
    _tracing(server.traces())
    if server.grpc_port is not None:
        _free_address(server.host, server.grpc_port)
    with (
        connected(str(server.ray)),
        Fleet(files, server.settings(), server.traces(), server.host, server.port, server.grpc_port) as fleet,
    ):
        signals = _signals()
        with output.working(f"starting replicas of {', '.join(server.models)}"):
            found = fleet.deploy()
        _warn_if_silent(server.traces())
        for model in found:
            path = f"v2/models/{quote(model.name)}" if model.signature else f"v1, model {model.name}"
            print(f"http://{server.host}:{fleet.port}/{path}")
        if fleet.grpc_port is not None:
            print(f"gRPC: {server.host}:{fleet.grpc_port}")
        print(f"serving {_count(len(found))} on Ray, until SIGINT or SIGTERM", flush=True)
        while signals.get() not in (signal.SIGINT, signal.SIGTERM):
            try:
                fleet.deploy()
            except DelegateError as error:
                output.error(f"the files are not loaded again, and the old ones are served: {error}")
            else:
                print(f"loaded again: {', '.join(server.models)}", flush=True)
    return fleet.unfinished


def _tracing(telemetry: Telemetry | None) -> Tracing | None:
    """Return what records spans; raise ConfigError if its packages are not installed."""
    if telemetry is None:
        return None
    try:
        from delegate_serve.runtime.tracing import Tracing
    except ModuleNotFoundError as error:
        what = f"`telemetry` needs {error.name}, which is not installed"
        raise ConfigError(what, remedy="pip install './plugins/serve[telemetry]'") from None
    return Tracing(telemetry)


def _warn_if_silent(telemetry: Telemetry | None) -> None:
    """Warn if no collector takes connections now.

    That is not an error: the server works without it, and it may come.
    """
    if telemetry is None:
        return
    endpoint = telemetry.endpoint
    try:
        url = urlsplit(endpoint)
        socket.create_connection((url.hostname or "", url.port or _PORTS[url.scheme]), _PATIENCE).close()
    except (OSError, ValueError) as error:
        output.warn(f"`telemetry.endpoint` {endpoint!r} does not answer, so its traces are lost meanwhile: {error}")


def _signals() -> SimpleQueue[int]:
    """Return a queue of the signals for a server, from now on."""
    signals: SimpleQueue[int] = SimpleQueue()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda number, _: signals.put(number))
    return signals


def _list_given_options(context: typer.Context) -> dict[str, Any]:
    """Return the values of the options that the command line has."""
    given = {
        name: value
        for name, value in context.params.items()
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    }
    if "options" in given:
        given["options"] = parse_load_options(given["options"])
    return given


def _free_address(host: str, port: int) -> str:
    """Return host and port for gRPC, which binds them later; raise ConfigError if they cannot be used."""
    from delegate_serve.runtime.server import address_of, bind

    try:
        import grpc  # noqa: F401
        from google import protobuf  # noqa: F401
    except ModuleNotFoundError as error:
        what = f"--grpc-port needs {error.name}, which is not installed"
        raise ConfigError(what, remedy="pip install './plugins/serve[grpc]'") from None
    with bind(host, port) as bound:
        return address_of(bound)


def _regions(settings: Settings) -> Regions:
    """Return the shared memory of clients; raise ConfigError if this system has none."""
    from delegate_serve.runtime.shared_memory import FOLDER, Regions

    if settings.shared_memory is not None and not FOLDER.is_dir():
        what = f"--shared-memory needs {FOLDER}, which this system does not have"
        raise ConfigError(what, remedy="leave out the option: clients can send binary data")
    return Regions(settings.shared_memory)


def _grpc_server(
    application: Application,
    models: Models,
    address: str,
    settings: Settings,
    tracing: Tracing | None,
    regions: Regions,
) -> GrpcServer:
    from delegate_serve.runtime.grpc_service import GrpcServer, Service

    service = Service(models, application.is_ready, application.reserve, tracing, regions)
    return GrpcServer(service, address, settings)


async def _reload(models: Models) -> None:
    try:
        await models.reload()
    except (DelegateError, OSError) as error:
        output.error(f"the files are not loaded again, and the old ones are served: {error}")
    else:
        print(f"loaded again: {', '.join(models.by_name)}", flush=True)


def _describe(models: Models, address: str, grpc_address: str | None) -> None:
    for model in models.by_name.values():
        rows = f", up to {model.batching.most} rows in a call" if model.batching else ""
        print(f"http://{address}/v2/models/{quote(model.name)}{rows}")
    for name in models.language_names():
        print(f"OpenAI: http://{address}/v1, model {name}")
    if grpc_address is not None:
        print(f"gRPC: {grpc_address}")
    print(f"serving {_count(len(models.by_name))}, until SIGINT or SIGTERM", flush=True)


def _count(models: int) -> str:
    return f"{models} model{'s' * (models != 1)}"


def _paths_by_name(files: Sequence[str]) -> dict[str, Path]:
    """Return the file of each program by its name; raise ConfigError if two programs have one name."""
    paths: dict[str, Path] = {}
    for text in files:
        name, equals, path = text.partition("=")
        if not equals or os.path.exists(text):
            name, path = Path(text).stem, text
        if not name or "/" in name:
            raise ConfigError(f"{text!r} has no name that a URL can have", remedy="give it one: NAME=FILE")
        if name in paths:
            what = f"two programs have the name {name!r}: {paths[name]} and {path}"
            raise ConfigError(what, remedy="give one of them another name: NAME=FILE")
        paths[name] = Path(path)
    return paths


def _with_adapters(files: Mapping[str, ModelFile], texts: Sequence[str]) -> dict[str, ModelFile]:
    """Return program files with more adapters, each [MODEL:]NAME=FOLDER; raise ConfigError if one has no program."""
    changed = dict(files)
    for text in texts:
        left, _, folder = text.partition("=")
        model, colon, name = left.rpartition(":")
        if not colon and len(files) == 1:
            (model,) = files
        if model not in files or not name or not folder:
            remedy = f"write MODEL:NAME=FOLDER; models are {', '.join(files)}"
            raise ConfigError(f"{text!r} names no adapter of a model", where="--adapter", remedy=remedy)
        if name in changed[model].adapters:
            raise ConfigError(f"two adapters of {model!r} have the name {name!r}", remedy="give them different names")
        changed[model] = replace(changed[model], adapters={**changed[model].adapters, name: Path(folder)})
    return changed
