"""The models of a server: the methods of its program files, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

import delegate
from delegate.errors import ConfigError, did_you_mean
from delegate.runtime.batching import batching_of
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.method import Method
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.openai import METHODS, LanguageModel
from delegate_serve.runtime.requests import Request
from delegate_serve.runtime.sessions import Sessions
from delegate_serve.runtime.settings import ModelFile, Settings
from delegate_serve.runtime.signature import signature_of
from delegate_serve.runtime.worker import Worker

_POLL = 0.02  # seconds between two looks at the requests of old models
VERSION = "1"  # the only version of each model
PLATFORM = "delegate"


class Model:
    """A method of a program file as a model of the protocol.

    Args:
        name: of the model.
        method: the method.
        where: its file, for messages.
        sessions: of the program, if it has states; they have no batches.
        settings: the limits.
        metrics: of the server.

    Raises:
        ConfigError: the method cannot be served.
    """

    def __init__(
        self, name: str, method: Method, where: str, sessions: Sessions | None, settings: Settings, metrics: Metrics
    ) -> None:
        self.name, self._method, self._sessions = name, method.name, sessions
        self.signature = signature_of(method.definition, where)
        remedy = "serve it without --batch"
        self.batching = None if sessions else batching_of(method, settings.batch, f"model {name!r}", remedy)
        self.worker = Worker(name, method.run, method.check, self.batching, settings, metrics)
        self.requests = 0  # that are received, wait or run now

    @contextmanager
    def request(self) -> Iterator[None]:
        """Keep the model open for a request."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    async def run(self, request: Request) -> list[Any]:
        """Return the leaves of the result of a request; raise RequestError if it fails."""
        if self._sessions is None:
            if request.turn is not None:
                raise RequestError(400, f"the request has a sequence_id, but model {self.name!r} has no states")
            return await self.worker.run(request.leaves, request.timeout)
        with self._sessions.turn(request.turn, self._method) as run:
            return await self.worker.run(request.leaves, request.timeout, run)

    def require_version(self, version: str) -> None:
        """Raise RequestError if the model has no such version."""
        if version != VERSION:
            raise RequestError(404, f"model {self.name!r} has no version {version[:100]!r}: it has {VERSION}")

    def metadata(self) -> dict[str, Any]:
        """Return the description of the protocol."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": PLATFORM,
            "inputs": [tensor.metadata() for tensor in self.signature.inputs.values()],
            "outputs": [tensor.metadata() for tensor in self.signature.outputs.values()],
        }


class _Opened(NamedTuple):
    """Open models by name, language models by the name of their program, and what closes both."""

    by_name: dict[str, Model]
    languages: dict[str, LanguageModel]
    stack: ExitStack

    def requests(self) -> int:
        """Return the number of requests that are not answered completely."""
        return sum(m.requests for m in self.by_name.values()) + sum(m.requests for m in self.languages.values())


class Models:
    """All models of a server. The method of a plain call has the name of its file, others add theirs after a dot.

    Example::

        with Models({"net": ModelFile(Path("net.dlg"))}, Metrics()) as models:
            models.by_name["net"].metadata()

    Args:
        files: the name of each program, and its file.
        metrics: of the server.

    Raises:
        ConfigError: a file cannot be served, or two models have one name.
        DelegateError: a file cannot be loaded.
    """

    def __init__(self, files: Mapping[str, ModelFile], metrics: Metrics) -> None:
        self._files, self._metrics = files, metrics
        self._reloading = asyncio.Lock()
        self._open_models = self._open()

    @property
    def by_name(self) -> dict[str, Model]:
        """The models."""
        return self._open_models.by_name

    @property
    def languages(self) -> dict[str, LanguageModel]:
        """The language models, which are programs and not methods."""
        return self._open_models.languages

    def find(self, name: str) -> Model:
        """Return a model; raise RequestError if there is none of this name."""
        if name not in self.by_name:
            raise RequestError(404, f"there is no model {name[:100]!r}: {did_you_mean(name[:100], self.by_name)}")
        return self.by_name[name]

    def find_language(self, name: object) -> LanguageModel:
        """Return a language model; raise RequestError if there is none of this name."""
        if not isinstance(name, str) or name not in self.languages:
            remedy = did_you_mean(str(name)[:100], self.languages)
            raise RequestError(404, f"there is no language model {str(name)[:100]!r}: {remedy}")
        return self.languages[name]

    async def reload(self) -> None:
        """Open the files again. Requests that have begun are answered by the old models, which are closed then.

        Raises:
            DelegateError: a file cannot be loaded or served; the old models stay.
        """
        async with self._reloading:
            opened = await asyncio.to_thread(self._open)
            old, self._open_models = self._open_models, opened
            while old.requests():
                await asyncio.sleep(_POLL)
            await asyncio.to_thread(old.stack.close)

    def _open(self) -> _Opened:
        by_name: dict[str, Model] = {}
        languages: dict[str, LanguageModel] = {}
        with ExitStack() as stack:
            for name, file in self._files.items():
                program = stack.enter_context(delegate.load(file.path, **file.load))
                if set(file.methods or program.methods) >= METHODS:
                    languages[name] = LanguageModel(name, program, file.settings, self._metrics)
                    stack.callback(languages[name].close)
                for model in self._models_of(program, name, file):
                    stack.callback(model.worker.close)
                    if model.name in by_name:
                        what = f"two models have the name {model.name!r}"
                        raise ConfigError(what, where=str(file.path), remedy="give one file another name: NAME=FILE")
                    by_name[model.name] = model
            return _Opened(by_name, languages, stack.pop_all())

    def _models_of(self, program: LoadedProgram, name: str, file: ModelFile) -> Iterator[Model]:
        sessions = Sessions(program, name, file.settings) if program.states else None
        for requested in file.methods:
            if requested not in program.methods:
                what = f"model {name!r} has no method {requested!r}"
                raise ConfigError(what, where=str(file.path), remedy=did_you_mean(requested, program.methods))
        for method in map(program.method, file.methods or program.methods):
            own = name if method.name == program.default_method else f"{name}.{method.name}"
            yield Model(own, method, str(file.path), sessions, file.settings, self._metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_models.stack.close()
