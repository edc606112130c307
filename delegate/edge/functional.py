"""Functionalisation: in-place operators become pure ones, and every later use of the memory reads the new value.

Each tensor is a chain of views on a root, the tensor that owns the memory. A write computes a new value of the root by
the inverses of the views. An alias is computed again from the root when it is next used. Before, regions that only set
torch's own modes are inlined, and operators with several views become one view for each result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from delegate.edge.build import fake_result, make_like
from delegate.edge.graphs import PRESERVED_METADATA
from delegate.edge.node import arguments, op_name, tensors, writes_in_place, written_arguments
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import (
    OpOverload,
    is_composite,
    schema_of,
    storage_identity,
)

aten = torch.ops.aten

_VMAP = "torch._functorch.predispatch"  # where torch has the calls that begin and end a vmap


class NotSimple(Exception):
    """Raised if the fast path of `to_edge` does not support a graph; the message is the reason."""


def inline_modes(module: GraphModule) -> Graph:
    """Return a copy of the module's graph, with metadata, in which grad-mode and disabled autocast are inlined.

    Raises:
        NotSimple: the graph has other submodules (control flow, enabled autocast) or a vmap.
    """
    graph = Graph()
    env: dict[Node, Any] = {}
    for node in module.graph.find_nodes(op="placeholder"):
        env[node] = graph.node_copy(node)
        env[node].meta = _preserve_metadata(node)
    graph.output(_copy_body(module, graph, env))
    return graph


def _copy_body(module: GraphModule, graph: Graph, env: dict[Node, Any]) -> Any:
    """Copy all nodes between placeholders and output; return the output's argument in terms of the copy."""
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        region = _region(node)
        if region is not None:
            body_node, operands = region
            body = getattr(module, str(body_node.target))
            inner = dict(zip(body.graph.find_nodes(op="placeholder"), map_arg(operands, env.__getitem__), strict=True))
            env[node] = _copy_body(body, graph, inner)
        elif isinstance(node.args[0] if node.args else None, Node) and isinstance(env.get(node.args[0]), list | tuple):
            env[node] = env[node.args[0]][node.args[1]]  # getitem of an inlined region
        else:
            env[node] = graph.node_copy(node, env.__getitem__)
            env[node].meta = _preserve_metadata(node)
    return map_arg(module.graph.output_node().args[0], env.__getitem__)


