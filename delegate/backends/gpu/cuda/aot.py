"""The AOT half of the engine: a region is imported by TVM and compiled to a library for one architecture."""

from __future__ import annotations

import operator
from collections.abc import Set
from typing import Any

import torch
from pydantic import Field, field_validator
from torch.fx import Node

from delegate.backends import aot
from delegate.backends.aot import Backend, PreprocessResult, Region, RegionRefused
from delegate.backends.exported import exported_program
from delegate.backends.gpu.cuda import library
from delegate.backends.gpu.cuda.blob import Weight, pack
from delegate.backends.gpu.cuda.compiling import compile_library
from delegate.backends.gpu.cuda.importing import to_relax
from delegate.backends.gpu.cuda.operators import OPERATORS
from delegate.backends.gpu.cuda.runtime import host
from delegate.backends.gpu.cuda.targets import ARCHITECTURES, HOST, Target
from delegate.backends.lowering import conditions
from delegate.edge.node import dtype_of, op_name, tensor
from delegate.errors import BackendUnavailable, did_you_mean
from delegate.program.dtypes import DType
from delegate.verdict import YES, Reason, Verdict, no

_INLINE = 1024  # bytes; smaller constants stay in the library, where TVM folds them


class CudaOptions(aot.Options):
    """Options of the engine."""

    arch: str | None = Field(
        default=None,
        description="GPU to compile for, e.g. sm_80, sm_90; llvm: the host's CPU, a stand-in. "
        "Without it: the GPU that is here, else llvm.",
    )

    @field_validator("arch")
    @classmethod
    def _known(cls, arch: str | None) -> str | None:
        if arch is not None and arch not in ARCHITECTURES:
            raise ValueError(f"there is no architecture {arch!r}: {did_you_mean(arch, ARCHITECTURES)}")
        return arch


class CudaBackend(Backend):
    """NVIDIA's GPUs by TVM."""

    name = "gpu"
    Options = CudaOptions

    @classmethod
    def conditions(cls, op: str) -> tuple[str, ...] | None:
        """On which dtypes the operator is right, and what its row asks."""
        row = OPERATORS.get(op)
        if row is None:
            return None
        names = ", ".join(sorted(str(d).removeprefix("torch.") for d in row.dtypes))
        return (f"All tensors are of {names}.", *conditions(row.check))

    @property
    def preserve_ops(self) -> Set[str]:
        return frozenset(row.op for row in OPERATORS.values() if row.keep)

    def check(self, node: Node) -> Verdict:
        if node.target is operator.getitem:
            return YES
        row = OPERATORS.get(op_name(node))
        if row is None:
            return no(Reason.OPERATOR, f"TVM's importer has no right conversion of {op_name(node)}")
        return row.takes(node)

    def preprocess(self, region: Region) -> PreprocessResult:
        target, why = self._target()
        _require_known_sizes(region)
        parameters = {n: value for n, value in region.constants.items() if value.nbytes >= _INLINE}
        code = compile_library(to_relax(exported_program(region, parameters.keys())), target)
        blob, specs = pack(code, [_weight(n, value) for n, value in parameters.items()])
        about = {
            "target": target.arch,
            "tvm": library.version(),
            "host": host(),
            "inputs": [_dtype(n).name for n in region.inputs],
        }
        notes = [
            f"for {library.STAND_IN if target.is_host else target}, {why}",
            f"library of {len(code) / 2**20:.1f} MiB",
        ]
        return PreprocessResult(blob, {**specs, **about}, tuple(notes), "stand-in" if target.is_host else "cuda")

    def _target(self) -> tuple[Target, str]:
        """The architecture to compile for, and why."""
        if self.options.arch is not None:
            return Target(self.options.arch), "as asked"
        try:
            return library.local_gpu()[0], "the GPU here"
        except BackendUnavailable:
            return Target(HOST), "no GPU is here"


def _require_known_sizes(region: Region) -> None:
    """Every symbol is a size of an input by itself: TVM does not solve `4*s` for s."""
    given: list[Any] = [size for n in region.inputs for size in tensor(n).shape]
    sizes = [size.node.expr for size in given if isinstance(size, torch.SymInt)]
    known = {expr for expr in sizes if expr.is_Symbol}
    lost = next((expr for expr in sizes if not expr.free_symbols <= known), None)
    if lost is not None:
        reason = f"TVM takes no input of size {lost}"
        raise RegionRefused({n.name: reason for n in region.graph.nodes if n.op == "call_function"})


def _dtype(node: Node) -> DType:
    found = dtype_of(tensor(node).dtype)
    assert found is not None  # the checks let no other pass
    return found


def _weight(node: Node, value: torch.Tensor) -> Weight:
    dtype, raw = _dtype(node), value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return Weight(dtype, raw.view(dtype.numpy).reshape(value.shape))
