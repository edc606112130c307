"""The AOT half of the engine: a region becomes an ONNX model that WebGPU's provider takes whole."""

from __future__ import annotations

from typing import Any, ClassVar

from delegate.backends import aot
from delegate.backends.aot import PreprocessResult, Region
from delegate.backends.gpu.webgpu import provider
from delegate.backends.gpu.webgpu.operators import OPERATORS
from delegate.backends.onnx.aot import OnnxBackend
from delegate.backends.onnx.blob import pack
from delegate.backends.onnx.model import ExportedModel
from delegate.backends.onnx.session import session_options


class WebGpuOptions(aot.Options):
    """Options of the engine."""


class WebGpuBackend(OnnxBackend):
    """GPUs by WebGPU."""

    name = "gpu"
    Options = WebGpuOptions
    provider = provider.PROVIDER
    operators: ClassVar = OPERATORS

    def settings(self) -> Any:
        return session_options(provider.provider(), {})

    def compile(self, exported: ExportedModel, region: Region) -> PreprocessResult:
        self.refuse_leftovers(exported)
        blob, specs = pack(exported.model)
        found = provider.provider()
        notes = [f"{len(exported.operators)} ONNX operators", f"checked on {provider.describe(found)}"]
        return PreprocessResult(blob, specs, tuple(notes), provider.SPACE)