def _region(node: Node) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the body and the operands of a region to inline; None for another node."""
    match getattr(node.target, "__name__", ""), node.args:
        case "wrap_with_set_grad_enabled", (_, body, *operands):
            return body, tuple(operands)
        case "wrap_with_autocast", (_, _, False, _, body, *operands):
            return body, tuple(operands)
    if getattr(node.target, "__module__", "") == _VMAP:
        raise NotSimple(f"{node.name} is part of a vmap")
    if any(isinstance(a, Node) and a.op == "get_attr" for a in node.all_input_nodes):
        raise NotSimple(f"{node.name} has a graph as its body")
    return None


def _preserve_metadata(node: Node) -> dict[str, Any]:
    return {key: node.meta[key] for key in PRESERVED_METADATA if key in node.meta}


_SPLITS = {
    "aten.unbind.int", "aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default", "aten.chunk.default",
    "aten.tensor_split.sections", "aten.tensor_split.indices",
}  # fmt: skip


def _single_views(graph: Graph) -> None:
    """Replace these operators in place, except if parts have symbolic sizes along the split dimension."""
    for node in list(graph.nodes):
        if op_name(node) in _SPLITS:
            _replace(node)


def _replace(node: Node) -> None:
    args, parts = arguments(node), tensors(node)
    source, dim = node.args[0], args["dim"]
    unbound = node.target is aten.unbind.int
    sizes = [1] * len(parts) if unbound else [part.shape[dim] for part in parts]
    if not all(isinstance(size, int) for size in sizes) or any(
        user.target is not operator.getitem for user in node.users
    ):
        return
    starts = [0, *accumulate(sizes)]
    for item in list(node.users):
        place = int(item.args[1])  # type: ignore[arg-type]
        with node.graph.inserting_before(item):
            if unbound:
                view = make_like(item, aten.select.int, (source, dim, place), {})
            else:
                view = make_like(item, aten.slice.Tensor, (source, dim, starts[place], starts[place + 1]), {})
        item.replace_all_uses_with(view)
        node.graph.erase_node(item)
    node.graph.erase_node(node)


# Operators whose schema hides a write to running statistics -> the flag that enables the write.
HIDDEN_WRITES = {
    "aten.batch_norm.default": "training",
    "aten.instance_norm.default": "use_input_stats",
    "aten.native_batch_norm.default": "training",
    "aten._batch_norm_impl_index.default": "training",
}


def hidden_writes(node: Node) -> list[Any]:
    """Return the arguments that an operator writes to although its schema does not declare it."""
    flag = HIDDEN_WRITES.get(str(node.target))
    if flag is None or not arguments(node)[flag]:
        return []
    statistics = (arguments(node)[name] for name in ("running_mean", "running_var"))
    return [each for each in statistics if each is not None]


@dataclass(slots=True)
class _Root:
    """Memory: the node that holds its current value, and the number of writes."""

    value: Node
    version: int = 0


@dataclass(slots=True)
class _Alias:
    """A tensor in memory: its base tensor (None if it is not a view), and its value at a version."""

    root: _Root
    parent: Node | None
    value: Node
    version: int


def functionalize(graph: Graph) -> dict[Node, Node]:
    """Make a graph pure, in place; return the written placeholders, each with the node of its new value.

    Raises:
        NotSimple: a write has no pure form here; the graph is then unusable.
    """
    for node in graph.find_nodes(op="call_function", target=aten.detach_.default):
        node.replace_all_uses_with(node.args[0])  # the number of a tensor constant: nothing is written
        graph.erase_node(node)
    for node in graph.nodes:
        if hidden_writes(node):
            raise NotSimple(f"{node.name} updates running statistics")
    if not any(map(writes_in_place, graph.nodes)):
        return {}
    _single_views(graph)
    return _Functionalizer(graph).run(list(graph.nodes))


def pure_form(op: OpOverload) -> OpOverload | None:
    """Return the pure operator that computes what an in-place one writes: its name has no underscore.

    It has the same arguments. They may be in another order, or have other names in the same order. Overloads may have
    other names: pow_.Scalar is pow.Tensor_Scalar. Return None if the operator does not exist. Return None, too, if the
    operator changes the shape or the strides of its argument, not its elements.
    """
    namespace, name = schema_of(op).name.split("::")
    if torch.Tag.inplace_view in op.tags:
        return None
    plain = name.replace("__i", "__") if name.startswith("__i") else name.removesuffix("_")
    packet = getattr(getattr(torch.ops, namespace), plain, None)
    if plain == name or packet is None:
        return None
    overloads = [getattr(packet, o) for o in packet.overloads()]
    pure = [o for o in overloads if not schema_of(o).is_mutable]
    own = _arguments(op)
    alike = [o for o in pure if sorted(_arguments(o)) == sorted(own)]
    return next(iter([*alike, *(o for o in pure if [t for _, t in _arguments(o)] == [t for _, t in own])]), None)


def _arguments(op: OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema_of(op).arguments]


def _names(op: OpOverload) -> list[str]:
    return [a.name for a in schema_of(op).arguments]


class _Functionalizer:
    """A rewriter of one graph, in place."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._exposed = _find_exposed(graph)
        self._aliases: dict[Node, _Alias] = {}

    def run(self, nodes: list[Node]) -> dict[Node, Node]:
        for node in nodes:
            with self._graph.inserting_before(node):
                self._visit(node)
        roots = {n: self._aliases[n].root for n in nodes if n.op == "placeholder"}
        return {placeholder: root.value for placeholder, root in roots.items() if root.version}

    def _visit(self, node: Node) -> None:
        if node.op == "placeholder":
            self._aliases[node] = _Alias(_Root(node), None, node, 0)
            return
        if writes_in_place(node):
            self._write(node)
            return
        source = find_viewed_argument(node) if node in self._exposed else None
        node.args, node.kwargs = map_arg((node.args, node.kwargs), self._value)
        root = _Root(node) if source is None else self._aliases[source].root
        self._aliases[node] = _Alias(root, source, node, root.version)

    def _value(self, node: Node) -> Node:
        """Return the node that holds the current value of a tensor in the original graph."""
        alias = self._aliases[node]
        if alias.version != alias.root.version:
            if alias.parent is None:
                alias.value = alias.root.value
            else:
                args = (self._value(alias.parent), *node.args[1:])
                alias.value = make_like(node, node.target, args, node.kwargs)
            alias.version = alias.root.version
        return alias.value

    def _write(self, node: Node) -> None:
        target = node.target
        assert isinstance(target, OpOverload)
        written = written_arguments(target)
        if target.namespace != "aten":
            raise NotSimple(f"the custom operator {target} writes to its arguments")
        goal = arguments(node)[written[0]]
        if len(written) != 1 or not isinstance(goal, Node):
            raise NotSimple(f"{node.name} writes to several tensors")
        args, kwargs = map_arg((node.args, node.kwargs), self._value)
        value = self._pure(node, target, args, kwargs, goal)
        root = self._aliases[goal].root
        root.value = self._scatter(goal, value)
        root.version += 1
        self._aliases[goal].value, self._aliases[goal].version = value, root.version
        node.replace_all_uses_with(goal)  # it returns what it wrote
        self._graph.erase_node(node)

    def _pure(self, node: Node, target: OpOverload, args: Any, kwargs: Any, goal: Node) -> Node:
        """Return the value to write: computed by the pure operator, in the dtype of the written tensor."""
        overload = pure_form(target)
        if overload is None:
            raise NotSimple(f"{target} has no pure form")
        named = dict(zip((a.name for a in schema_of(target).arguments), args, strict=False)) | kwargs
        if set(_names(overload)) != set(_names(target)):  # dropout_ calls `self` what dropout calls `input`
            others = dict(zip(_names(target), _names(overload), strict=True))
            named = {others[name]: value for name, value in named.items()}
        value = self._call(node, overload, named)
        target_value: torch.Tensor = goal.meta[META_VALUE]
        if value.meta[META_VALUE].dtype != target_value.dtype:
            value = make_like(node, aten._to_copy.default, (value,), {"dtype": target_value.dtype})
        if value.meta[META_VALUE].shape != target_value.shape:
            raise NotSimple(f"{node.name} changes the shape of the tensor that it writes to")
        return value

    def _scatter(self, goal: Node, value: Node) -> Node:
        """Return the value of the whole memory after the tensor `goal` was set to `value`."""
        while (parent := self._aliases[goal].parent) is not None:
            inverse = _INVERSES.get(str(goal.target))
            if inverse is None:
                raise NotSimple(f"a write through {goal.target}")
            target, args = inverse(goal, self._value(parent), value)
            value = make_like(goal, target, args, {})
            goal = parent
        return value

    def _call(self, like: Node, target: OpOverload, named: dict[str, Any]) -> Node:
        """Call an operator with arguments by name; like torch's export, pass the leading ones by position."""
        args: list[Any] = []
        for argument in schema_of(target).arguments:
            if argument.kwarg_only or argument.name not in named:
                break
            args.append(named.pop(argument.name))
        return make_like(like, target, args, named)


