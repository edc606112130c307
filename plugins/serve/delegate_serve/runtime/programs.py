"""Programs: the program files of a server, which are loaded, evicted and loaded again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic

import delegate
from delegate.errors import ConfigError, did_you_mean
from delegate.runtime.loaded import LoadedProgram
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.model import Model, is_bounded
from delegate_serve.runtime.openai import METHODS, LanguageModel
from delegate_serve.runtime.pool import Pool
from delegate_serve.runtime.sessions import Sessions
from delegate_serve.runtime.settings import MIB, ModelFile
from delegate_serve.runtime.timeline import record_partition

_START = 60.0  # seconds that an isolated process has at the least: its libraries may compile at the start


@dataclass(slots=True, eq=False)
class Opened:
    """A loaded program.

    Args:
        models: its methods by the name of their model.
        language: its language model, if it is one.
        sessions: if it has states.
        size: bytes of its file and of its arenas.
        stack: closes it.
        users: requests that are not answered completely, so that it stays.
    """

    models: dict[str, Model]
    language: LanguageModel | None
    sessions: Sessions | None
    size: int
    stack: ExitStack
    users: int = 0

    @property
    def has_sessions(self) -> bool:
        """Return True if conversations would end with the program."""
        return self.sessions is not None and self.sessions.is_in_use


@dataclass(slots=True, eq=False)
class Loading:
    """The loading of a program, for which requests wait.

    Args:
        task: loads it.
        waiting: the number of requests, which become its users.
        opened: the result.
    """

    task: asyncio.Task[Opened]
    waiting: int = 0
    opened: Opened | None = None


class Program:
    """A program file of a server, whose state is changed on the event loop alone.

    Args:
        name: The program's name.
        file: its file and settings.
        pool: the threads.
        metrics: The server's metrics.

    Raises:
        ConfigError: the program cannot be served.
        DelegateError: the file cannot be loaded.
    """

    def __init__(self, name: str, file: ModelFile, pool: Pool, metrics: Metrics) -> None:
        self.name, self.file, self._pool, self._metrics = name, file, pool, metrics
        self.last = self.open()  # describes the models while the program is not loaded
        self.opened: Opened | None = self.last
        self.loading: Loading | None = None
        self.is_unloaded = False  # by a client, so requests do not load it
        self.used = monotonic()

    def open(self) -> Opened:
        """Load the file."""
        settings, where = self.file.settings, str(self.file.path)
        with ExitStack() as stack:
            if os.path.isfile(self.file.path):
                self._require_size(self.file.path.stat().st_size)
            program = stack.enter_context(delegate.load(self.file.path, **{**self.file.load, "isolate": self._isolate}))
            if self._metrics.tracing is not None and self._metrics.tracing.has_partitions:
                stack.enter_context(program.listen(record_partition))
            size = os.stat(self.file.path).st_size + _arenas(program)
            self._require_size(size)
            language = None
            if set(self.file.methods or program.methods) >= METHODS:
                language = LanguageModel(self.name, program, settings, self._metrics, self.file.adapters)
                stack.callback(language.close)
            elif self.file.adapters:
                remedy = "use adapters with programs of `delegate llm export` that have a tokenizer"
                raise ConfigError(f"program {self.name!r} is no language model", where=where, remedy=remedy)
            sessions = Sessions(program, self.name, settings) if program.states else None
            models = {}
            for model in self._models_of(program, where, sessions):
                stack.callback(model.worker.close)
                models[model.name] = model
            return Opened(models, language, sessions, size, stack.pop_all())

    @property
    def _isolate(self) -> bool | float:
        """The argument of `delegate.load`: a process that stops must not keep a thread for ever."""
        return self.file.load.get("isolate", False) and max(self.file.settings.timeout, _START)

    def _require_size(self, size: int) -> None:
        limit = self.file.settings.model_memory
        if limit is not None and size > limit:
            what = f"program {self.name!r} needs {-(-size // MIB)} MiB, but --model-memory is {limit // MIB} MiB"
            raise ConfigError(what, where=str(self.file.path), remedy="raise it, or serve a smaller program")

    def _models_of(self, program: LoadedProgram, where: str, sessions: Sessions | None) -> Iterator[Model]:
        for requested in self.file.methods:
            if requested not in program.methods:
                what = f"model {self.name!r} has no method {requested!r}"
                raise ConfigError(what, where=where, remedy=did_you_mean(requested, program.methods))
        for method in map(program.method, self.file.methods or program.methods):
            own = self.name if method.name == program.default_method else f"{self.name}.{method.name}"
            is_short = not program.states and not self._isolate and is_bounded(program.program, method.definition)
            yield Model(own, method, where, sessions, self.file.settings, self._pool, self._metrics, is_short)


def _arenas(program: LoadedProgram) -> int:
    """Return the bytes of all methods' arenas; those that are planned per shape are not known."""
    return sum(max(size, 0) for method in program.program.methods for size in method.arenas)
