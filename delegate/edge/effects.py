"""Effects of operators besides their results: printing, writes to parameters and buffers, and behaviour in training.

When torch decomposes a program, it orders operators with effects by tokens. A program of ours runs the operators in
their order, so it needs no tokens.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

from delegate.common.user_warnings import warn_user
from delegate.edge.decompose import Table
from delegate.edge.functional import hidden_writes, memory_chain
from delegate.edge.graphs import CHECKS, graph_modules
from delegate.edge.node import arguments, describe, op_name, overload, written_arguments
from delegate.edge.torch_private import (
    WITHOUT_TOKENS,
    HigherOrderOperator,
    OpOverload,
    effect_of,
    forget_export_constants,
    schema_of,
)
from delegate.errors import ExportError

aten = torch.ops.aten

_FROM_TORCH_ITSELF = ".*LeafSpec.*is deprecated"  # it copies its own deprecated pytree specs


def refuse_effects(ep: ExportedProgram) -> None:
    """Raise ExportError for an operator that only has an effect, such as printing, also in a body of control flow.

    A check is not such an operator, and neither is a custom operator with an effect that returns tensors.
    """
    for module in graph_modules(ep.graph_module):
        for node in module.graph.nodes:
            if _only_has_effect(node.target):
                raise ExportError(
                    f"the operator {node.target} has side effects",
                    where=describe(node),
                    remedy="remove operators with side effects, such as printing, from forward",
                )


def _only_has_effect(target: Any) -> bool:
    if not isinstance(target, OpOverload | HigherOrderOperator) or effect_of(target) is None:
        return False
    return not isinstance(target, OpOverload) or (not schema_of(target).returns and str(target) not in CHECKS)


def run_decompositions(ep: ExportedProgram, table: Table) -> ExportedProgram:
    """Return torch's decomposition of a program, without tokens: torch fails on those in bodies of control flow."""
    with WITHOUT_TOKENS, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_FROM_TORCH_ITSELF, category=FutureWarning)
        decomposed: ExportedProgram = ep.run_decompositions(dict(table))
    forget_export_constants()
    return decomposed


def writers(ep: ExportedProgram) -> dict[str, Node]:
    """Return the first node that writes to each parameter, buffer or constant, by its name in the user's module."""
    names = {spec.arg.name: spec.target for spec in ep.graph_signature.input_specs if spec.target is not None}
    first: dict[str, Node] = {}
    for node in ep.graph.nodes:
        for written in _find_written(node):
            *_, owner = memory_chain(written)
            if owner.op == "placeholder" and owner.name in names:
                first.setdefault(names[owner.name], node)
    return first


def refuse_written_parameters(ep: ExportedProgram, written: dict[str, Node]) -> None:
    """Raise ExportError if a node writes to a parameter, which is not a state of a program."""
    for spec in ep.graph_signature.input_specs:
        if spec.kind is InputKind.PARAMETER and spec.target in written:
            raise ExportError(
                f"the program changes the parameter {spec.target} in place",
                where=describe(written[spec.target]),
                remedy="make it a buffer (register_buffer)",
            )


def _find_written(node: Node) -> list[Node]:
    operator = overload(node)
    if operator is None:
        return []
    values = [arguments(node)[name] for name in written_arguments(operator)]
    return [value for value in (*values, *hidden_writes(node)) if isinstance(value, Node)]


_FLAGS = ("train", "training")
_RECURRENT = frozenset(getattr(aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


def warn_of_training(graph: Graph, name: str) -> None:
    """Warn about operators of a method that were exported in training mode, by name.

    Raises:
        ExportError: a recurrent operator has dropout between its layers, which torch's decomposition omits.
    """
    for node in graph.nodes:
        if node.target in _RECURRENT and trains(node) and arguments(node)["num_layers"] > 1:
            what = f"{op_name(node)} has dropout between its layers"
            raise ExportError(what, where=describe(node), remedy="call model.eval() before torch.export.export")
    counts = Counter(op_name(node).split(".")[1] for node in graph.nodes if trains(node))
    if counts:
        what = ", ".join(op if count == 1 else f"{op} ({count} times)" for op, count in counts.items())
        warn_user(
            f"method {name} was exported in training mode: {what} will run as in training; for inference, call "
            "model.eval() before torch.export.export",
            UserWarning,
        )


def trains(node: Node) -> bool:
    """Return true if the operator is in training mode: it drops elements at random, or uses statistics of its batch."""
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    args = arguments(node)
    if "dropout_p" in args:
        return bool(args["dropout_p"])
    if "running_mean" in args and args["running_mean"] is None:
        return False  # a norm that keeps no statistics takes those of its batch in eval mode too
    rate = args.get("p", args.get("dropout", 1))
    return rate != 0 and any(args.get(flag) is True for flag in _FLAGS)
