"""Replica: an actor of Ray Serve that has programs and runs requests; and what a node finds in program files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from delegate_ray.runtime.connection import require_version
from delegate_ray.runtime.threads import replica_options
from ray import serve

from delegate.errors import ConfigError
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.models import Models
from delegate_serve.runtime.requests import Request
from delegate_serve.runtime.settings import ModelFile, Settings, Telemetry
from delegate_serve.runtime.signature import Signature
from delegate_serve.runtime.tracing import Tracing

Trace = Sequence[tuple[str, str]]  # headers that name a trace


@dataclass(frozen=True, slots=True)
class Description:
    """A model of a program file, as a node describes it.

    Args:
        name: The model's name.
        file: the name of its program.
        signature: The signature of its method; None for a language model.
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
        telemetry: Telemetry for the spans of calls.
    """

    def __init__(self, files: Mapping[str, ModelFile], telemetry: Telemetry | None) -> None:
        self._files, self._tracing = files, None if telemetry is None else Tracing(telemetry)
        self._only = self.load(*files) if len(files) == 1 else None

    def __del__(self) -> None:  # Ray Serve calls it when the requests are answered
        if self._tracing is not None:
            self._tracing.close()

    def load(self, name: str) -> _Loaded:
        """Open a program, with as many threads as the replica has CPUs."""
        file = self._files[name]
        options = replica_options(str(file.path), file.replicas.cpus, file.load.get("options") or {})
        files = {name: replace(file, load={**file.load, "options": options})}
        return _Loaded(Models(files, Metrics(self._tracing), Settings(threads=1)))

    async def open(self, name: str) -> _Loaded:
        """Return a program."""
        assert self._only is not None
        return self._only

    async def run(self, file: str, model: str, request: Request, trace: Trace) -> list[Any]:
        """Return the leaves of a request's result; raise RequestError if it fails."""
        if self._tracing is None:
            return await self._run(file, model, request)
        with self._tracing.client(trace), self._tracing.request(model):
            return await self._run(file, model, request)

    async def _run(self, file: str, model: str, request: Request) -> list[Any]:
        async with (await self.open(file)).models.use(model) as loaded:
            return await loaded.run(request)

    async def complete(self, file: str, fields: Mapping[str, Any], is_chat: bool) -> AsyncGenerator[Any, None]:
        """Yield None at once, the first part of a completion, True if it is a stream, and then the other parts."""
        yield None
        async with (await self.open(file)).models.use_language(fields.get("model")) as language:
            request = await language.check(fields, is_chat)
            text, stream = await language.answer(request)
            if stream is None:
                yield text
                yield False
                return
            async with aclosing(stream):
                yield text
                yield True
                async for part in stream:
                    yield part


def sharing_replica(loaded: int) -> type[Replica]:
    """Return the class of a replica that has some programs of its group in memory."""

    class Sharing(Replica):
        @serve.multiplexed(max_num_models_per_replica=loaded)  # type: ignore[untyped-decorator]
        async def open(self, name: str) -> _Loaded:
            return await asyncio.to_thread(self.load, name)

    return Sharing


def describe(version: str, files: Mapping[str, ModelFile]) -> list[Description]:
    """Open program files on this node, and return their models.

    Args:
        version: The driver's version.
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
