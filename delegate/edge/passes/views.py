"""Rewrites of views: chains of views are fused, and those that merge a dynamic size sink."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch
from torch.fx import Graph, Node

from delegate.edge.build import make_like
from delegate.edge.node import op_name, tensor
from delegate.edge.passes import in_each_graph
from delegate.edge.passes.redundancy import replace_by, same_shape

aten = torch.ops.aten
_VIEWS = frozenset({"aten.view.default", "aten.reshape.default", "aten._unsafe_view.default"})
Groups = list[list[int]]  # for each dimension of a view, those of its source that it joins


@in_each_graph
def sink_merges(graph: Graph) -> None:
    """Move views that merge a dynamic size with other sizes after the operators that follow them.

    With a dynamic batch, a product of matrices reshapes (batch, heads, length, channels) to (batch * heads, length,
    channels), and back, since few libraries infer two sizes of a reshape. Without merged sizes, none has to infer any.
    Splitting views move before permutes. Static programs do not change.
    """
    for node in list(graph.nodes):
        rule = _RULES.get(op_name(node)) if node.op == "call_function" else None
        if rule is not None:
            with graph.inserting_before(node):
                replacement = rule(node)
            if replacement is not None:
                node.replace_all_uses_with(replacement)


def _merge(node: Any) -> Groups | None:
    """Return the dimensions that a view merges.

    None if it is not a view, splits a size, or merges only static sizes.
    """
    if not _is_view(node):
        return None
    old, new = tensor(_args(node)[0]).shape, tensor(node).shape
    if 0 in [size for size in (*old, *new) if not _dynamic(size)]:
        return None  # no size can be inferred if another one is 0
    groups: Groups = []
    at = 0
    for size in new:
        group = [at]
        while group[-1] < len(old) and str(math.prod(old[d] for d in group)) != str(size):
            group.append(group[-1] + 1)
        if group[-1] >= len(old):
            return None
        groups.append(group)
        at = group[-1] + 1
    joined = [g for g in groups if len(g) > 1]
    return groups if at == len(old) and any(_dynamic(new[groups.index(g)]) for g in joined) else None


def _is_view(node: Any) -> TypeGuard[Node]:
    return isinstance(node, Node) and node.op == "call_function" and op_name(node) in _VIEWS


def _dynamic(size: Any) -> bool:
    return not isinstance(size, int)


def _view(like: Node, x: Node, sizes: Sequence[Any]) -> Node:
    view = make_like(like, aten.reshape.default, (x, list(sizes)), {})
    view.target = aten.view.default  # not at once, because its fake form checks strides, which are irrelevant here
    return view


def _sizes(x: Node, dims: Sequence[int]) -> list[Any]:
    """Return sizes of a tensor as arguments of a view: numbers, or nodes that compute them."""
    shape = tensor(x).shape
    return [make_like(x, aten.sym_size.int, (x, d), {}) if _dynamic(shape[d]) else int(shape[d]) for d in dims]


def _args(node: Node) -> Any:
    """Return the positional arguments, untyped."""
    return node.args


def _view_sizes(view: Node) -> list[Any]:
    """Return the sizes among a view's arguments."""
    return list(_args(view)[1])


def _after_permute(node: Node) -> Node | None:
    view, order = _args(node)
    groups = _merge(view)
    if groups is None:
        return None
    x, sizes = view.args[0], _view_sizes(view)
    moved = make_like(node, aten.permute.default, (x, [d for i in order for d in groups[i]]), {})
    return _view(node, moved, [sizes[i] for i in order])


def _after_one(node: Node) -> Node | None:
    """Move a view after an elementwise operator on one tensor and numbers."""
    view = _args(node)[0]
    others = [n for n in node.all_input_nodes if n is not view]
    if _merge(view) is None or view in node.args[1:] or any(tensor(n).dim() for n in others):
        return None
    moved = make_like(node, node.target, (view.args[0], *node.args[1:]), node.kwargs)
    return _view(node, moved, _view_sizes(view))


def _after_softmax(node: Node) -> Node | None:
    view, dim = _args(node)[:2]
    groups = _merge(view)
    if groups is None or len(groups[dim]) > 1:
        return None
    inner = groups[dim][0]
    moved = make_like(node, node.target, (view.args[0], inner, *node.args[2:]), node.kwargs)
    return _view(node, moved, _view_sizes(view))


