"""The settings of a server and of its models: files, batching, and the limits of requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
MAX_JSON = 8 * MIB  # bytes of JSON in a request: parsing is fast, but nothing else runs meanwhile
MAX_HEADERS = 64 << 10  # bytes of the headers of a request
MAX_CONNECTIONS = 900  # below the usual limit of 1,024 open files
BODIES_IN_MEMORY = 16  # of the largest size, for all requests together


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server, or of one of its models.

    Args:
        batch: rows that one call of a method may have, over all requests of the call; 1: no batching.
        batch_delay: seconds that a request waits for others of its batch.
        queue: requests of a model that may wait; one more gets the status 429.
        timeout: seconds for a request to arrive, and then for its answer.
        max_body: bytes of the body of a request.
        sessions: conversations with a program that has states.
        session_timeout: seconds after which a session without requests may end for another.
        priority: of requests of a model that have none; smaller numbers run first.
        threads: of the server: calls of all models that run at once; 0: the number of cores.
        memory: of the server: bytes of all models that are loaded at once; None: no limit.
        model_memory: bytes of one program; None: no limit.
        control: of the server: clients may load and unload models.
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


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A program file of a server.

    Args:
        path: of the file.
        settings: of its models.
        methods: the methods that are served; empty: all.
        load: the other arguments of `delegate.load`.
        adapters: the folders of LoRA adapters by name, of a language model.
    """

    path: Path
    settings: Settings = Settings()
    methods: tuple[str, ...] = ()
    load: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, Path] = field(default_factory=dict)
