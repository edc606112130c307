"""The runtime half: a blob is opened by the engine that made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delegate.backends.gpu.engines import ENGINE, ENGINES
from delegate.errors import BackendFailed, did_you_mean
from delegate.runtime.backend import BackendRuntime, Delegate, DeviceMemory


class GpuRuntime(BackendRuntime):
    """Opens what the AOT half made."""

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        name = compile_specs[ENGINE]
        if name not in ENGINES:
            raise BackendFailed(
                f"it was made by an engine {name!r}, which is unknown", remedy=did_you_mean(name, ENGINES)
            )
        return _runtime(name).init(blob, compile_specs)

    def allocate(self, space: str, size: int) -> DeviceMemory | None:
        """Memory of an engine's device; the space has the engine's name."""
        return _runtime(space).allocate(space, size) if space in ENGINES else None


def _runtime(engine: str) -> BackendRuntime:
    made: BackendRuntime = ENGINES[engine].half("runtime")()
    return made
