"""Decomposition of single nodes by torch's own decompositions; each kind of node is traced once.

Torch's decompositions of a few operators do not return all results; corrected ones replace them.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols
from torch.fx.node import map_arg

from delegate.edge.build import fake_mode, inherit_meta
from delegate.edge.functional import HIDDEN_WRITES, functionalize
from delegate.edge.graphs import CHECKS, graph_modules, has_effect, require_success
from delegate.edge.node import SYMBOLIC, describe, op_name, results_used, shape_text, symbolic_numbers, writes_in_place
from delegate.edge.program import META_VALUE, EdgeProgram
from delegate.edge.torch_private import (
    WITHOUT_LIBRARIES,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    allow_guards,
    call_composite,
    count_composites,
    enable_python_dispatcher,
    is_composite,
    override_composites,
    preserve_composite,
    replace_symbol,
    schema_of,
)
from delegate.errors import LoweringError

Table = Mapping[Any, Callable[..., Any]]


def _torch_decompositions() -> Table:
    """Return torch's decompositions; torch takes long to collect composite operators, so they are cached."""
    return _read_torch_decompositions(count_composites())


@functools.lru_cache(1)
def _read_torch_decompositions(_: int) -> Table:
    return dict(torch.export.default_decompositions())


@functools.cache
def core_decompositions(preserve_ops: Set[str] = frozenset()) -> Table:
    """Return torch's decompositions to core ATen, leaving out preserved operators."""
    table = _override_decompositions(dict(_torch_decompositions()))
    return {op: how for op, how in table.items() if str(op) not in preserve_ops}


class CannotDecompose(LoweringError):
    """Torch cannot decompose one node alone.

    Args:
        what, where, remedy: see `DelegateError`.
        operator: the node's operator.
    """

    def __init__(self, what: str, *, where: str = "", remedy: str = "", operator: str = "") -> None:
        super().__init__(what, where=where, remedy=remedy)
        self.operator = operator


@dataclass(frozen=True)
class Decomposer:
    """A decomposer of nodes, in place; equal operators on inputs of equal metadata are traced once.

    Args:
        preserve_ops: preserved operators, e.g. "aten.linear.default".
    """

    preserve_ops: frozenset[str] = frozenset()
    _traced: dict[Any, Graph] = field(default_factory=dict, repr=False)

    @property
    def table(self) -> Table:
        """Return the decompositions of operators that are not composite."""
        return core_decompositions(self.preserve_ops)

    def applies(self, node: Node) -> bool:
        """Return true if the node's operator is neither core ATen nor preserved."""
        return isinstance(node.target, OpOverload) and self.applies_to(node.target)

    def applies_to(self, target: OpOverload[..., Any]) -> bool:
        """Return true if an operator is neither core ATen nor preserved."""
        if str(target) in self.preserve_ops:
            return False
        return target in self.table or is_composite(target)

    def accepts(self, body: Graph) -> bool:
        """Return true if this decomposition may replace its node."""
        return True

    def expand(self, nodes: Iterable[Node]) -> list[tuple[Node, ...]]:
        """Replace nodes by their decompositions; return the new nodes of each, which may be none.

        Raises:
            LoweringError: torch cannot trace an operator on its inputs.
        """
        with contextlib.ExitStack() as stack:

            @functools.cache  # once for all nodes, and only if one is traced: it takes as long as a trace
            def preserve() -> None:
                composites = find_preserved_composites(self.preserve_ops)
                stack.enter_context(override_composites(composites))

            return [self._expand(node, preserve) for node in nodes]

    def _expand(self, node: Node, preserve: Callable[[], None]) -> tuple[Node, ...]:
        leaves: list[Node] = []
        map_arg((node.args, node.kwargs), leaves.append)
        leaves = list(dict.fromkeys(leaves))
        body = self._trace(node, leaves, preserve)
        if not self.accepts(body):
            return (node,)
        added, results = _inline(body, node, leaves)
        _require_alike(node, results)
        _rename_symbols(node, results)
        _replace_uses(node, results)
        return added

    def _trace(self, node: Node, leaves: list[Node], preserve: Callable[[], None]) -> Graph:
        key = trace_key(node)
        body = self._traced.get(key) if key is not None else None
        if body is not None:
            return body
        preserve()
        values = [_own(leaf.meta[META_VALUE]) for leaf in leaves]
        call = _call_of(node, leaves)
        try:
            mode = fake_mode([*leaves, node])  # without a mode, an operator on sizes, such as arange, would fix them
            body = self._make(call, values, mode)
            if any(map(writes_in_place, body.nodes)):
                body = self._make(torch.func.functionalize(call), values, mode)
            if any(map(writes_in_place, body.nodes)):
                functionalize(body)
            require_success(body)
        except Exception as error:
            raise CannotDecompose(
                f"torch cannot decompose an operator: {error}",
                where=describe(node),
                remedy="replace the operator in the model, or register a decomposition for it",
                operator=op_name(node),
            ) from error
        if key is not None and _symbols(body) <= _symbols(values):
            self._traced[key] = body
        return body

    def _make(self, call: Callable[..., Any], values: list[Any], mode: FakeTensorMode | None) -> Graph:
        fake = mode or contextlib.nullcontext()
        with WITHOUT_LIBRARIES, fake, _without_guards(mode), torch.no_grad(), enable_python_dispatcher():
            graph: Graph = make_fx(call, decomposition_table=dict(self.table))(*values).graph
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided_.default):
            node.replace_all_uses_with(node.args[0])  # composites set strides by as_strided_; strides are irrelevant
            graph.erase_node(node)
        return graph


