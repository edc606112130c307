"""The layout of weights in memory: weights of linear layers are stored in the order in which products read them.

TVM itself transposes the weight of a linear layer at every call, which moves as many bytes as the product reads.
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from delegate.backends.aot import Region
from delegate.edge.node import arguments, op_name, tensor
from delegate.edge.program import META_VALUE

META_TRANSPOSED = "transposed"  # node.meta key of linear layers: True if the weight is (inputs, outputs) already


def with_transposed_weights(region: Region) -> Region:
    """Return a copy of the region with transposed weights of linear layers, if no other node reads these weights."""
    result = region.copy()
    constants = dict(result.constants)
    for weight, value in result.constants.items():
        if weight.users and all(_multiplies_by(user, weight) for user in weight.users):
            constants[weight] = value.t().contiguous()
            weight.meta[META_VALUE] = tensor(weight).t()
            for user in weight.users:
                user.meta[META_TRANSPOSED] = True
    return replace(result, constants=constants)


def _multiplies_by(node: Node, weight: Node) -> bool:
    """Return true if a node is a linear layer that reads a constant only as its weight."""
    return op_name(node) == "aten.linear.default" and [k for k, v in arguments(node).items() if v is weight] == [
        "weight"
    ]
