"""The runtime half: a blob is opened by the engine that made it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delegate.backends.gpu.engines import ENGINE, ENGINES
from delegate.errors import BackendFailed, did_you_mean
from delegate.runtime.backend import BackendRuntime, Delegate


class GpuRuntime(BackendRuntime):
    """Opens what the AOT half made."""

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        name = compile_specs[ENGINE]
        if name not in ENGINES:
            raise BackendFailed(
                f"it was made by an engine {name!r}, which is unknown", remedy=did_you_mean(name, ENGINES)
            )
        runtime: BackendRuntime = ENGINES[name].half("runtime")()
        return runtime.init(blob, compile_specs)