@contextlib.contextmanager
def _without_guards(mode: FakeTensorMode | None) -> Iterator[None]:
    """Return a context without guards, so that a comparison in a composite is not an assumption of all calls.

    A guard is not an error, either, if a backend decomposes during a support check; see
    `delegate.backend.selected.sizes_open`.
    """
    known = None if mode is None else mode.shape_env
    if known is None:
        yield
        return
    with allow_guards(known), known.suppress_guards():
        yield


def _call_of(node: Node, leaves: list[Node]) -> Callable[..., Any]:
    """Return a node's operator as a function of the values that the nodes in its arguments have."""

    def call(*values: Any) -> Any:
        args, kwargs = map_arg((node.args, node.kwargs), dict(zip(leaves, values, strict=True)).__getitem__)
        assert callable(node.target)
        return node.target(*args, **kwargs)

    return call


def _own(value: Any) -> Any:
    """Return a separate object: nodes of one cached body share fake tensors, but torch compares them by identity."""
    return value.detach() if isinstance(value, torch.Tensor) else value


@functools.cache
def find_preserved_composites(preserve_ops: frozenset[str]) -> dict[Any, Callable[..., Any]]:
    """Return the preserved composite operators, which torch would otherwise expand inside of others."""
    ops = (op for op in _torch_decompositions() if str(op) in preserve_ops)
    return {op: _preserve(op) for op in ops if is_composite(op)}


def _preserve(op: OpOverload[..., Any]) -> Callable[..., Any]:
    """Return the kernel that preserves a composite, except if it writes to running statistics without declaring it."""
    flag = HIDDEN_WRITES.get(str(op))
    if flag is None:
        preserve: Callable[..., Any] = preserve_composite
        return preserve

    def preserve_unless_it_writes(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip((a.name for a in schema_of(op).arguments), args, strict=False)) | kwargs
        if named[flag] and named["running_mean"] is not None:
            return call_composite(op, *args, **kwargs)
        return NotImplemented

    return preserve_unless_it_writes


def trace_key(node: Node) -> Any:
    """Return the key of a traced body: all that the body depends on; None if it has no key."""
    order: dict[Node, int] = {}
    flat: list[Any] = [node.target]
    for name, value in (*enumerate(node.args), *sorted(node.kwargs.items())):
        flat.append(name)
        _flatten_key(value, order, flat)
    key = tuple(flat)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _flatten_key(value: Any, order: dict[Node, int], flat: list[Any]) -> None:
    if isinstance(value, Node):
        position = order.setdefault(value, len(order))  # a node that is passed twice has another body
        flat.append((position, _value_key(value.meta[META_VALUE])))
    elif isinstance(value, list | tuple):
        flat.append((len(value), "list"))
        for item in value:
            _flatten_key(item, order, flat)
    else:
        flat.append((type(value), repr(value) if isinstance(value, float | complex) else value))


