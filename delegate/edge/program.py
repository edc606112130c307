"""The EdgeProgram: the result of edge, which passes rewrite and the partitioner reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

META_VALUE = "val"  # node.meta key of torch: the fake tensor (or symbolic number) of a node's result

DecompositionRound = Mapping[str, tuple[str, ...]]  # graph -> identities of the nodes that are decomposed together


@dataclass(frozen=True, slots=True)
class EdgeInput:
    """One leaf of the caller's arguments.

    Args:
        name: path for people, e.g. "x" or "batch['ids']".
        node: name of its placeholder.
        literal: the value that export fixed, if the leaf is neither a tensor nor a symbolic number.
        is_literal: true if `literal` is set.
    """

    name: str
    node: str
    literal: int | float | bool | str | None = None
    is_literal: bool = False


@dataclass(frozen=True)
class EdgeProgram:
    """One method in edge dialect.

    `graph` holds a placeholder for every constant, state and user input, then call_function nodes, then the output
    node. The output node's argument is `(user outputs ..., new values of mutated states ..., of written inputs ...)`.
    Every node has `meta["val"]`. It has `meta["nn_module_stack"]` and `meta["stack_trace"]` if torch recorded them.

    Args:
        name: name of the method.
        graph_module: owns the graph, which passes rewrite in place and return in a new EdgeProgram.
        inputs: user inputs, in the order of their placeholders.
        constants: placeholder name -> the tensor (parameters, buffers, lifted constants, folded values).
        constant_names: placeholder name -> the name in the user's module (or the node that was folded).
        states: placeholder name -> the mutable buffer's name in the user's module; its start value is in `constants`.
        mutated: names of the states whose new values follow the user's outputs, in order.
        in_spec, out_spec: torch's pytree specs of (args, kwargs) and of the result.
        written: placeholders of the inputs that the module writes to; the last outputs are their new values.
        range_constraints: sympy symbol -> torch's ValueRanges.
        guards: assumptions of the export on sizes, beyond their ranges: conditions on inputs as torch's text, and
            symbolic booleans.
        preserved: the compound operators that were preserved at any time, also for nodes that a pass removed.
        decompositions: the compound nodes that were decomposed later, in rounds.
        notes: Notes about the export, for people.
    """

    name: str
    graph_module: GraphModule
    inputs: tuple[EdgeInput, ...]
    constants: Mapping[str, torch.Tensor]
    constant_names: Mapping[str, str]
    states: Mapping[str, str]
    mutated: tuple[str, ...]
    in_spec: Any
    out_spec: Any
    range_constraints: Mapping[Any, Any]
    written: tuple[str, ...] = ()
    guards: tuple[str | torch.SymBool, ...] = ()
    preserved: frozenset[str] = frozenset()
    decompositions: tuple[DecompositionRound, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def graph(self) -> Graph:
        """Return the graph of the method."""
        return self.graph_module.graph

    def is_constant(self, node: Node) -> bool:
        """Return true if the node is the placeholder of a value that never changes."""
        return node.op == "placeholder" and node.name in self.constants and node.name not in self.states

    def __str__(self) -> str:
        return str(self.graph)
