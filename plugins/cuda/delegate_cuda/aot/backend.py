"""The AOT part: TVM imports a region and compiles it to a library for one architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from delegate_vendor_kit.special_values import constants_of_zero, floats_of, keeps_nan, keeps_zero, nan_notes
from pydantic import Field, NonNegativeInt, field_validator
from torch.fx import Node

from delegate.backend import aot
from delegate.backend.aot import PreprocessResult, Region, RegionRefused
from delegate.backend.exported import exported_program
from delegate.backend.inexact import Nan, collapse_sizes
from delegate.backend.lowering import TableBackend
from delegate.edge.build import raw_bytes
from delegate.edge.node import dtype_of, symbolic_numbers, tensor
from delegate.errors import BackendUnavailable, LoweringError, did_you_mean
from delegate.program.dtypes import DType
from delegate.verdict import Reason, Verdict, no
from delegate_cuda.aot import rounding
from delegate_cuda.aot.compiling import compile_library
from delegate_cuda.aot.conversions import with_transposed_weights
from delegate_cuda.aot.importing import factors, to_relax
from delegate_cuda.aot.operators import LOSING_NAN, TABLE
from delegate_cuda.aot.tuning import Tuner
from delegate_cuda.deviations import DEVIATIONS
from delegate_cuda.runtime import library
from delegate_cuda.runtime.delegate import CudaWeight, host, pack, unpack
from delegate_cuda.runtime.library import ARCHITECTURES, HOST, CudaTarget

_LOSES = floats_of(LOSING_NAN)
_INLINE = 1024  # bytes; smaller constants stay in the library, where TVM folds them


class TuningOptions(aot.Options):
    """Options of the search for the fastest schedules of a program's functions."""

    trials: NonNegativeInt = Field(
        default=0, description="Greatest number of measurements, on the target itself; 0: only use the database."
    )
    database: Path = Field(description="File that stores the measurements, as JSON lines.")


class CudaOptions(aot.Options):
    """Options of the backend."""

    arch: str | None = Field(
        default=None,
        description="GPU to compile for, e.g. sm_80, sm_90; llvm: the host's CPU, a stand-in. "
        "Without the key: the GPU of this machine, else llvm.",
    )
    precision: Literal["float32", "tf32", "float16", "bfloat16"] = Field(
        default="float32",
        description="Precision to which the operands of float32 products (linear, matmul, convolution, attention) are "
        "rounded. Sums and everything else stay in float32, as in torch.autocast. tf32: from sm_80 on.",
    )

    nan: Nan = "fast"
    tuning: TuningOptions | None = Field(
        default=None, description="Search for the fastest schedules by measuring. Without the key: TVM's default ones."
    )

    @field_validator("arch")
    @classmethod
    def _check_arch(cls, arch: str | None) -> str | None:
        if arch is not None and arch not in ARCHITECTURES:
            raise ValueError(f"there is no architecture {arch!r}: {did_you_mean(arch, ARCHITECTURES)}")
        return arch


