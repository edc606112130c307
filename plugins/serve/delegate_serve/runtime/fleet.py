"""Fleet: the models of a server as an application of Ray Serve.

An ingress has the protocols. Its models send each request to a replica, an actor that has the programs. Models of a
group share replicas, which load them on demand.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import ray
from delegate_ray.runtime.cluster import cause_of
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import delegate
from delegate.errors import BackendFailed, ConfigError, DelegateError
from delegate_serve.runtime.ingress import Ingress, http_app
from delegate_serve.runtime.remote_models import MARGIN
from delegate_serve.runtime.replica import Description, Replica, sharing_replica
from delegate_serve.runtime.server import bind
from delegate_serve.runtime.settings import ModelFile, Settings, Telemetry

NAME = "delegate"  # of the application
_INGRESS = "ingress"
_SILENT = {"log_level": "CRITICAL", "enable_access_log": False}  # clients must not be able to fill a disk
_GRPC = "delegate_serve.runtime.grpc_service.add_to_server"


class Fleet:
    """The models of a server on the connected Ray cluster, in a `with` block.

    Args:
        files: the name of each program, and its file, at the same path on all nodes.
        settings, telemetry: of the server.
        host, port, grpc_port: where each node listens. 0 is a free port of this machine.

    Attributes:
        unfinished: requests that the end of the block did not wait for.

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
        self._limit = max((file.settings.timeout for file in self._files.values()), default=0.0) + MARGIN
        self._ingress: Any = None
        self.unfinished = 0
        self.groups: dict[str, dict[str, ModelFile]] = {}
        for name, file in self._files.items():
            self.groups.setdefault(file.replicas.group or name, {})[name] = file

    def deploy(self) -> list[Description]:
        """Serve the files; replicas of an earlier call answer their requests, and end. Return the models.

        Raises:
            ConfigError: nodes lack resources, files or packages, or have other versions.
            BackendFailed: replicas do not start.
        """
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # this command prints what it does
        descriptions = self._check()
        grpc_options = {"port": self.grpc_port, "grpc_servicer_functions": [_GRPC]} if self.grpc_port else None
        http_options = {"host": self._host, "port": self.port}
        serve.start("EveryNode", http_options, grpc_options, _SILENT)
        languages = {model.file for model in descriptions if model.signature is None}
        handles = {name: self._deployment(name, files, languages) for name, files in self.groups.items()}
        ingress = serve.deployment(serve.ingress(lambda: http_app)(Ingress)).options(
            name=_INGRESS,
            ray_actor_options={"num_cpus": 0},
            max_ongoing_requests=self._settings.queue * len(self._files),
            graceful_shutdown_timeout_s=self._limit,
            logging_config=_SILENT,
        )
        try:
            bound = ingress.bind(descriptions, self._files, self._settings, self._telemetry, handles)
            self._ingress = serve.run(bound, name=NAME)
        except RuntimeError as error:
            remedy = "check the memory of the nodes, and the logs of Ray Serve on the head node"
            what = f"the replicas do not start: {_reason() or error}"
            raise BackendFailed(what, where="--ray", remedy=remedy) from error
        return descriptions

    def _deployment(self, name: str, files: Mapping[str, ModelFile], languages: Collection[str]) -> Any:
        """Return the deployment of a group; `languages` are the files of language models."""
        file = next(iter(files.values()))
        replicas = file.replicas
        resources = dict(replicas.resources)
        actor = {"num_cpus": replicas.cpus, "num_gpus": resources.pop("GPU", 0), "resources": resources}
        target = max(replicas.target, *(f.settings.batch for f in files.values()))
        most = min([2 * target, *(f.settings.sessions for key, f in files.items() if key in languages)])
        options = {
            "name": name,
            "ray_actor_options": actor,
            "autoscaling_config": {
                "min_replicas": replicas.min,
                "max_replicas": replicas.max,
                "target_ongoing_requests": min(target, most),
                "upscale_delay_s": replicas.grow_delay,
                "downscale_delay_s": replicas.shrink_delay,
            },
            "max_ongoing_requests": most,  # others wait in the ingress, for any replica
            "max_queued_requests": file.settings.queue,
            "graceful_shutdown_timeout_s": file.settings.timeout,
            "logging_config": _SILENT,
        }
        kind = sharing_replica(replicas.loaded) if replicas.group else Replica
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._ingress is not None:
                self._drain()
        finally:
            serve.shutdown()

    def _drain(self) -> None:
        """Wait until the requests that have arrived are answered, at most as long as an answer may take.

        `serve.shutdown` ends the proxies at once, with the requests that they wait for.
        """
        with suppress(RayError, RayServeException, TimeoutError):  # a cluster that has died has no requests
            self.unfinished = self._ingress.drain.remote(self._limit).result(timeout_s=self._limit + MARGIN)
            serve.delete(NAME)  # the proxies stay meanwhile, and send the last answers


def _probe() -> Callable[[bytes], Any]:
    """Return a task that needs no package on the node until it runs: it is sent by value."""

    def probe(data: bytes) -> Any:
        try:
            from delegate_serve.runtime.replica import describe
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
