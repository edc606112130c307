"""Verifiers of the dialects: an error names the node that breaks a rule, and the rule."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from delegate.edge.control_flow import is_control_flow
from delegate.edge.graphs import ASSERTIONS, graph_modules
from delegate.edge.node import describe, dtype_of, op_name, overload, tensors, writes_in_place
from delegate.edge.program import META_VALUE, EdgeProgram
from delegate.edge.torch_private import HigherOrderOperator, OpOverload, is_composite, schema_of
from delegate.errors import DialectError

_NUMBERS = frozenset(
    {"_operator", "math", "torch", "torch.fx.experimental.symbolic_shapes", "torch.utils._sympy.functions"}
)


@dataclass(frozen=True, slots=True)
class DialectRule:
    """A rule of a dialect: its text, the remedy for a breach, and a check of a node."""

    text: str
    remedy: str
    holds: Callable[[Node], bool]


def _known_target(node: Node) -> bool:
    target = node.target
    if node.op != "call_function" or isinstance(target, OpOverload) or target is operator.getitem:
        return True
    if isinstance(target, HigherOrderOperator):
        return is_control_flow(target) or overload(node) is not None
    return target is round or getattr(target, "__module__", "") in _NUMBERS


def _body(node: Node) -> bool:
    return node.op != "get_attr" or isinstance(getattr(node.graph.owning_module, str(node.target), None), GraphModule)


def _returns_something(node: Node) -> bool:
    return (
        not isinstance(node.target, OpOverload) or bool(schema_of(node.target).returns) or op_name(node) in ASSERTIONS
    )


_EXPORT_AGAIN = "export the model again with this version of torch"
_NO_CALL = (
    "replace it in the model; auto_functionalized_v2 comes from run_decompositions(): do not call it before delegate"
)
ATEN_RULES = (
    DialectRule(
        "nodes must be placeholders, operator calls, bodies of control flow or the output",
        _EXPORT_AGAIN,
        lambda node: node.op in ("placeholder", "call_function", "get_attr", "output"),
    ),
    DialectRule("calls must be of operators, control flow or arithmetic on sizes", _NO_CALL, _known_target),
    DialectRule("get_attr must refer to a body of control flow; tensors must be placeholders", _EXPORT_AGAIN, _body),
    DialectRule(
        "every node must have its value in meta['val']",
        "set it in the pass that creates the node",
        lambda node: node.op in ("output", "get_attr") or META_VALUE in node.meta,
    ),
)
EDGE_RULES = (
    *ATEN_RULES,
    DialectRule(
        "operators must not write to their inputs",
        "register a form of the custom operator that returns the new value",
        lambda node: not writes_in_place(node),
    ),
    DialectRule(
        "every operator must return a value", "remove operators with side effects from forward", _returns_something
    ),
    DialectRule(
        "tensors must have dtypes that programs support",
        "cast to a supported dtype in the model",
        lambda node: all(dtype_of(t.dtype) is not None for t in tensors(node)),
    ),
    DialectRule(
        "tensors must be dense",
        "convert sparse tensors in the model",
        lambda node: all(t.layout == torch.strided for t in tensors(node)),
    ),
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect: its rules, and the operators that it allows.

    Args:
        name: name for messages.
        rules: rules for every node.
        allows: true for an operator of the dialect, by default any; those of namespaces other than aten are always
            allowed.
    """

    name: str
    rules: tuple[DialectRule, ...]
    allows: Callable[[OpOverload], bool] = lambda op: True

    def check(self, module: GraphModule) -> None:
        """Raise DialectError for the first node that breaks a rule, also in bodies of control flow."""
        for part in graph_modules(module):
            for node in part.graph.nodes:
                self._check_node(node)

    def _check_node(self, node: Node) -> None:
        for rule in self.rules:
            if not rule.holds(node):
                raise DialectError(f"not {self.name}: {rule.text}", where=describe(node), remedy=rule.remedy)
        target = node.target
        if isinstance(target, OpOverload) and target.namespace in ("aten", "prims") and not self.allows(target):
            raise DialectError(
                f"not {self.name}: {target} is not an operator of the dialect",
                where=describe(node),
                remedy="decompose it with delegate.edge.decompose.decompose, or name it in preserve_ops",
            )


def is_core(op: OpOverload) -> bool:
    """Return true if torch tags the operator as core ATen."""
    return torch.Tag.core in op.tags


def edge_dialect(preserve_ops: Set[str] | None = None) -> Dialect:
    """Return the edge dialect: core ATen and these preserved operators; None: any operator may be preserved."""
    if preserve_ops is None:
        return Dialect("edge", EDGE_RULES)
    return Dialect("edge", EDGE_RULES, lambda op: str(op) in preserve_ops or is_core(op) or not is_composite(op))


def verify(program: EdgeProgram, preserve_ops: Set[str] | None = None) -> None:
    """Raise DialectError unless the program is in edge dialect and its tables fit its graph.

    Args:
        preserve_ops: the operators besides core ATen that may occur; None: any.
    """
    edge_dialect(preserve_ops).check(program.graph_module)
    for what, where in _misfits(program):
        raise DialectError(
            f"not edge: {what}", where=where, remedy="this is an error in the last pass that ran: report it"
        )


def _misfits(program: EdgeProgram) -> Iterator[tuple[str, str]]:
    nodes = list(program.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    inputs = [n.name for n in placeholders if n.name not in program.constants]
    late = next((n for n in nodes[len(placeholders) :] if n.op == "placeholder"), None)
    if late is not None:
        yield "placeholders must come first", describe(late)
    if inputs != [i.node for i in program.inputs]:
        yield "the inputs differ from the placeholders without constants, or from their order", str(inputs)
    names = {n.name for n in placeholders}
    for name in (*program.constants, *program.states):
        if name not in names:
            yield "a constant or state has no placeholder", name
    if program.constants.keys() != program.constant_names.keys():
        yield "a constant has no name", str(program.constants.keys() ^ program.constant_names.keys())
    yield from _wrong_results(program)


def _wrong_results(program: EdgeProgram) -> Iterator[tuple[str, str]]:
    results: Any = program.graph.output_node().args[0]
    if not isinstance(results, tuple):
        yield "the output is not a tuple of results", str(results)
        return
    leaves = program.out_spec.num_leaves if program.out_spec is not None else 0
    expected = leaves + len(program.mutated) + len(program.written)
    if program.out_spec is not None and len(results) != expected:
        yield f"{len(results)} results, not {expected}", str(program.graph.output_node().args)
    if not set(program.mutated) <= set(program.states.values()):
        yield "a mutated state is not a state of the program", str(program.mutated)
    if not set(program.written) <= {i.node for i in program.inputs}:
        yield "a written input is not an input of the program", str(program.written)
