"""The AOT part: regions are decomposed to Prims and recorded; the runtime part compiles the recording."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.fx import Node

from delegate.backends.aot import Options
from delegate.backends.lowering import Lowering, LoweringTable, anything
from delegate.backends.prims import PrimsBackend
from delegate.backends.tracing import Recorded, Recorder
from delegate.edge.node import op_name
from delegate.skeleton.compiler.runtime import ATEN, FORMAT, PRIMS

TABLE: LoweringTable[Any] = LoweringTable(
    [
        *(Lowering(f"prims.{name}.default", anything, name) for name in PRIMS),
        *(Lowering(f"aten.{name}.default", anything, name) for name in ATEN),  # torch has no Prims of these
    ]
)


def product_before(relu: Node) -> tuple[Node, Node] | None:
    """A product with a bias, which nothing else uses."""
    (product,) = relu.all_input_nodes
    is_product = op_name(product) == "aten.addmm.default" and len(product.users) == 1 and not product.kwargs
    return (product, relu) if is_product else None


@TABLE.lowers_pattern("addmm, relu", "aten.relu.default", match=product_before)
def addmm_relu(recorder: Recorder, relu: Node, bias: Recorded, x: Recorded, weight: Recorded) -> Recorded:
    """A pattern gets the values that its nodes read from outside, in order of first use."""
    return recorder.call("addmm_relu", bias, x, weight)


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

    def cache_key(self) -> str:
        """Return a constant, because the recording is the same on every machine."""
        return "portable"
