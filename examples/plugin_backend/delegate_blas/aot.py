"""The AOT part: it checks which nodes are supported, and compiles a region to a blob."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import torch
from torch.fx import Node

from delegate.backend.aot import Options, PreprocessResult, Region
from delegate.backend.lowering import Lowering, LoweringTable, TableBackend, anything
from delegate.edge.node import op_name, tensors
from delegate.verdict import YES, Reason, Verdict, no

VERSION = 1  # of the blob
FLOAT32 = frozenset({torch.float32})


def with_rows(node: Node) -> Verdict:
    """The input has at least two dimensions: for a vector a call of BLAS costs more than its work."""
    (x,) = tensors(node.args[0])
    return YES if x.dim() >= 2 else no(Reason.RANK, "the input has no rows")


TABLE = LoweringTable(
    [
        Lowering("aten.linear.default", with_rows, "linear", keep=True, dtypes=FLOAT32),
        Lowering("aten.relu.default", anything, "relu", dtypes=FLOAT32),
    ]
)


class BlasOptions(Options):
    """Options of the backend; none yet."""


class BlasBackend(TableBackend):
    """The AOT part: linear layers and what is between them become rows of JSON, and weights are separate data."""

    name = "blas"
    Options: ClassVar[type[Options]] = BlasOptions
    table = TABLE

    def preprocess(self, region: Region) -> PreprocessResult:
        """Number all values: inputs, constants, then a row for each call."""
        number = {node: i for i, node in enumerate((*region.inputs, *region.constants, *region.calls))}

        def operand(argument: Any) -> int | None:
            return number[argument] if isinstance(argument, Node) else None

        blob = {
            "version": VERSION,
            "inputs": len(region.inputs),
            "constants": [list(value.shape) for value in region.constants.values()],
            "rows": [[TABLE[op_name(n)].lower, *map(operand, n.args)] for n in region.calls],
            "outputs": [number[node] for node in region.outputs],
        }
        data = tuple(value.contiguous().numpy().tobytes() for value in region.constants.values())
        return PreprocessResult(json.dumps(blob).encode(), data=data)
