"""The AOT part: a region becomes an ONNX model, and the model becomes a QNN context binary for one chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from delegate_vendor_kit.special_values import keeps_nan, nan_notes
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch.fx import Node

from delegate.backend import aot
from delegate.backend.aot import PreprocessResult, Region, RegionFailed, RegionRefused
from delegate.backend.inexact import Nan
from delegate.backend.quantizable import QuantizationScheme
from delegate.edge.node import is_static, tensors
from delegate.errors import LoweringError, did_you_mean
from delegate.runtime.backend import default_float_environment
from delegate.verdict import Reason, Verdict, no
from delegate_onnxruntime.dsp.aot.operators import LIMITS, MAX_RANK, OPERATORS, SCHEMES
from delegate_onnxruntime.dsp.aot.precision import (
    clamp_exponents,
    exact_casts,
    in_integers,
    infinite_constants,
    not_rounded,
    notes_on_infinity,
    without_infinity,
)
from delegate_onnxruntime.dsp.aot.rewrite import rewrite
from delegate_onnxruntime.dsp.deviations import DEVIATIONS
from delegate_onnxruntime.dsp.info import PROVIDER, is_emulated, versions
from delegate_onnxruntime.dsp.runtime import OPTIONS, DspRuntime
from delegate_onnxruntime.dsp.targets import DEFAULT, TARGETS, Target, require_consistent
from delegate_onnxruntime.onnx.aot.backend import OnnxBackend
from delegate_onnxruntime.onnx.aot.model import ExportedModel
from delegate_onnxruntime.onnx.aot.translations import table_of
from delegate_onnxruntime.onnx.runtime.blob import OnnxModel
from delegate_onnxruntime.onnx.runtime.provider import one_line
from delegate_onnxruntime.onnx.runtime.session import add_weights

# y = relu(x) of 8 numbers as a ModelProto: what any target compiles.
_TRIAL = OnnxModel(
    b'\x08\n:3\n\x0c\n\x01x\x12\x01y"\x04Relu\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x08'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x08B\x04\n\x00\x10\x15",
)

PerformanceMode = Literal[
    "burst", "balanced", "default", "extreme_power_saver", "high_performance", "high_power_saver", "low_balanced",
    "low_power_saver", "power_saver", "sustained_high_performance",
]  # fmt: skip


class DspOptions(aot.Options):
    """Options of the DSP backend."""

    soc: str | None = Field(
        default=None, description=f"The chip to compile for, e.g. SM8550, SM8650, SM8750. Without a chip: {DEFAULT}."
    )
    htp_arch: PositiveInt | None = Field(
        default=None,
        description="Architecture of the HTP, with soc_model in place of soc: for chips that soc has no name for.",
    )
    soc_model: PositiveInt | None = Field(default=None, description="QNN's number of the chip, with htp_arch.")
    precision: Literal["float16", "integer"] = Field(
        default="float16",
        description="float16: float operators compute in float16. integer: only quantized operators run here, and "
        "float operators run on other backends.",
    )
    performance_mode: PerformanceMode = Field(default="default", description="Clock and power of the HTP.")
    vtcm_mb: NonNegativeInt = Field(default=0, description="MiB of the HTP's fast memory; 0: QNN decides.")
    optimization_level: int = Field(
        default=0, ge=0, le=3, description="Optimisation level of QNN's compiler: 0 its default, 1 fastest, 3 longest."
    )
    priority: Literal["low", "normal", "normal_high", "high"] = Field(
        default="normal", description="Priority of the partition among all work of the HTP."
    )
    rpc_control_latency: NonNegativeInt = Field(
        default=0, description="Requested latency of calls from the CPU to the HTP, in microseconds; 0: QNN decides."
    )
    clamp_overflow: bool = Field(
        default=False, description="Clamp results beyond float16's largest number to that number, not to infinity."
    )
    nan: Nan = "fast"

    @model_validator(mode="after")
    def _known_target(self) -> Self:
        if (self.htp_arch is None) != (self.soc_model is None):
            raise ValueError("htp_arch and soc_model must be given together")
        if self.soc is not None and self.soc not in TARGETS:
            raise ValueError(f"there is no chip {self.soc!r}: {did_you_mean(self.soc, TARGETS)}")
        if self.htp_arch is not None and self.soc_model is not None:
            if self.soc is not None:
                raise ValueError("soc names the chip already: remove htp_arch and soc_model, or soc")
            require_consistent(self.htp_arch, self.soc_model)
        return self

    @property
    def target(self) -> Target:
        """Return the chip to compile for."""
        if self.htp_arch is not None and self.soc_model is not None:
            return Target("", self.htp_arch, self.soc_model)
        return DEFAULT if self.soc is None else TARGETS[self.soc]


class DspBackend(OnnxBackend):
    """Qualcomm's Hexagon HTP. Float programs run in float16 arithmetic."""

    name = "dsp"
    deviations = DEVIATIONS
    Options = DspOptions
    library = PROVIDER
    runtime = DspRuntime
    wheel = "onnxruntime-qnn"
    own_paths = MappingProxyType({"backend_path": "get_qnn_htp_path()"})
    may_crash = True  # QNN's compiler dereferences null at some graphs that it does not support
    operators = OPERATORS
    table = table_of(OPERATORS, LIMITS)

    @classmethod
    def quantization(cls) -> Sequence[QuantizationScheme]:
        return SCHEMES

    @property
    def float32_precision(self) -> torch.dtype:
        return torch.float16 if self.options.precision == "float16" else torch.float32

    def check(self, node: Node) -> Verdict:
        for other in (node, *node.all_input_nodes):
            if not is_static(other):
                return no(Reason.DYNAMIC_SHAPE, f"{other.name} has dynamic sizes, which QNN does not support")
            rank = max((t.dim() for t in tensors(other)), default=0)
            if rank > MAX_RANK:
                return no(Reason.RANK, f"{other.name} has {rank} dimensions, but the HTP supports {MAX_RANK} at most")
        verdict = super().check(node) and without_infinity(node) and keeps_nan(node, _loses, self.options.nan)
        return in_integers(node) if verdict and self.options.precision == "integer" else verdict

    def settings(self) -> Any:
        options = super().settings()
        options.graph_optimization_level = _optimizations()
        return options

    def preprocess(self, region: Region) -> PreprocessResult:
        if refused := infinite_constants(region) | not_rounded(region) | exact_casts(region):
            raise RegionRefused(refused)
        return super().preprocess(rewrite(region))

    def compile(self, exported: ExportedModel, region: Region) -> PreprocessResult:
        exported = replace(exported, model=replace(exported.model, graph=clamp_exponents(exported.model.graph)))
        try:
            context = _context_binary(exported.model, self.settings())
        except Exception as error:  # the bindings raise classes of their own that share no base but Exception
            self._require_target()
            self.refuse_left_to_cpu(exported)  # asked only now, since it takes as long as compiling
            raise RegionFailed(f"QNN does not compile it: {one_line(error)}") from error
        model = OnnxModel(context, (), exported.model.inputs, exported.model.outputs)
        notes = [f"for {self.options.target}", f"context binary of {len(context) / 2**20:.1f} MiB"]
        notes += [*nan_notes(region, _loses), *notes_on_infinity(region)]
        notes += ["emulated on this machine"] if is_emulated(self.provider()) else []
        return self.pack(model, notes, {"versions": versions()})

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        super().check_artifact(region, artifact)
        artifact.require_specs({"versions": versions()})

    def _require_target(self) -> None:
        """Raise LoweringError if QNN compiles nothing at all for the target with these options."""
        try:
            _context_binary(_TRIAL, self.settings())
        except Exception as error:  # see above
            vtcm = f" with {self.options.vtcm_mb} MiB of VTCM" if self.options.vtcm_mb else ""
            raise LoweringError(
                f"QNN cannot compile for {self.options.target}{vtcm}",
                where=one_line(error),
                remedy=f"name a chip that QNN supports, e.g. soc: {DEFAULT}, and a vtcm_mb that it has",
            ) from error

    def _specs(self) -> dict[str, Any]:
        options, target = self.options, self.options.target
        return {
            "target": [target.soc, target.htp_arch, target.soc_model],
            **{name: getattr(options, name) for name in OPTIONS},
        }


def _loses(node: Node) -> bool:
    """Return true for arithmetic in float16: the HTP has neither NaN, infinity nor the sign of 0."""
    return not in_integers(node)


def _context_binary(model: OnnxModel, settings: Any) -> bytes:
    """Return the context binary of a model; if QNN does not support all of it, raise the error of ONNX Runtime."""
    import onnxruntime

    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    add_weights(settings, model)
    compiler = onnxruntime.ModelCompiler(
        settings,
        model.graph,
        embed_compiled_data_into_model=True,
        graph_optimization_level=_optimizations(),
    )
    with default_float_environment():
        compiled = compiler.compile_to_bytes()
    assert isinstance(compiled, bytes)
    return compiled


def _optimizations() -> Any:
    """Return the level of ONNX Runtime's own rewrites before QNN compiles: those that preserve its operators.

    One of them quantizes biases. With quantized weights, QNN accepts a float bias but reads it as integers.
    """
    import onnxruntime

    return onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