def _find_exposed(graph: Graph) -> set[Node]:
    """Return the nodes that may share memory with a tensor that is written to; of the others views do not matter."""
    sharing: dict[Node, list[Node]] = {}
    written: list[Node] = []
    for node in graph.nodes:
        for source in _may_share(node):
            sharing.setdefault(node, []).append(source)
            sharing.setdefault(source, []).append(node)
        if writes_in_place(node):
            written.append(node)
    exposed = set(written)
    while written:
        for other in sharing.get(written.pop(), ()):
            if other not in exposed:
                exposed.add(other)
                written.append(other)
    return exposed


def _may_share(node: Node) -> list[Node]:
    """Return the arguments whose memory may hold the node's result, or that it writes to."""
    if node.op != "call_function" or (not tensors(node) and not writes_in_place(node)):
        return []
    target = node.target
    if not isinstance(target, OpOverload) or is_composite(target):
        return node.all_input_nodes
    aliased = [arguments(node)[a.name] for a in schema_of(target).arguments if a.alias_info is not None]
    return [argument for argument in aliased if isinstance(argument, Node)]


def find_viewed_argument(node: Node) -> Node | None:
    """Return the argument whose memory holds the node's result; None if the result has its own memory."""
    first = node.args[0] if node.args else None
    if not isinstance(first, Node) or node.op != "call_function" or not tensors(node):
        return None
    target = node.target
    if not isinstance(target, OpOverload):
        return first if isinstance(first.meta[META_VALUE], list | tuple) else None  # getitem of several views
    if target is aten.dropout.default and not arguments(node)["train"]:
        return first  # its Python implementation, which computes fake results, copies
    if is_composite(target):
        return _shares_memory(node)  # reshape, contiguous, dropout ... return a view or a copy, depending on strides
    return first if schema_of(target).arguments[0].alias_info is not None else None


