"""The AOT half: a region becomes an ONNX model that WebGPU's provider takes whole."""

from __future__ import annotations

from typing import Any, ClassVar

from delegate.backends.aot import PreprocessResult, Region
from delegate.backends.gpu import webgpu
from delegate.backends.gpu.operators import OPERATORS
from delegate.backends.onnx.aot import OnnxBackend
from delegate.backends.onnx.blob import pack
from delegate.backends.onnx.model import ExportedModel
from delegate.backends.onnx.session import session_options


class GpuBackend(OnnxBackend):
    """GPUs by WebGPU."""

    name = "gpu"
    provider = webgpu.PROVIDER
    operators: ClassVar = OPERATORS

    def settings(self) -> Any:
        return session_options(webgpu.provider(), {})

    def compile(self, exported: ExportedModel, region: Region) -> PreprocessResult:
        blob, specs = pack(exported.model)
        found = webgpu.provider()
        notes = [f"{len(exported.operators)} ONNX operators", f"checked on {webgpu.describe(found)}"]
        return PreprocessResult(blob, specs, tuple(notes))
