"""The runtime part: a session on WebGPU's provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from delegate.errors import BackendFailed, BackendUnavailable
from delegate.runtime.backend import BackendRuntime, Delegate, DeviceMemory
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel, unpack
from delegate_onnxruntime.onnx.runtime.device_memory import OrtMemory
from delegate_onnxruntime.onnx.runtime.session import OnnxDelegate, open_session
from delegate_onnxruntime.webgpu.runtime import provider


class WebGpuRuntime(BackendRuntime):
    """The runtime part, which opens models of the AOT part."""

    load_options: ClassVar = {"threads": int, "memory_pattern": bool}

    def __init__(self) -> None:
        self._copier = provider.copier()

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        return self.init_with_data(blob, (), compile_specs)

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        reason = provider.no_device()
        if reason:
            raise BackendUnavailable(reason, remedy=provider.DRIVER)
        if compile_specs.get("float16") and (reason := provider.missing(provider.FLOAT16)):
            raise BackendFailed(
                "the GPU does not support float16", where=reason, remedy="lower a float32 program for it"
            )
        model = unpack(blob, data, compile_specs)
        return OnnxDelegate(partial(_open, model, compile_specs), model, provider.provider(), lost=self._copier.lost)

    def allocate(self, space: str, size: int) -> DeviceMemory | None:
        return OrtMemory(self._copier, size) if space == provider.SPACE else None


def _open(model: OnnxModel, specs: Mapping[str, Any], *, profile: str = "") -> Any:
    return open_session(model, provider.settings(specs), provider.provider(), profile=profile)
