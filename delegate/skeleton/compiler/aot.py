"""The AOT part: regions are decomposed to Prims and recorded; the runtime part compiles the recording."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.fx import Node

from delegate.backend.aot import Options
from delegate.backend.lowering import Lowering, LoweringTable, anything
from delegate.backend.prims import PrimsBackend
from delegate.backend.tracing import Recorded, Recorder
from delegate.edge.node import arguments, op_name
from delegate.skeleton.compiler.runtime import ATEN, FORMAT, FUNCTIONS, PRIMS

TABLE: LoweringTable[Any] = LoweringTable(
    [
        *(Lowering(f"prims.{name}.default", anything, name) for name in PRIMS),
        *(Lowering(f"aten.{name}.default", anything, name) for name in ATEN),  # torch has no Prims of these
        Lowering("aten.linear.default", anything, "linear", keep=True),  # a preserved operator
    ]
)


def linear_before(relu: Node) -> tuple[Node, Node] | None:
    """A linear layer with a bias, which nothing else uses."""
    (linear,) = relu.all_input_nodes
    is_linear = op_name(linear) == "aten.linear.default" and arguments(linear)["bias"] is not None
    return (linear, relu) if is_linear and len(linear.users) == 1 else None


@TABLE.lowers_pattern("linear, relu", "aten.relu.default", match=linear_before)
def linear_relu(recorder: Recorder, relu: Node, x: Recorded, weight: Recorded, bias: Recorded) -> Recorded:
    """A pattern gets the values that its nodes read from outside, in order of first use."""
    return recorder.call("linear_relu", x, weight, bias)


class AcmeOptions(Options):
    """Options of the backend; none yet."""


class AcmeBackend(PrimsBackend):
    """The AOT part: regions become recorded calls; constants are separate, so partitions share them."""

    name = "acme"
    library = "Acme"
    Options: ClassVar[type[Options]] = AcmeOptions
    table = TABLE
    dtypes = frozenset({torch.float32, torch.bool})
    blob_format = FORMAT
    functions = FUNCTIONS  # tried once per region, so that a fault refuses its node

    def cache_key(self) -> str:
        """Return a constant, because the recording is the same on every machine."""
        return "portable"
