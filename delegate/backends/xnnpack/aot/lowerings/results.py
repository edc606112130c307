"""Lowering of `getitem`, which selects one of several results of a node."""

from __future__ import annotations

from typing import cast

from torch.fx import Node

from delegate.backends.xnnpack.aot.builder import RegionBuilder
from delegate.backends.xnnpack.aot.coding import CHOOSES
from delegate.backends.xnnpack.aot.lowerings.table import TABLE
from delegate.edge.node import op_name
from delegate.verdict import Reason, Verdict, no


def _producer(node: Node) -> Verdict:
    """The operator with several results is supported."""
    source = cast(Node, node.args[0])
    row = TABLE.get(op_name(source))
    return row.check(source) if row else no(Reason.OPERATOR, f"xnnpack has no lowering of {op_name(source)}")


@TABLE.lowers("getitem", check=_producer)
def getitem(builder: RegionBuilder, node: Node) -> None:
    """Select a result of a multi-result operator; emit nothing for an operator that is part of a layer."""
    if op_name(cast(Node, node.args[0])) in CHOOSES:
        builder.set(node)
        return
    builder.set(node, builder.operand(cast(Node, node.args[0]), result=cast(int, node.args[1])))