def memory_chain(node: Node) -> Iterator[Node]:
    """Yield a tensor and those whose memory it is a view of, up to the owner; an item of several views is one of them.

    A view whose source is not known, see `viewed_argument_of`, counts as the owner.
    """
    source: Node | None = node
    while source is not None:
        if isinstance(source.meta.get(META_VALUE), torch.Tensor):
            yield source
        try:
            source = find_viewed_argument(source)
        except NotSimple:
            return


def _shares_memory(node: Node) -> Node | None:
    result = fake_result(node)
    results = result if isinstance(result, list | tuple) else [result]
    storages = {storage_identity(t) for t in results if isinstance(t, torch.Tensor)}
    for source in node.all_input_nodes:
        if any(storage_identity(t) in storages for t in tensors(source)):
            if source is not node.args[0]:
                raise NotSimple(f"{node.name} returns a view of an argument after the first")
            return source
    return None


Inverse = Callable[[Node, Node, Node], tuple[Any, tuple[Any, ...]]]


def _scatter_by(target: Any) -> Inverse:
    return lambda view, whole, value: (target, (whole, value, *view.args[1:]))


def _same_view_back(view: Node, whole: Node, value: Node) -> tuple[Any, tuple[Any, ...]]:
    return view.target, (value, *view.args[1:])


def _sizes_back(view: Node, whole: Node, value: Node) -> tuple[Any, tuple[Any, ...]]:
    sizes = list(whole.meta[META_VALUE].shape)
    if not all(isinstance(s, int) for s in sizes):
        raise NotSimple(f"a write through {view.name} of symbolic shape")
    return aten.reshape.default, (value, sizes)


def _permute_back(view: Node, whole: Node, value: Node) -> tuple[Any, tuple[Any, ...]]:
    order = [int(d) % len(view.args[1]) for d in view.args[1]]  # type: ignore[arg-type, union-attr]
    return aten.permute.default, (value, sorted(range(len(order)), key=order.__getitem__))


def _as_it_is(view: Node, whole: Node, value: Node) -> tuple[Any, tuple[Any, ...]]:
    return aten.alias.default, (value,)


_INVERSES: dict[str, Inverse] = {
    "aten.slice.Tensor": _scatter_by(aten.slice_scatter.default),
    "aten.select.int": _scatter_by(aten.select_scatter.default),
    "aten.diagonal.default": _scatter_by(aten.diagonal_scatter.default),
    "aten.as_strided.default": _scatter_by(aten.as_strided_scatter.default),
    "aten.transpose.int": _same_view_back,
    "aten.t.default": _same_view_back,
    "aten.permute.default": _permute_back,
    **dict.fromkeys(
        ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int"), _sizes_back
    ),
    **dict.fromkeys(("squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default"), _sizes_back),
    **dict.fromkeys(("alias.default", "detach.default", "contiguous.default", "dropout.default"), _as_it_is),
    **dict.fromkeys(("to.dtype", "to.dtype_layout", "to.device", "to.other"), _as_it_is),
}
_INVERSES = {name if name.startswith("aten.") else f"aten.{name}": inverse for name, inverse in _INVERSES.items()}
