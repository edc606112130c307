"""Operators with effects besides their results, such as printing, and the tokens by which torch orders them.

When torch decomposes a program, it calls these operators as `with_effects(token, operator, *arguments)`, which returns
a new token before the results. A program runs the operators in their order, so it needs no tokens.
"""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, OutputKind
from torch.fx import Graph, Node

from delegate.edge.build import inherit_meta
from delegate.edge.decompose import ProcessSwitch, Table
from delegate.edge.graphs import CHECKS, graph_modules
from delegate.edge.node import describe
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import (
    HigherOrderOperator,
    OpOverload,
    effect_of,
    effects,
    forget_export_constants,
    schema_of,
)
from delegate.errors import ExportError

_FROM_TORCH_ITSELF = ".*LeafSpec.*is deprecated"  # it copies its own deprecated pytree specs
_WITH_EFFECTS = torch.ops.higher_order.with_effects


def refuse_effects(ep: ExportedProgram) -> None:
    """Raise ExportError for an operator that only has an effect, such as printing, also in a body of control flow.

    A check is not such an operator, and neither is a custom operator with an effect that returns tensors.
    """
    for module in graph_modules(ep.graph_module):
        for node in module.graph.nodes:
            target = node.args[1] if node.target is _WITH_EFFECTS else node.target
            if _only_has_effect(target):
                raise ExportError(
                    f"the operator {target} has side effects",
                    where=describe(node),
                    remedy="remove operators with side effects, such as printing, from forward",
                )


def _only_has_effect(target: Any) -> bool:
    if not isinstance(target, OpOverload | HigherOrderOperator) or effect_of(target) is None:
        return False
    return not isinstance(target, OpOverload) or (not schema_of(target).returns and str(target) not in CHECKS)


def remove_tokens(graph: Graph, signature: ExportGraphSignature) -> None:
    """Call the operators of a program without tokens, in place, and remove the tokens from its inputs and results."""
    for node in graph.find_nodes(op="call_function", target=_WITH_EFFECTS):
        _call_plainly(node)
    results: Any = graph.output_node().args[0]
    kinds = [spec.kind for spec in signature.output_specs]
    graph.output_node().args = (tuple(r for r, k in zip(results, kinds, strict=True) if k is not OutputKind.TOKEN),)
    tokens = {spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.TOKEN}
    for placeholder in graph.find_nodes(op="placeholder"):
        if placeholder.name in tokens:
            graph.erase_node(placeholder)


def _call_plainly(node: Node) -> None:
    graph, (token, target, *args) = node.graph, node.args
    assert isinstance(target, OpOverload)
    results = node.meta[META_VALUE][1:]
    is_single = len(schema_of(target).returns) == 1
    with graph.inserting_before(node):
        plain = graph.call_function(target, tuple(args), node.kwargs)
    plain.meta = {**inherit_meta(node), META_VALUE: results[0] if is_single else results}
    for user in list(node.users):
        assert user.target is operator.getitem
        position: Any = user.args[1]
        if position == 0 or is_single:
            user.replace_all_uses_with(plain if position else token)  # type: ignore[arg-type]
            graph.erase_node(user)
        else:
            user.args = (plain, position - 1)
    graph.erase_node(node)


def run_decompositions(ep: ExportedProgram, table: Table) -> ExportedProgram:
    """Return torch's decomposition of a program, without tokens: torch fails on those in bodies of control flow."""
    with WITHOUT_TOKENS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_FROM_TORCH_ITSELF, category=FutureWarning)
        decomposed: ExportedProgram = ep.run_decompositions(dict(table))
    forget_export_constants()
    return decomposed


@contextlib.contextmanager
def _no_tokens() -> Iterator[None]:
    untyped: Any = effects
    own, untyped.has_effects = untyped.has_effects, lambda _: False
    try:
        yield
    finally:
        untyped.has_effects = own


WITHOUT_TOKENS = ProcessSwitch(_no_tokens)
