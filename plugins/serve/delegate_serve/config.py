"""The configuration of a server: a YAML file, and options of the command line, which replace its keys."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from delegate.config.source import AnyModel, Source, raise_all, read_yaml, validate
from delegate.errors import ConfigError
from delegate_serve.runtime.settings import MAX_THREADS, MIB, ModelFile, Replicas, Settings, Telemetry

_MICROSECONDS = 1e6
_BUILT_IN = Settings()
_LIMITS = ("batch", "queue", "timeout", "sessions", "session_timeout", "priority")  # keys with the unit of a setting
_LOAD = ("kernels", "fallback", "trust_code", "isolate", "options")  # keys that are arguments of `delegate.load`
Names = Annotated[tuple[str, ...], Field(strict=False)]  # YAML has lists, but strict mode would only accept tuples


class _Keys(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ReplicaKeys(_Keys):
    """The replicas of a model, with `--ray`."""

    min: int | None = Field(default=None, ge=1, description="The smallest number of replicas. Default: 1.")
    max: int | None = Field(default=None, ge=1, description="The largest number of replicas. Default: 1.")
    target: int | None = Field(
        default=None, ge=1, description="Requests that a replica should have at once. Default: 8."
    )
    grow_delay: float | None = Field(
        default=None, ge=0, description="Seconds of more requests before more replicas start. Default: 30."
    )
    shrink_delay: float | None = Field(
        default=None, ge=0, description="Seconds of fewer requests before replicas end. Default: 600."
    )
    cpus: int | None = Field(
        default=None, ge=1, description="CPUs of a replica, and threads of its partitions. Default: 1."
    )
    resources: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = Field(
        default=None, description="Other resources of Ray that each replica needs, e.g. GPU."
    )
    group: str | None = Field(
        default=None, description="Models of one group share replicas, which load them on demand. Default: none."
    )
    loaded: int | None = Field(
        default=None, ge=1, description="Models of a group in the memory of a replica. Default: 3."
    )


class TelemetryKeys(_Keys):
    """Traces of requests for OpenTelemetry."""

    endpoint: str = Field(
        pattern=r"^https?://",
        description="URL of a collector that takes OTLP over HTTP, e.g. http://host:4318/v1/traces.",
    )
    service: str = Field(default="delegate", description="Name of the server in traces.")
    sample: float = Field(
        default=1.0, ge=0, le=1, description="Share of traces that begin here. Other requests follow their client."
    )
    partitions: bool = Field(default=False, description="Record the partitions of each call, too.")


class ModelKeys(_Keys):
    """The keys of `defaults`, which each model may replace."""

    batch: int | None = Field(
        default=None, ge=1, description="Rows that one call may have, over all its requests. Default: 1."
    )
    batch_delay: float | None = Field(
        default=None, ge=0, le=_MICROSECONDS, description="Microseconds that a request waits for others. Default: 0."
    )
    queue: int | None = Field(default=None, ge=1, description="Requests that may wait. Others get 429. Default: 128.")
    timeout: float | None = Field(
        default=None,
        ge=0.001,
        le=86400,
        description="Seconds for a request to arrive, and then for its answer. Default: 60.",
    )
    sessions: int | None = Field(default=None, ge=1, description="Conversations at once. Default: 16.")
    session_timeout: float | None = Field(
        default=None,
        ge=0,
        description="Seconds without requests after which a session may end for another. Default: 600.",
    )
    priority: int | None = Field(
        default=None, ge=1, description="Of requests that have none. Smaller numbers run first. Default: 100."
    )
    model_memory: int | None = Field(default=None, ge=1, description="MiB of a program. Default: no limit.")
    kernels: Names | None = Field(default=None, description="Kernel libraries, in order of preference.")
    fallback: Literal["allow", "warn", "error"] | None = Field(
        default=None, description="Reaction if a delegate fails whose partition has kernels."
    )
    trust_code: bool | None = Field(default=None, description="Open partitions of machine code. Default: false.")
    isolate: bool | None = Field(default=None, description="Run delegates in a separate process. Default: false.")
    options: dict[str, dict[str, Any]] | None = Field(default=None, description="Backend: its options at load.")
    replicas: ReplicaKeys | None = Field(default=None, description="Replicas, with `--ray`.")


class ModelChoice(ModelKeys):
    """A model. In a file, its bare path is short for a mapping with only `path`."""

    path: str = Field(description="Program file. A relative path begins at the folder of the configuration.")
    methods: Names = Field(default=(), description="Methods to serve. Empty: all.")
    adapters: dict[str, str] = Field(
        default={}, description="Name: the folder of a LoRA adapter. Requests select it as MODEL:NAME."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, data: Any) -> Any:
        if not isinstance(data, str | Mapping):
            raise ValueError("should be the path of a program file, or a mapping that holds it")
        return {"path": data} if isinstance(data, str) else data


class ServerConfig(_Keys):
    """The configuration of a server."""

    version: Literal[1] = Field(default=1, description="Version of this format.")
    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 is all.")
    port: int = Field(default=8000, ge=0, le=65535, description="Port for HTTP; 0: a free one.")
    grpc_port: int | None = Field(default=None, ge=0, le=65535, description="Port for gRPC; null: no gRPC.")
    ray: str | None = Field(default=None, description="Address of a Ray cluster, or auto; null: serve in one process.")
    max_body: int = Field(
        default=_BUILT_IN.max_body // MIB, ge=1, description="Limit for the size of a request in MiB."
    )
    threads: int = Field(
        default=0, ge=0, le=MAX_THREADS, description="Calls of all models at once; 0: the number of cores."
    )
    memory: int | None = Field(
        default=None, ge=1, description="MiB of all models. Those not in use are closed for others. null: no limit."
    )
    control: bool = Field(default=False, description="Clients may load and unload models.")
    shared_memory: str | None = Field(
        default=None,
        description="First letters of the shared memory that clients on this machine may use; null: none.",
    )
    telemetry: TelemetryKeys | None = Field(default=None, description="Traces of requests; null: none.")
    defaults: ModelKeys = Field(default=ModelKeys(), description="Keys of all models.")
    models: dict[str, ModelChoice] = Field(default={}, description="Name: the model, or the path of its program file.")

    def settings(self, model: ModelKeys | None = None) -> Settings:
        """Return the settings of a model, or the server's settings."""
        keys = self._merge(model)
        delay = keys.get("batch_delay", _BUILT_IN.batch_delay) / _MICROSECONDS
        own = {name: keys[name] for name in _LIMITS if name in keys}
        return Settings(
            **own,
            batch_delay=delay,
            max_body=self.max_body * MIB,
            threads=self.threads,
            memory=_bytes(self.memory),
            model_memory=_bytes(keys.get("model_memory")),
            control=self.control,
            shared_memory=self.shared_memory,
        )

    def traces(self) -> Telemetry | None:
        """Return the settings of traces, if there are any."""
        return None if self.telemetry is None else Telemetry(**self.telemetry.model_dump())

    def files(self) -> dict[str, ModelFile]:
        """Return the program files by name."""
        return {name: self._file(model) for name, model in self.models.items()}

    def _file(self, model: ModelChoice) -> ModelFile:
        keys = self._merge(model)
        load = {name: keys[name] for name in _LOAD if name in keys}
        adapters = {name: Path(folder) for name, folder in model.adapters.items()}
        replicas = Replicas(**keys.get("replicas", {}))
        return ModelFile(Path(model.path), self.settings(model), model.methods, load, adapters, replicas)

    def _merge(self, model: ModelKeys | None) -> dict[str, Any]:
        """Return the keys of `defaults`, replaced by a model's keys."""
        common = self.defaults.model_dump(exclude_none=True)
        own = {} if model is None else model.model_dump(exclude_none=True)
        return common | own | {"replicas": common.get("replicas", {}) | own.get("replicas", {})}


