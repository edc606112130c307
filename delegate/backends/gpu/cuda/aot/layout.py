"""The layout of weights in memory: linear layers have theirs as products read them.

TVM itself transposes the weight of a linear layer at every call, which moves as many bytes as the product reads.
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from delegate.backends.aot import Region
from delegate.edge.node import arguments, op_name, tensor
from delegate.edge.program import META_VALUE

META_TRANSPOSED = "transposed"  # node.meta key of linear layers: True where the weight is (inputs, outputs) already


def with_transposed_weights(region: Region) -> Region:
    """The region with weights that only linear layers read transposed; the one that is given stays as it is."""
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
    """Return true if a node is a linear layer that reads a constant as its weight alone."""
    return op_name(node) == "aten.linear.default" and [k for k, v in arguments(node).items() if v is weight] == [
        "weight"
    ]
