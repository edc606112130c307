"""The AOT part: it checks which nodes are supported, and records a region as calls of the runtime part's functions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.fx import Node

from delegate.backend.aot import Options
from delegate.backend.lowering import Lowering, LoweringTable, anything
from delegate.backend.tracing import Recorded, Recorder, TracingBackend
from delegate.edge.node import arguments
from delegate.skeleton.delegate_acme.runtime import FORMAT, FUNCTIONS
from delegate.verdict import YES, Reason, Verdict, no

OPERATORS = {  # operator -> the function of the runtime part, which gets the operator's arguments
    "aten.mul.Tensor": "multiply",
    "aten.maximum.default": "maximum",
    "aten.minimum.default": "minimum",
    "aten.neg.default": "negative",
    "aten.abs.default": "absolute",
    "aten.relu.default": "relu",
}
TABLE: LoweringTable[Any] = LoweringTable(Lowering(op, anything, function) for op, function in OPERATORS.items())


def unscaled(node: Node) -> Verdict:
    """The second operand is not scaled by `alpha`."""
    alpha = arguments(node)["alpha"]
    return YES if alpha == 1 else no(Reason.ATTRIBUTE, f"alpha={alpha}")


@TABLE.lowers("aten.add.Tensor", check=unscaled)
def add(recorder: Recorder, node: Node, x: Recorded, y: Recorded | float, alpha: float) -> Recorded:
    """A row's function is for whatever a name alone cannot lower."""
    return recorder.call("add", x, y)


@TABLE.lowers("aten.sub.Tensor", check=unscaled)
def subtract(recorder: Recorder, node: Node, x: Recorded, y: Recorded | float, alpha: float) -> Recorded:
    """The same for a difference."""
    return recorder.call("subtract", x, y)


class AcmeOptions(Options):
    """Options of the backend; none yet."""


class AcmeBackend(TracingBackend):
    """The AOT part: regions become recorded calls; constants are separate, so partitions share them."""

    name = "acme"
    Options: ClassVar[type[Options]] = AcmeOptions
    table = TABLE
    dtypes = frozenset({torch.float32})
    blob_format = FORMAT
    functions = FUNCTIONS  # tried once per region, so that a fault refuses its node