def _value_key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes = tuple(map(str, value.shape)), tuple(map(str, value.stride()))
        return (value.dtype, sizes, value.device, id(value.fake_mode) if isinstance(value, FakeTensor) else 0)
    if isinstance(value, list | tuple):
        return tuple(map(_value_key, value))
    return (type(value), str(value))


def _symbols(values: Any) -> set[Any]:
    """Return the symbols of shapes in values, or in the nodes of a graph."""
    metas = [n.meta.get(META_VALUE) for n in values.nodes] if isinstance(values, Graph) else values
    symbols: set[Any] = set()
    for value in metas:
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, (torch.Tensor, *SYMBOLIC)):
                symbols |= free_symbols(item)
    return symbols


def _inline(body: Graph, node: Node, leaves: list[Node]) -> tuple[tuple[Node, ...], Any]:
    """Copy a traced body before a node; return the new nodes, and the body's result in terms of them."""
    env: dict[Node, Node] = dict(zip(body.find_nodes(op="placeholder"), leaves, strict=True))
    metadata = inherit_meta(node)
    added: list[Node] = []
    with node.graph.inserting_before(node):
        for inner in body.nodes:
            if inner.op not in ("call_function", "get_attr") or not (inner.users or _keeps(inner)):
                continue
            env[inner] = _copy(inner, env, node.graph, body)
            env[inner].meta = {**metadata, META_VALUE: inner.meta.get(META_VALUE)}
            added.append(env[inner])
    return tuple(added), map_arg(body.output_node().args[0], env.__getitem__)


def _keeps(node: Node) -> bool:
    return has_effect(node) and str(node.target) not in CHECKS


def _copy(inner: Node, env: dict[Node, Node], graph: Graph, body: Graph) -> Node:
    if inner.op == "call_function":
        return graph.node_copy(inner, env.__getitem__)
    constant = getattr(body.owning_module, str(inner.target))
    if not isinstance(constant, torch.Tensor) or constant.dim() or isinstance(constant, FakeTensor):
        raise LoweringError(f"a decomposition contains the constant {inner.target}", where=str(inner))
    kwargs: dict[str, Any] = {"dtype": constant.dtype, "device": constant.device, "pin_memory": False}
    return graph.call_function(torch.ops.aten.full.default, ([], constant.item()), kwargs)


def _require_alike(node: Node, results: Any) -> None:
    """Raise LoweringError if a used result has another dtype, another rank, or another static size."""
    old = node.meta.get(META_VALUE)
    if isinstance(old, torch.Tensor):
        pairs = [(old, results)]
    else:
        parts = results if isinstance(results, list | tuple) else []
        pairs = [(old[i], parts[i]) for i in sorted(results_used(node)) if old is not None and i < len(parts)]
    for before, result in pairs:
        after = result.meta.get(META_VALUE) if isinstance(result, Node) else None
        if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor) and not _alike(before, after):
            what = f"torch's decomposition returns {shape_text(after)} instead of {shape_text(before)}"
            raise LoweringError(what, where=describe(node), remedy="replace the operator in the model")


def _alike(before: torch.Tensor, after: torch.Tensor) -> bool:
    sizes = zip(before.shape, after.shape, strict=False)
    known = all(a == b for a, b in sizes if isinstance(a, int) and isinstance(b, int))
    return before.dtype is after.dtype and before.dim() == after.dim() and known


def _rename_symbols(node: Node, results: Any) -> None:
    """Replace the new symbols of data-dependent sizes, which tracing introduced, by the old ones everywhere."""
    old = node.meta.get(META_VALUE)
    new = map_arg(results, lambda n: n.meta.get(META_VALUE))
    for before, after in zip(symbolic_numbers(old), symbolic_numbers(new), strict=False):
        fresh, former = (list(n.node.expr.free_symbols) for n in (after, before))
        if len(fresh) == len(former) == 1 and free_unbacked_symbols(after) and fresh != former:
            replace_symbol(after.node.shape_env, fresh[0], former[0])


