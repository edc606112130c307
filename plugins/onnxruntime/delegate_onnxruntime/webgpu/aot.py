"""The AOT part: a region becomes an ONNX model that WebGPU's provider runs completely."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import torch
from delegate_vendor_kit.special_values import (
    EXTREMES,
    MOVES,
    PASSING,
    keeps_infinity,
    keeps_nan,
    nan_notes,
    reads_floats,
)
from pydantic import Field, NonNegativeInt
from torch.fx import Node

from delegate.backend import aot
from delegate.backend.aot import PreprocessResult, Region
from delegate.backend.inexact import Nan
from delegate.edge.node import op_name, tensors
from delegate.errors import BackendUnavailable
from delegate.verdict import Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.backend import OnnxBackend
from delegate_onnxruntime.onnx.aot.model import ExportedModel
from delegate_onnxruntime.onnx.aot.translations import table_of
from delegate_onnxruntime.onnx.runtime.provider import Provider
from delegate_onnxruntime.webgpu import device
from delegate_onnxruntime.webgpu.deviations import DEVIATIONS
from delegate_onnxruntime.webgpu.operators import LIMITS, OPERATORS
from delegate_onnxruntime.webgpu.runtime import SPACE, WebGpuRuntime


class WebGpuOptions(aot.Options):
    """Options of the backend. While a program is loaded, the first program's options of the device apply to all."""

    threads: NonNegativeInt = Field(
        default=0,
        description="Threads of the host that prepare the GPU's work; 0: the default, within this process's cores.",
    )
    memory_pattern: bool = Field(
        default=True, description="Allocate the memory of a shape as one block after its first run."
    )
    buffer_cache: Literal["bucket", "simple", "lazyRelease", "disabled"] = Field(
        default="bucket", description="Cache of the GPU's buffers for later use; disabled needs the least memory."
    )
    layout: Literal["NHWC", "NCHW"] = Field(default="NHWC", description="Internal layout of convolutions.")
    power: Literal["high-performance", "low-power"] = Field(
        default="high-performance", description="Choice among the GPUs of a machine with several."
    )
    validation: Literal["basic", "wgpuOnly", "full", "disabled"] = Field(
        default="basic", description="Extent of WebGPU's checks of its own work; disabled is fastest, and may crash."
    )
    nan: Nan = "fast"


class WebGpuBackend(OnnxBackend):
    """GPUs by WebGPU."""

    name = "webgpu"
    deviations = DEVIATIONS
    Options = WebGpuOptions
    library = device.PROVIDER
    runtime = WebGpuRuntime
    wheel = "onnxruntime-ep-webgpu"
    operators = OPERATORS
    table = table_of(OPERATORS, LIMITS)
    space = SPACE
    wrong_if_empty = None

    @cached_property
    def _here(self) -> Provider | None:
        """Return the provider; None without a GPU: regions are then compiled for another machine, unchecked."""
        try:
            return None if device.no_device() else device.provider()
        except BackendUnavailable:
            return None

    def check(self, node: Node) -> Verdict:
        adapter = None if self._here is None else device.adapter(self._here)
        for other in (node, *node.all_input_nodes):
            for tensor in tensors(other):
                size = tensor.numel() * tensor.element_size()
                if adapter is not None and isinstance(size, int) and size > adapter.largest:
                    what = f"{other.name} has {size} bytes, but {adapter.name} allows {adapter.largest} per buffer"
                    return no(Reason.SIZE, what, "split it in the model")
                if self._here and tensor.dtype is torch.float16 and (why := device.missing(device.FLOAT16)):
                    return no(Reason.DTYPE, f"{other.name} is float16, which the GPU does not support: {why}")
        verdict = keeps_nan(node, _loses, self.options.nan) and keeps_infinity(node, EXTREMES, PASSING)
        return verdict and super().check(node)

    def compile(self, exported: ExportedModel, region: Region) -> PreprocessResult:
        where = "compiled without checks on a GPU: none was found"
        if self._here is not None:
            self.refuse_left_to_cpu(exported)
            where = f"checked on {device.describe(self._here)}"
        notes = (f"{len(exported.operators)} ONNX operators", where, *nan_notes(region, _loses))
        return self.pack(exported.model, notes, {"float16": _has_float16(region)})

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        super().check_artifact(region, artifact)
        artifact.require_specs({"float16": _has_float16(region)})

    def _specs(self) -> dict[str, Any]:
        options = self.options
        return {
            "threads": options.threads,
            "memory_pattern": options.memory_pattern,
            "storageBufferCacheMode": options.buffer_cache,
            "preferredLayout": options.layout,
            "powerPreference": options.power,
            "validationMode": options.validation,
        }


def _has_float16(region: Region) -> bool:
    nodes = (node for node in region.graph.nodes if node.op != "output")
    return any(t.dtype is torch.float16 for node in nodes for t in tensors(node))


def _loses(node: Node) -> bool:
    """Return true for arithmetic on floats: WebGPU's shaders may assume that NaN and infinity do not occur.

    https://www.w3.org/TR/WGSL/#floating-point-evaluation
    """
    return reads_floats(node) and op_name(node) not in MOVES
