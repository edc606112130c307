"""The runtime half of the engine: a session on WebGPU's provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delegate.backends.gpu.webgpu import provider
from delegate.backends.onnx.blob import unpack
from delegate.backends.onnx.memory import OrtMemory
from delegate.backends.onnx.session import OnnxDelegate, open_session, session_options
from delegate.errors import BackendUnavailable
from delegate.runtime.backend import BackendRuntime, Delegate, DeviceMemory


class WebGpuRuntime(BackendRuntime):
    """Opens what the AOT half made."""

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        found = provider.provider()
        if not found.devices:
            raise BackendUnavailable(
                provider.NO_DEVICE, remedy="install a GPU driver, or keep a fallback: fallback.keep"
            )
        model = unpack(blob, compile_specs)
        session = open_session(model, session_options(found, {}), provider.PROVIDER)
        return OnnxDelegate(session, model, provider.PROVIDER)

    def allocate(self, space: str, size: int) -> DeviceMemory:
        return OrtMemory(space, size)