def _replace_uses(node: Node, results: Any) -> None:
    """Replace a node by a body's result in all its users: a node, a size that export fixed, or a list of results."""
    if isinstance(results, int):
        for user in list(node.users):
            user.args, user.kwargs = map_arg((user.args, user.kwargs), lambda n: results if n is node else n)
    elif isinstance(results, list | tuple):
        for user in list(node.users):
            assert user.target is operator.getitem, f"{user} takes all results of {node}"
            _replace_uses(user, results[user.args[1]])  # type: ignore[index]
    else:
        node.replace_all_uses_with(results)
    node.graph.erase_node(node)


def decompose(program: EdgeProgram, nodes: Iterable[Node]) -> EdgeProgram:
    """Decompose compound nodes of a program to core ATen, in place; equal nodes are traced once."""
    Decomposer().expand(nodes)
    return program


def compound_nodes(graph: Graph, decomposer: Decomposer | None = None) -> Iterator[Node]:
    """Yield the nodes of a graph that are not core ATen and have a decomposition."""
    applies = (decomposer or Decomposer()).applies
    return (node for node in list(graph.nodes) if applies(node))


def compound_operators(root: GraphModule) -> frozenset[str]:
    """Return the operators of a graph and its bodies that are not core ATen and have a decomposition."""
    targets = {n.target for module in graph_modules(root) for n in module.graph.nodes if n.op == "call_function"}
    applies = Decomposer().applies_to
    return frozenset(str(target) for target in targets if isinstance(target, OpOverload) and applies(target))


_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

# Operators that kernels and backends compute as one, and that the decompositions of some versions of torch expand.
_LEAVES = frozenset({torch.ops.aten.linalg_vector_norm.default})
_THRESHOLD = torch.ops.aten.threshold.default
_RRELU = torch.ops.aten.rrelu_with_noise_functional.default


def _override_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return torch's table of decompositions with corrections."""
    corrected = {op: how for op, how in table.items() if op not in _LEAVES}
    corrected |= {_RRELU: _rrelu, _THRESHOLD: partial(_threshold, table[_THRESHOLD])}
    return corrected | {_FLASH: _flash_attention(table[_FLASH])}


def _threshold(own: Callable[..., Tensor], x: Tensor, threshold: float, value: float) -> Tensor:
    """Truncate the numbers for integers; torch's own decomposition computes integers in float32."""
    if x.is_floating_point():
        return own(x, threshold, value)
    return torch.where(x <= int(threshold), int(value), x).to(x.dtype)


def _rrelu(
    x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> tuple[Tensor, Tensor]:
    """Decompose rrelu, whose own decomposition is not among those to core ATen; noise has the slope of each element."""
    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise
    slopes = torch.where(x > 0, torch.ones_like(x), torch.ops.aten.uniform(x, lower, upper))
    return x * slopes, slopes


def _flash_attention(attention: Callable[..., Any]) -> Callable[..., Any]:
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the output and the logarithms of the rows' sums, (N, H, L), in place of the weights, (N, H, L, S)."""
        output, _ = attention(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        wide = query.dtype if query.dtype is torch.float64 else torch.float32
        wide_query, shared = query.to(wide), query.size(1) // key.size(1)
        keys = key.to(wide) if shared == 1 else key.to(wide).repeat_interleave(shared, 1)
        factor = 1 / math.sqrt(query.size(3)) if scale is None else scale
        scores = torch.matmul(wide_query * factor, keys.transpose(2, 3))
        if is_causal:
            later = torch.ones(scores.shape[2:], dtype=torch.bool, device=query.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        if attn_mask is not None:  # numbers to add: callers convert boolean masks to numbers
            scores = scores + attn_mask
        return output, torch.logsumexp(scores, 3)

    return attend