class CudaBackend(TableBackend):
    """The backend for NVIDIA's GPUs, by TVM."""

    name = "cuda"
    deviations = DEVIATIONS
    library = "TVM"
    Options = CudaOptions
    table = TABLE

    def __init__(self, options: CudaOptions) -> None:
        super().__init__(options)
        self._tuner: Tuner | None = None

    @property
    def float32_precision(self) -> torch.dtype:
        return rounding.dtype_of(self.options.precision)

    def no_row(self, op: str) -> Verdict:
        return no(Reason.OPERATOR, f"TVM's importer has no correct conversion of {op}")

    def check(self, node: Node) -> Verdict:
        return keeps_nan(node, _LOSES, self.options.nan) and super().check(node) and keeps_zero(node)

    def cache_key(self) -> str | None:
        """Return the key; None with a tuner, because measurements change the database of schedules."""
        return super().cache_key() if self.options.tuning is None else None

    def preprocess(self, region: Region) -> PreprocessResult:
        target, why = self._target()
        target = replace(target, tf32=self.options.precision == rounding.TF32)
        _require_tf32(target)
        _require_known_sizes(region)
        if refused := constants_of_zero(region) | collapse_sizes(region):
            raise RegionRefused(refused)
        precision, region = self.options.precision, with_transposed_weights(region)
        region = replace(region, constants={n: _round(n, v, precision) for n, v in region.constants.items()})
        parameters = {n: value for n, value in region.constants.items() if value.nbytes >= _INLINE}
        module = to_relax(exported_program(region, parameters.keys()), precision)
        tuner = self._tuner_for(target)
        code = compile_library(module, target, None if tuner is None else tuner.schedule)
        blob, specs = pack(code, [_weight(value) for value in parameters.values()])
        about = _about(target, region)
        notes = [
            *([] if precision == "float32" else [f"products of {precision}, summed up in float32"]),
            f"for {library.STAND_IN if target.is_host else target}, {why}",
            f"library of {len(code) / 2**20:.1f} MiB",
            *nan_notes(region, _LOSES),
        ]
        if tuner is not None:
            notes.append(f"tuned by {tuner.path}, {tuner.measured} schedules measured so far")
        return PreprocessResult(blob, {**specs, **about}, tuple(notes), "stand-in" if target.is_host else "cuda")

    def check_artifact(self, region: Region, artifact: PreprocessResult) -> None:
        target, _ = self._target()
        artifact.require_specs(_about(target, region))
        unpack(memoryview(artifact.blob), artifact.compile_specs)
        if artifact.space != ("stand-in" if target.is_host else "cuda"):
            raise ValueError(f"{artifact.space!r} is not memory of a GPU")

    def _tuner_for(self, target: CudaTarget) -> Tuner | None:
        """Return the tuner, one for all partitions, because they share the trials."""
        if self._tuner is None and self.options.tuning is not None:
            self._tuner = Tuner(target, self.options.tuning.trials, self.options.tuning.database)
        return self._tuner

    def _target(self) -> tuple[CudaTarget, str]:
        """Return the architecture to compile for, and the reason for it."""
        if self.options.arch is not None:
            return CudaTarget(self.options.arch), "as requested"
        try:
            return library.local_gpu()[0], "the GPU here"
        except BackendUnavailable:
            return CudaTarget(HOST), "no GPU was found"


def _require_tf32(target: CudaTarget) -> None:
    if target.tf32 and not (target.is_host or target.has_tensor_cores):
        raise LoweringError(
            f"{target} cannot multiply in tf32: GPUs can from sm_80 on", remedy="give precision: float16 or float32"
        )


def _require_known_sizes(region: Region) -> None:
    """Require that every symbol is itself a size of an input: TVM does not solve `4*s` for s."""
    sizes = [size.node.expr for n in region.inputs for size in symbolic_numbers(tensor(n))]
    known = {expr for expr in sizes if expr.is_Symbol}
    lost = next((expr for expr in sizes if not expr.free_symbols <= known), None)
    if lost is not None:
        reason = f"TVM does not support inputs of size {lost}"
        raise RegionRefused({n.name: reason for n in region.graph.nodes if n.op == "call_function"})


def _round(constant: Node, value: torch.Tensor, precision: str) -> torch.Tensor:
    """Return a constant in the form of the file: in the precision of products if only products read it."""
    if value.dtype is torch.float32 and all(constant in factors(user) for user in constant.users):
        return rounding.constant(value, precision)
    return value


def _dtype(value: torch.Tensor) -> DType:
    dtype = dtype_of(value.dtype)
    assert dtype is not None  # the checks let no other pass
    return dtype


def _weight(value: torch.Tensor) -> CudaWeight:
    dtype = _dtype(value)
    return CudaWeight(dtype, raw_bytes(value).view(dtype.numpy).reshape(value.shape))


def _about(target: CudaTarget, region: Region) -> dict[str, Any]:
    """Return the compile specs that do not depend on the library."""
    inputs = [_dtype(tensor(n)).name for n in region.inputs]
    return {"target": target.arch, "tvm": library.version(), "host": host(), "inputs": inputs}
