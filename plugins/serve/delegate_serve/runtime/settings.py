"""The settings of a server and of its models: files, batching, and the limits of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
MAX_JSON = 8 * MIB  # bytes of a request that are no binary data: parsing is fast, but nothing else runs meanwhile
MAX_HEADERS = 64 << 10  # bytes of the headers of a request
MAX_THREADS = 1024  # of the server
MAX_CONNECTIONS = 900  # of each protocol; those of HTTP are below the usual limit of 1,024 open files
BODIES_IN_MEMORY = 16  # of the largest size, for all requests together


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server or of one model.

    Args:
        batch: rows that one call of a method may have, over all requests of the call; 1: no batching.
        batch_delay: seconds that a request waits for others of its batch.
        queue: requests of a model that may wait; one more gets the status 429.
        timeout: seconds for a request to arrive, and then for its answer.
        max_body: bytes of a request's body.
        sessions: conversations with a program that has states.
        session_timeout: seconds after which a session without requests may end for another.
        priority: The priority of a model's requests that have none; smaller numbers run first.
        threads: The calls of all models that run at once; 0: the number of cores.
        memory: The bytes of all models that are loaded at once; None: no limit.
        model_memory: bytes of one program; None: no limit.
        control: Whether clients may load and unload models.
        shared_memory: The first letters of the shared memory's names that clients may use; None: they
            may use none.
    """

    batch: int = 1
    batch_delay: float = 0.0
    queue: int = 128
    timeout: float = 60.0
    max_body: int = 64 * MIB
    sessions: int = 16
    session_timeout: float = 600.0
    priority: int = 100
    threads: int = 0
    memory: int | None = None
    model_memory: int | None = None
    control: bool = False
    shared_memory: str | None = None


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Traces of requests for OpenTelemetry.

    Args:
        endpoint: the URL of a collector that takes OTLP over HTTP.
        service: the name of the server in traces.
        sample: the share of traces that begin here. Requests of a trace follow their client.
        partitions: record the partitions of each call, too.
    """

    endpoint: str
    service: str = "delegate"
    sample: float = 1.0
    partitions: bool = False


@dataclass(frozen=True, slots=True)
class Replicas:
    """The replicas of a model on a Ray cluster.

    Args:
        min, max: the number of replicas.
        target: requests that a replica should have at once; more start another replica.
        grow_delay, shrink_delay: seconds that the requests must be more, or fewer, before replicas start or end.
        cpus: CPUs of each, and threads of each partition.
        resources: further resources of each, such as GPU, as Ray names them.
        group: models of a group share replicas, which load them on demand; empty: own replicas.
        loaded: models of a group that a replica has in memory.
    """

    min: int = 1
    max: int = 1
    target: int = 8
    grow_delay: float = 30.0
    shrink_delay: float = 600.0
    cpus: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)
    group: str = ""
    loaded: int = 3


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A program file of a server.

    Args:
        path: Where the file is.
        settings: The settings of its models.
        methods: the methods that are served; empty: all.
        load: the other arguments of `delegate.load`.
        adapters: the folders of LoRA adapters by name, of a language model.
        replicas: on a Ray cluster.
    """

    path: Path
    settings: Settings = Settings()
    methods: tuple[str, ...] = ()
    load: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, Path] = field(default_factory=dict)
    replicas: Replicas = Replicas()
