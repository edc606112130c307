"""The models of a server: the methods of its program files by name, loaded on demand within a limit of memory."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from time import monotonic
from types import TracebackType
from typing import Self, TypeVar

from delegate.errors import ConfigError, DelegateError, did_you_mean
from delegate.program.cores import cores
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.model import VERSION, Model
from delegate_serve.runtime.openai import LanguageModel
from delegate_serve.runtime.pool import Pool
from delegate_serve.runtime.programs import Loading, Opened, Program
from delegate_serve.runtime.settings import MIB, ModelFile, Settings

_POLL = 0.02  # seconds between two looks at the requests of a program that is to be closed
AnyModel = TypeVar("AnyModel")


class Models:
    """All models of a server. The method of a plain call has the name of its file, others add theirs after a dot.

    Every file is loaded once at the start, so that errors appear then. If there is a limit of memory, programs that are
    not in use make place for others, the least recently used first. A request loads its program again.

    Example::

        with Models({"net": ModelFile(Path("net.dlg"))}, Metrics()) as models:
            models.by_name["net"].metadata()

    Args:
        files: the name of each program, and its file.
        metrics: The server's metrics.
        settings: The server's settings; None: the defaults.

    Raises:
        ConfigError: a file cannot be served, or two models have one name.
        DelegateError: a file cannot be loaded.
    """

    def __init__(self, files: Mapping[str, ModelFile], metrics: Metrics, settings: Settings | None = None) -> None:
        self._settings = settings = settings or Settings()
        self._changing = asyncio.Lock()  # one program is loaded or closed at a time
        self._programs: dict[str, Program] = {}
        self.by_name: dict[str, Model] = {}  # also those that are not loaded
        self._owners: dict[str, Program] = {}
        with ExitStack() as stack:
            self.pool = Pool(settings.threads or cores())
            stack.callback(self.pool.close)
            stack.callback(self._close)
            for name, file in files.items():
                program = self._programs[name] = Program(name, file, self.pool, metrics)
                self._require_place(program, program.last)
                while self._sum_sizes(program) + program.last.size > (settings.memory or math.inf):
                    if (other := self._next_to_evict(program)) is not None:
                        _take(other).stack.close()
                self._show(program, program.last)
            self._stack = stack.pop_all()

    @property
    def languages(self) -> dict[str, LanguageModel]:
        """The language models, which are programs and not methods; also those that are not loaded."""
        return {name: p.last.language for name, p in self._programs.items() if p.last.language is not None}

    def language_names(self) -> dict[str, str]:
        """Return the names of language models, alone and with each of their adapters, and their programs' names."""
        return {name: program for program, language in self.languages.items() for name in language.adapters}

    def find(self, name: str) -> Model:
        """Return a model, which may not be loaded; raise RequestError if there is none of this name."""
        return found(name, self.by_name, "model")

    def is_available(self, name: str) -> bool:
        """Return True if requests can use a model; if it is not loaded, they load it."""
        return not self._owners[name].is_unloaded

    def use(self, name: str) -> AbstractAsyncContextManager[Model]:
        """Load a model if necessary, and keep it for a request; raise RequestError if that is not possible."""
        return _Use(self, name)

    @asynccontextmanager
    async def use_language(self, name: object) -> AsyncIterator[LanguageModel]:
        """Load a language model if necessary, and keep it for a request; raise RequestError if that is not possible."""
        names = self.language_names()
        program = found(name, names, "language model")
        opened = await self._keep(self._programs[program])
        try:
            if opened.language is None:
                raise RequestError(404, f"the new file of program {program!r} is no language model")
            with self.pool.request(), opened.language.request():
                yield opened.language
        finally:
            opened.users -= 1

    def index(self) -> list[dict[str, str]]:
        """Return the state of each model as Triton's repository does."""
        rows = []
        for name, program in self._owners.items():
            row = {"name": name, "version": VERSION, "state": "READY"}
            if program.loading is not None:
                row["state"] = "LOADING"
            elif program.opened is None:
                reason = "unloaded" if program.is_unloaded else "evicted: a request loads it"
                row |= {"state": "UNAVAILABLE", "reason": reason}
            rows.append(row)
        return rows

    async def load(self, name: str) -> None:
        """Load the file of a program, also if it is loaded; requests that have begun are answered by the old one."""
        program = self._control(name)
        was_unloaded, program.is_unloaded = program.is_unloaded, False
        try:
            if program.opened is None:
                await asyncio.shield(self._start(program).task)
            else:
                await self._replace([program])
        except (DelegateError, OSError) as error:
            program.is_unloaded = was_unloaded  # else its requests would try to load it
            raise RequestError(400, f"program {program.name!r} cannot be loaded: {error}") from error

    async def unload(self, name: str) -> None:
        """Close a program after its requests, until a client loads it; raise RequestError if that is not possible."""
        program = self._control(name)
        program.is_unloaded = True
        async with self._changing:
            if program.opened is not None:
                await _close_after_requests(_take(program))

    async def reload(self) -> None:
        """Load the files again, while requests that have begun are answered by the old programs, which are closed then.

        Raises:
            DelegateError: a file cannot be loaded or served; the old programs stay.
        """
        await self._replace([program for program in self._programs.values() if program.opened is not None])

    async def _replace(self, programs: list[Program]) -> None:
        async with self._changing:
            async with AsyncExitStack() as stack:
                new = {}
                for program in programs:
                    new[program] = await asyncio.to_thread(program.open)
                    stack.push_async_callback(asyncio.to_thread, new[program].stack.close)
                    self._require_place(program, new[program])
                stack.pop_all()
            old = [_take(program) for program in programs if program.opened is not None]
            for program, opened in new.items():
                self._show(program, opened)
                program.opened = opened
            for opened in old:
                await _close_after_requests(opened)
            for program in programs:
                await self._evict(0, program)

    async def keep_model(self, name: str) -> Opened:
        """Return the loaded program of a model with one user more; raise RequestError if that is not possible."""
        self.find(name)
        opened = await self._keep(self._owners[name])
        if name in opened.models:
            return opened
        opened.users -= 1
        raise RequestError(404, f"the new file of the program has no model {name!r}")

    async def _keep(self, program: Program) -> Opened:
        """Return a loaded program with one user more."""
        program.used = monotonic()
        if program.opened is None:
            return await self._wait(program)
        program.opened.users += 1
        return program.opened

    async def _wait(self, program: Program) -> Opened:
        """Return a program when it is loaded. The request is one of its users then, so it cannot be closed again."""
        loading = self._start(program)
        loading.waiting += 1
        try:
            await asyncio.wait([loading.task], timeout=program.file.settings.timeout)
            if not loading.task.done():
                what = f"program {program.name!r} was not loaded in time, since others need the memory"
                raise RequestError(429, f"{what}: try again in 1 s", retry_after=1)
            return loading.task.result()
        except BaseException as error:
            loading.waiting -= 1
            if loading.opened is not None:
                loading.opened.users -= 1
            if isinstance(error, DelegateError | OSError):
                raise RequestError(503, f"program {program.name!r} cannot be loaded: {error}", retry_after=1) from error
            raise

    def _start(self, program: Program) -> Loading:
        """Return the loading of a program, which begins if it has not yet."""
        if program.loading is None:
            program.loading = Loading(asyncio.create_task(self._load(program)))
        return program.loading

    async def _load(self, program: Program) -> Opened:
        try:
            async with self._changing:
                if program.is_unloaded:
                    raise RequestError(404, f"program {program.name!r} is unloaded: load it before")
                await self._evict(program.last.size, program)
                opened = await asyncio.to_thread(program.open)
                try:
                    self._require_place(program, opened)
                except ConfigError:
                    await asyncio.to_thread(opened.stack.close)
                    raise
                self._show(program, opened)
                program.opened = opened
                if program.loading is not None:
                    program.loading.opened, opened.users = opened, program.loading.waiting
                return opened
        finally:
            program.loading = None

    async def _evict(self, size: int, program: Program) -> None:
        """Close other programs until there is memory for one, after their requests. Further requests load them again.

        Programs that are not in use come first, and then the least recently used, while conversations are waited for.
        """
        while self._settings.memory is not None and self._sum_sizes(program) + size > self._settings.memory:
            if (other := self._next_to_evict(program)) is None:
                await asyncio.sleep(_POLL)
            else:
                await _close_after_requests(_take(other))

    def _next_to_evict(self, program: Program) -> Program | None:
        """Return the program that has to give way to another one; None if conversations need all."""
        others = [
            (other.opened.users > 0, other.used, name)
            for name, other in self._programs.items()
            if other is not program and other.opened is not None and not other.opened.has_sessions
        ]
        return self._programs[min(others)[2]] if others else None

    def _sum_sizes(self, program: Program) -> int:
        """Return the bytes of all programs that are loaded, but for one."""
        return sum(p.opened.size for p in self._programs.values() if p.opened is not None and p is not program)

    def _require_place(self, program: Program, opened: Opened) -> None:
        limit = self._settings.memory
        if limit is not None and opened.size > limit:
            what = f"program {program.name!r} needs {-(-opened.size // MIB)} MiB, but --memory is {limit // MIB} MiB"
            raise ConfigError(what, where=str(program.file.path), remedy="raise it, or serve a smaller program")
        for name in opened.models:
            if self._owners.get(name, program) is not program:
                what, remedy = f"two models have the name {name!r}", "give one file another name: NAME=FILE"
                raise ConfigError(what, where=str(program.file.path), remedy=remedy)

    def _show(self, program: Program, opened: Opened) -> None:
        """Describe the models of a program by those that are loaded now."""
        for name in program.last.models:
            self.by_name.pop(name, None)
            self._owners.pop(name, None)
        program.last = opened
        self.by_name |= opened.models
        self._owners |= dict.fromkeys(opened.models, program)

    def _control(self, name: str) -> Program:
        """Return a program by its own name or a model's name, if clients may change it."""
        if not self._settings.control:
            raise RequestError(403, "clients may not load and unload models: start the server with --control")
        program = self._programs.get(name) or self._owners.get(name)
        if program is None:
            known = [*self._programs, *self._owners]
            raise RequestError(404, f"there is no program {name[:100]!r}: {did_you_mean(name[:100], known)}")
        return program

    def _close(self) -> None:
        with ExitStack() as stack:
            for program in self._programs.values():
                if program.opened is not None:
                    stack.callback(_take(program).stack.close)

    def close(self) -> None:
        """Close all programs, and end the threads.

        Raises:
            DelegateError: a program cannot be closed; the others are.
        """
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Use:
    """The use of a model by a request: a class, since a generator takes as long as the rest of a small request's way.

    Args:
        models: The server's models.
        name: The model's name.
    """

    __slots__ = ("_models", "_name", "_opened")

    def __init__(self, models: Models, name: str) -> None:
        self._models, self._name = models, name

    async def __aenter__(self) -> Model:
        self._opened = await self._models.keep_model(self._name)
        return self._opened.models[self._name]

    async def __aexit__(self, *_: object) -> None:
        self._opened.users -= 1


def found(name: object, models: Mapping[str, AnyModel], what: str) -> AnyModel:
    """Return a model by its name; raise RequestError if there is none."""
    if not isinstance(name, str) or name not in models:
        text = str(name)[:100]
        raise RequestError(404, f"there is no {what} {text!r}: {did_you_mean(text, models)}")
    return models[name]


def _take(program: Program) -> Opened:
    """Return what is loaded of a program, which counts as not loaded from now on."""
    opened, program.opened = program.opened, None
    assert opened is not None
    return opened


async def _close_after_requests(opened: Opened) -> None:
    while opened.users:
        await asyncio.sleep(_POLL)
    await asyncio.to_thread(opened.stack.close)
