"""Names of operators: those of exported programs, and the edge operators of backends' tables that they become."""

from __future__ import annotations

from functools import cache

from torch._ops import OpOverload
from torch.fx import Node

# Edge operator, without its overload -> the exported operators that become it, besides the one of the same name.
_EXPORTED_NAMES = {
    "aten._adaptive_avg_pool2d": ("adaptive_avg_pool2d",),
    "aten._upsample_nearest_exact2d": (),
    "aten.cat": ("concat", "concatenate"),
    "aten.constant_pad_nd": ("pad",),
    "aten.convolution": ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"),
    "aten.hardtanh": ("relu6",),
    "aten.max_pool2d_with_indices": ("max_pool2d",),
    "aten.permute": ("movedim", "swapaxes"),
    "aten.split_with_sizes": ("chunk", "split"),
    "aten.transpose": ("mT",),
    "aten.view": ("flatten", "reshape", "unflatten"),
}


def base_name(node: Node) -> str:
    """Return the name of a node's operator without overload and in-place mark, e.g. "aten.relu"; "" for no operator."""
    if not isinstance(node.target, OpOverload):
        return ""
    namespace, _, name = str(node.target._schema.name).partition("::")
    return f"{namespace}.{name.removesuffix('_') if not name.startswith('_') else name}"


@cache
def edge_names(base: str) -> tuple[str, ...]:
    """Return the edge operators, without overloads, that an exported operator may become."""
    namespace, _, name = base.partition(".")
    return (base, *(edge for edge, names in _EXPORTED_NAMES.items() if namespace == "aten" and name in names))
