"""The runtime part: a session on WebGPU's provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from delegate.errors import BackendFailed, BackendUnavailable
from delegate.runtime.backend import Delegate, DeviceMemory
from delegate_onnxruntime.onnx.runtime.backend import OnnxRuntime
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel
from delegate_onnxruntime.onnx.runtime.device_memory import Copier, OrtMemory
from delegate_onnxruntime.onnx.runtime.provider import Provider
from delegate_onnxruntime.onnx.runtime.session import OnnxDelegate
from delegate_onnxruntime.webgpu import device

SPACE = "webgpu"  # the device's memory, as ONNX Runtime names it
# https://onnxruntime.ai/docs/execution-providers/WebGPU-ExecutionProvider.html
_OPTIONS = ("preferredLayout", "powerPreference", "storageBufferCacheMode", "validationMode")


class WebGpuRuntime(OnnxRuntime):
    """The runtime part, which opens models of the AOT part."""

    load_options: ClassVar = {"threads": int, "memory_pattern": bool}

    def __init__(self) -> None:
        self._copier = Copier(device.PROVIDER, SPACE, device.open_graph)

    @classmethod
    def provider(cls, specs: Mapping[str, Any]) -> Provider:
        return device.provider()

    @classmethod
    def provider_options(cls, specs: Mapping[str, Any]) -> dict[str, str]:
        options = {name: specs[name] for name in _OPTIONS if specs.get(name)}
        return {"enableInt64": "1", **options}  # sizes and indices are int64

    @classmethod
    def settings(cls, specs: Mapping[str, Any], graph: bytes = b"") -> Any:
        settings = super().settings(specs, graph)
        settings.enable_mem_pattern = specs.get("memory_pattern", True)
        return settings

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        reason = device.no_device()
        if reason:
            raise BackendUnavailable(reason, remedy=device.DRIVER)
        if compile_specs.get("float16") and (reason := device.missing(device.FLOAT16)):
            raise BackendFailed(
                "the GPU does not support float16", where=reason, remedy="lower a float32 program for it"
            )
        return super().init_with_data(blob, data, compile_specs)

    def make_delegate(self, open_: Any, model: OnnxModel, provider: Provider) -> Delegate:
        return OnnxDelegate(open_, model, provider, lost=self._copier.lost)

    def allocate(self, space: str, size: int) -> DeviceMemory | None:
        return OrtMemory(self._copier, size) if space == SPACE else None