def read(path: Path | None, paths: Mapping[str, Path], given: Mapping[str, Any]) -> ServerConfig:
    """Read and check a configuration.

    Args:
        path: Where a YAML file is; None: there is none.
        paths: program files of the command line by name. They are added to the files in the file.
        given: values of command-line options, of which each replaces its key in the server and in all models.

    Raises:
        ConfigError: the configuration is invalid; it lists all problems, one per line, with place and key.
    """
    written = Source({}) if path is None else read_yaml(path)
    config = validate(written, ServerConfig)
    folder = Path() if path is None else path.parent
    raise_all(_problems(config, written, folder, paths))
    common = {name: value for name, value in given.items() if name in ModelKeys.model_fields}
    own = {name: value for name, value in given.items() if name in ServerConfig.model_fields}
    models = {name: _update(m, common | _paths(m, folder)) for name, m in config.models.items()}
    for name, file in paths.items():
        chosen = models.get(name) or ModelChoice(path=str(file))
        models[name] = _update(chosen, common | {"path": str(file)})
    config = _update(config, own | {"models": models, "defaults": _update(config.defaults, common)})
    if config.port and config.port == config.grpc_port:
        what = f"HTTP and gRPC have the same port {config.port}"
        raise ConfigError(what, remedy="give another port or grpc_port, such as 0 for a free one")
    if "/" in (config.shared_memory or ""):
        what = f"shared_memory is {config.shared_memory!r}, but names of shared memory count without slashes"
        raise ConfigError(what, remedy="leave out the slash")
    return config


def _paths(model: ModelChoice, folder: Path) -> dict[str, Any]:
    """Return the paths of a model, of which relative ones begin at a folder."""
    adapters = {name: str(folder / path) for name, path in model.adapters.items()}
    return {"path": str(folder / model.path), "adapters": adapters}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a configuration, for editors."""
    schema = ServerConfig.model_json_schema()
    schema["properties"]["models"]["additionalProperties"] = {
        "anyOf": [{"type": "string", "description": "Program file."}, {"$ref": "#/$defs/ModelChoice"}]
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _problems(config: ServerConfig, written: Source, folder: Path, paths: Mapping[str, Path]) -> Iterator[ConfigError]:
    """Yield the errors that pydantic does not detect: names, files that do not exist, and replicas that contradict."""
    if not config.models and not paths:
        yield ConfigError("the configuration has no models", where=written.where(()), remedy="add the key `models`")
    for name, model in config.models.items():
        if not name or "/" in name:
            what = f"models: {name!r} is no name that a URL can have"
            yield ConfigError(what, where=written.where(("models", name), of_key=True), remedy="leave out the slash")
        if name not in paths and not os.path.isfile(folder / model.path):
            what = f"models.{name}: there is no program file {str(folder / model.path)!r}"
            yield ConfigError(what, where=written.where(("models", name, "path")), remedy="correct the path")
    groups: dict[str, tuple[str, Replicas]] = {}
    for name, file in config.files().items():
        where, own = written.where(("models", name, "replicas")), file.replicas
        if own.min > own.max:
            what = f"models.{name}.replicas: the smallest number is {own.min}, the largest {own.max}"
            yield ConfigError(what, where=where, remedy="set `max`, too")
        other, first = groups.setdefault(own.group or name, (name, own))
        if first != own:
            what = f"models.{name}.replicas: model {other!r} of the same group has other replicas"
            yield ConfigError(what, where=where, remedy="give all models of a group the same keys")


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB


def _update(model: AnyModel, keys: Mapping[str, Any]) -> AnyModel:
    return model.model_copy(update=dict(keys))
