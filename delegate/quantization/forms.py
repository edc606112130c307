"""How programs that torch.export made call the operators that edge programs, and so the tables of backends, have."""

from __future__ import annotations

from functools import cache

from torch._ops import OpOverload
from torch.fx import Node

# Edge operator, without its overload -> the names that it comes from; its own is always one.
_FORMS = {
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
    """An operator without its overload and the mark of its in-place form, e.g. "aten.relu"; empty for no operator."""
    if not isinstance(node.target, OpOverload):
        return ""
    namespace, _, name = str(node.target._schema.name).partition("::")
    return f"{namespace}.{name.removesuffix('_') if not name.startswith('_') else name}"


@cache
def edge_names(base: str) -> tuple[str, ...]:
    """The edge operators, without overloads, that an exported one may become."""
    namespace, _, name = base.partition(".")
    return (base, *(edge for edge, forms in _FORMS.items() if namespace == "aten" and name in forms))
