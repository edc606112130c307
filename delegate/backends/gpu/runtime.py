"""The runtime half: a blob is opened by the engine that made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delegate.backends.gpu.engines import ENGINE, ENGINES, Engine
from delegate.errors import BackendFailed, did_you_mean
from delegate.runtime.backend import BackendRuntime, Delegate, DeviceMemory


class GpuRuntime(BackendRuntime):
    """Opens what the AOT half made."""

    fork_safe = False  # neither Vulkan nor CUDA is

    def __init__(self) -> None:
        self._engines: dict[str, BackendRuntime] = {}

    def runs_code(self, compile_specs: Mapping[str, Any]) -> bool:
        engine = ENGINES.get(compile_specs[ENGINE])
        return engine is not None and self._half(engine).runs_code(compile_specs)

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        name = compile_specs[ENGINE]
        if name not in ENGINES:
            raise BackendFailed(
                f"it was made by an engine {name!r}, which is unknown", remedy=did_you_mean(name, ENGINES)
            )
        return self._half(ENGINES[name]).init(blob, compile_specs)

    def _half(self, engine: Engine) -> BackendRuntime:
        if engine.name not in self._engines:
            self._engines[engine.name] = engine.half("runtime")()
        return self._engines[engine.name]

    def allocate(self, space: str, size: int) -> DeviceMemory | None:
        """Memory of the engine that knows such."""
        given = (engine.allocate(space, size) for engine in self._engines.values())
        return next((memory for memory in given if memory is not None), None)
