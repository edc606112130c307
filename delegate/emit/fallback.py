"""The fallback of a partition: its region as a hidden method on kernels, for machines that cannot run its delegate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.utils._pytree as pytree
from torch.fx import GraphModule

from delegate.backends.aot import Region
from delegate.edge.decompose import decompose
from delegate.edge.graphs import drop_unused, extracted
from delegate.edge.program import EdgeInput, EdgeProgram
from delegate.emit.method import emit_method
from delegate.emit.runnable import compounds_without_kernel
from delegate.emit.shared import SharedTables
from delegate.errors import LoweringError
from delegate.kernels.selection import Kernels
from delegate.partitioner.extraction import LoweredProgram
from delegate.program.model import Method


def emit_fallback(region: Region, ranges: Mapping[Any, Any], shared: SharedTables, kernels: Kernels) -> Method:
    """Return a method with the inputs and outputs of the region's delegate, without planned memory.

    Args:
        region: not changed.
        ranges: torch's range constraints of the program of the region.
        shared: of the program; the fallback shares constants with its methods.
        kernels: that run the fallback. Compound operators without a kernel are decomposed.

    Raises:
        LoweringError: an operator has no kernel, or a size cannot be known from the shapes of the region's inputs.
    """
    program = _program(region, ranges)
    try:
        while leftover := compounds_without_kernel(program.graph, kernels):
            program = decompose(program, leftover)
            drop_unused(program.graph)
        return emit_method(LoweredProgram(program, {}), shared, kernels)
    except LoweringError as error:
        where = ", ".join(part for part in (f"fallback of partition {region.name}", error.where) if part)
        remedy = "; ".join(part for part in (error.remedy, "or set fallback.keep to false") if part)
        raise LoweringError(error.what, where=where, remedy=remedy) from error


def _program(region: Region, ranges: Mapping[Any, Any]) -> EdgeProgram:
    """Return a copy of the region as a program; constants come first, as in every program."""
    graph, _ = extracted((*region.constants, *region.inputs), region.calls, region.outputs)
    return EdgeProgram(
        name=region.name,
        graph_module=GraphModule({}, graph),
        inputs=tuple(EdgeInput(n.name, n.name) for n in region.inputs),
        constants={n.name: tensor for n, tensor in region.constants.items()},
        constant_names={},
        states={},
        mutated=(),
        in_spec=pytree.tree_structure(((0,) * len(region.inputs), {})),
        out_spec=pytree.tree_structure((0,) * len(region.outputs)),
        range_constraints=ranges,
    )
