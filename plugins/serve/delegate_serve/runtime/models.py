"""The models of a server: the methods of its program files, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from delegate.errors import ConfigError
from delegate.runtime.batching import batching_of
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.method import Method
from delegate_serve.runtime.metrics import Metrics
from delegate_serve.runtime.settings import Settings
from delegate_serve.runtime.signature import signature_of
from delegate_serve.runtime.worker import Worker

VERSION = "1"  # the only version of each model
PLATFORM = "delegate"


class Model:
    """A method of a program file as a model of the protocol.

    Args:
        name: of the model.
        method: the method.
        where: its file, for messages.
        settings: the limits.
        metrics: of the server.

    Raises:
        ConfigError: the method cannot be served.
    """

    def __init__(self, name: str, method: Method, where: str, settings: Settings, metrics: Metrics) -> None:
        self.name = name
        self.signature = signature_of(method.definition, where)
        self.batching = batching_of(method, settings.batch, f"model {name!r}", "serve it without --batch")
        self.worker = Worker(name, method.run, method.check, self.batching, settings, metrics)

    def metadata(self) -> dict[str, Any]:
        """Return the description of the protocol."""
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": PLATFORM,
            "inputs": [tensor.metadata() for tensor in self.signature.inputs.values()],
            "outputs": [tensor.metadata() for tensor in self.signature.outputs.values()],
        }


class Models:
    """All models of a server. The method of a plain call has the name of its file, others add theirs after a dot.

    Example::

        with Models({"net": Path("net.dlg")}, delegate.load, Settings(), Metrics()) as models:
            models.by_name["net"].metadata()

    Args:
        files: the name of each program, and its file.
        load: opens a file.
        settings: the limits.
        metrics: of the server.

    Raises:
        ConfigError: a file cannot be served, or two models have one name.
        DelegateError: a file cannot be loaded.
    """

    def __init__(
        self, files: Mapping[str, Path], load: Callable[[Path], LoadedProgram], settings: Settings, metrics: Metrics
    ) -> None:
        self.by_name: dict[str, Model] = {}
        with ExitStack() as stack:
            for name, path in files.items():
                program = stack.enter_context(load(path))
                if program.states:
                    what = f"program {name!r} has states, which requests of several clients would share"
                    raise ConfigError(what, where=str(path), remedy="serve programs without states")
                for method in program.methods:
                    model_name = name if method == program.default_method else f"{name}.{method}"
                    if model_name in self.by_name:
                        what = f"two models have the name {model_name!r}"
                        raise ConfigError(what, where=str(path), remedy="give one file another name: NAME=FILE")
                    model = Model(model_name, program.method(method), str(path), settings, metrics)
                    stack.callback(model.worker.close)
                    self.by_name[model_name] = model
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