def _after_linear(node: Node) -> Node | None:
    view = _args(node)[0]
    groups = _merge(view)
    if groups is None:
        return None
    x, sizes = view.args[0], _view_sizes(view)
    if len(groups[-1]) > 1:
        channels = tensor(view).shape[-1]
        if _dynamic(channels):
            return None
        x = _view(node, x, [*_sizes(x, range(groups[-1][0])), channels])
    moved = make_like(node, node.target, (x, *node.args[1:]), node.kwargs)
    return _view(node, moved, [*sizes[:-1], tensor(node).shape[-1]])


def _after_product(node: Node) -> Node | None:
    pairs = [(view, _merge(view)) for view in _args(node)]
    sources = [view.args[0] for view, groups in pairs if groups is not None and _leading(groups)]
    if len(sources) < 2:
        return None
    x, y = sources
    if list(map(str, tensor(x).shape[:-2])) != list(map(str, tensor(y).shape[:-2])):
        return None
    moved = make_like(node, aten.matmul.default, (x, y), {})
    rank = tensor(moved).dim()
    return _view(node, moved, [-1, *_sizes(moved, (rank - 2, rank - 1))])


def _leading(groups: Groups) -> bool:
    """Return true if a view to three dimensions merges all but the last two."""
    return len(groups) == 3 and all(len(g) == 1 for g in groups[1:])


def _split_before_permute(node: Node) -> Node | None:
    """Rewrite view(permute(view(x))) that splits one dynamic size, so that the first view splits it."""
    permute = _args(node)[0]
    if not isinstance(permute, Node) or op_name(permute) != "aten.permute.default":
        return None
    (view, order), sizes = _args(permute), _view_sizes(node)
    if not _is_view(view):
        return None
    old, new = (list(map(str, tensor(n).shape)) for n in (permute, node))
    first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(old))
    last = next((i for i, (a, b) in enumerate(zip(old[:first:-1], new[::-1], strict=False)) if a != b), len(old))
    last = min(last, len(old) - first - 1)
    parts = len(new) - first - last
    if len(old) - first - last != 1 or parts < 2 or not _dynamic(tensor(permute).shape[first]):
        return None
    before, split = _view_sizes(view), order[first]
    split_sizes = [*before[:split], *sizes[first : first + parts], *before[split + 1 :]]
    if split_sizes.count(-1) > 1:
        return None
    dims = [d for i in order for d in (range(i, i + parts) if i == split else [i + (parts - 1) * (i > split)])]
    whole = _view(node, _args(view)[0], split_sizes)
    return make_like(node, aten.permute.default, (whole, dims), {})


_ELEMENTWISE = (
    *(f"{name}.{form}" for name in ("add", "sub", "mul", "div") for form in ("Tensor", "Scalar")),
    *(f"{name}.default" for name in ("relu", "gelu", "silu", "sigmoid", "tanh", "neg", "exp", "clone", "_to_copy")),
)
_RULES: dict[str, Callable[[Node], Node | None]] = {
    "aten.permute.default": _after_permute,
    "aten.linear.default": _after_linear,
    "aten.bmm.default": _after_product,
    "aten._softmax.default": _after_softmax,
    **{f"aten.{name}": _after_one for name in _ELEMENTWISE},
    **dict.fromkeys(_VIEWS, _split_before_permute),
}


_RESHAPES = frozenset(
    f"aten.{name}"
    for name in (
        "view.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "unsqueeze.default",
        "reshape.default",
    )
)
_TAKES_SIZES = frozenset({"aten.view.default", "aten.reshape.default"})


@in_each_graph
def fuse_views(graph: Graph) -> None:
    """Compose permutations, keep the last of several reshapes, and remove inverse pairs."""
    for node in list(graph.nodes):
        if node.op == "call_function":
            _shorten(node)


def _shorten(node: Node) -> None:
    """Let a node read the input of the view before it, which is shortened already."""
    source = node.args[0] if node.args else None
    origin = source.args[0] if isinstance(source, Node) and source.op == "call_function" and source.args else None
    if not isinstance(source, Node) or not isinstance(origin, Node):
        return
    names = op_name(node), op_name(source)
    if names == ("aten.permute.default",) * 2:
        inner = source.args[1]
        order = [inner[d] % len(inner) for d in node.args[1]]  # type: ignore
        node.args = (origin, order)
        if order == list(range(len(order))):
            replace_by(node, origin)
    elif _RESHAPES.issuperset(names):
        if same_shape(tensor(origin), tensor(node)):
            replace_by(node, origin)
        elif names[0] in _TAKES_SIZES:
            node.args = (origin, *node.args[1:])
