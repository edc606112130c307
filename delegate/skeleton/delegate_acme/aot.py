"""The AOT part: it checks which nodes are supported, and compiles a region to a blob."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import torch
from torch.fx import Node

from delegate.backends.aot import Options, PreprocessResult, Region
from delegate.backends.lowering import Lowering, LoweringTable, TableBackend
from delegate.edge.node import op_name, tensors
from delegate.verdict import YES, Reason, Verdict, no

VERSION = 1  # of the blob
FUNCTIONS = {  # operator -> the function that the runtime part calls
    "aten.add.Tensor": "add",
    "aten.sub.Tensor": "subtract",
    "aten.mul.Tensor": "multiply",
    "aten.maximum.default": "maximum",
    "aten.minimum.default": "minimum",
    "aten.neg.default": "negative",
    "aten.abs.default": "absolute",
    "aten.relu.default": "relu",
}


def plain(node: Node) -> Verdict:
    """Arguments are tensors and plain numbers, and nothing is scaled by `alpha`."""
    for argument in node.args:  # a dynamic size is a node here, and a SymInt in a region
        if not (tensors(argument) if isinstance(argument, Node) else isinstance(argument, int | float)):
            return no(Reason.ATTRIBUTE, f"{argument} is neither a tensor nor a plain number")
    if node.kwargs.get("alpha", 1) != 1:
        return no(Reason.ATTRIBUTE, f"alpha={node.kwargs['alpha']}")
    return YES


FLOAT32 = frozenset({torch.float32})
TABLE = LoweringTable(Lowering(op, plain, function, dtypes=FLOAT32) for op, function in FUNCTIONS.items())


class AcmeOptions(Options):
    """Options of the backend; none yet."""


class AcmeBackend(TableBackend):
    """The AOT part: chains of operators become rows of JSON; constants are separate, so partitions share them."""

    name = "acme"
    Options: ClassVar[type[Options]] = AcmeOptions
    table = TABLE

    def preprocess(self, region: Region) -> PreprocessResult:
        """Number all values: inputs, constants, then a row for each call."""
        number = {node: i for i, node in enumerate((*region.inputs, *region.constants, *region.calls))}

        def operand(argument: Any) -> Any:
            return number[argument] if isinstance(argument, Node) else {"number": float(argument)}

        blob = {
            "version": VERSION,
            "inputs": len(region.inputs),
            "constants": [list(value.shape) for value in region.constants.values()],
            "rows": [[TABLE[op_name(n)].lower, *map(operand, n.args)] for n in region.calls],
            "outputs": [number[node] for node in region.outputs],
        }
        data = tuple(value.contiguous().numpy().tobytes() for value in region.constants.values())
        return PreprocessResult(json.dumps(blob).encode(), data=data)
