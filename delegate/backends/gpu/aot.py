"""The AOT half: an engine, chosen by option, that checks and compiles."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Literal

from pydantic import Field
from torch.fx import Node

from delegate.backends import aot
from delegate.backends.aot import Backend, PreprocessResult, Region
from delegate.backends.gpu.cuda.aot import CudaOptions
from delegate.backends.gpu.engines import AUTO, ENGINE, ENGINES, Engine, choose
from delegate.backends.gpu.webgpu.aot import WebGpuOptions
from delegate.errors import BackendUnavailable
from delegate.verdict import Verdict


class GpuOptions(aot.Options):
    """Options of the GPU backend; each engine has its own under its name."""

    engine: Literal["auto", "webgpu", "cuda"] = Field(default="auto", description="What compiles and runs.")
    webgpu: WebGpuOptions = Field(default=WebGpuOptions(), description="Options of the engine webgpu.")
    cuda: CudaOptions = Field(default=CudaOptions(), description="Options of the engine cuda.")


class GpuBackend(Backend):
    """GPUs, by one of the engines.

    Raises:
        BackendUnavailable: the engine that the options name cannot be used here.
    """

    name = "gpu"
    Options = GpuOptions

    def __init__(self, options: GpuOptions) -> None:
        super().__init__(options)
        if options.engine == AUTO:
            self._engine, why = choose()
        else:
            self._engine, why = _required(ENGINES[options.engine]), "as asked"
        self._why = f"engine {self._engine.name}: {why}"
        half: type[Backend] = self._engine.half("aot")
        self._half = half(getattr(options, self._engine.name))

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """The conditions of every engine that takes the operator, each line with the engine's name."""
        taken = {name: engine.half("aot").conditions(op) for name, engine in ENGINES.items()}
        if all(lines is None for lines in taken.values()):
            return None
        return tuple(f"{name}: {line}" for name, lines in taken.items() for line in lines or ())

    @property
    def preserve_ops(self) -> Set[str]:
        return self._half.preserve_ops

    def check(self, node: Node) -> Verdict:
        return self._half.check(node)

    def preprocess(self, region: Region) -> PreprocessResult:
        made = self._half.preprocess(region)
        specs = {ENGINE: self._engine.name, **made.compile_specs}
        return replace(made, compile_specs=specs, notes=(self._why, *made.notes))


def _required(engine: Engine) -> Engine:
    found = engine.probe()
    if not found.ok:
        raise BackendUnavailable(
            f"engine {engine.name} of backend 'gpu' is unavailable: {found.reason}",
            remedy=found.remedy or engine.install,
        )
    return engine
