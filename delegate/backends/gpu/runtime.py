"""The runtime half: a session on WebGPU's provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delegate.backends.gpu import webgpu
from delegate.backends.onnx.blob import unpack
from delegate.backends.onnx.session import OnnxDelegate, open_session, session_options
from delegate.errors import BackendUnavailable
from delegate.runtime.backend import BackendRuntime, Delegate


class GpuRuntime(BackendRuntime):
    """Opens what the AOT half made."""

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        found = webgpu.provider()
        if not found.devices:
            raise BackendUnavailable(webgpu.NO_DEVICE, remedy="install a GPU driver, or keep a fallback: fallback.keep")
        model = unpack(blob, compile_specs)
        session = open_session(model, session_options(found, {}), webgpu.PROVIDER)
        return OnnxDelegate(session, model, webgpu.PROVIDER)
