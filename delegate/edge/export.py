"""to_edge: from an ExportedProgram to an EdgeProgram."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch.export import ExportedProgram

from delegate.edge.graphs import drop_unused, remove_checks, trim_metadata
from delegate.edge.program import EdgeProgram
from delegate.edge.signature import read_signature, reorder_outputs
from delegate.errors import ExportError


def core_decompositions(preserve_ops: Set[str] = frozenset()) -> dict[Any, Callable[..., Any]]:
    """Torch's decompositions to core ATen, without those of the operators to keep whole."""
    table: Mapping[Any, Callable[..., Any]] = torch.export.default_decompositions()
    return {op: function for op, function in table.items() if str(op) not in preserve_ops}


def to_edge(ep: ExportedProgram, *, name: str = "forward", preserve_ops: Set[str] = frozenset()) -> EdgeProgram:
    """Bring an exported program to edge dialect: core ATen and the operators to keep, functional, without checks.

    Args:
        ep: what `torch.export.export` made; it is not changed.
        name: of the method.
        preserve_ops: operators to keep whole although they are not core ATen, e.g. "aten.linear.default".

    Raises:
        ExportError: the program has inputs, effects or operators that an inference program cannot have.
    """
    try:
        with warnings.catch_warnings():
            # torch copies its own deprecated pytree specs
            warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated", category=FutureWarning)
            core = ep.run_decompositions(core_decompositions(preserve_ops))
    except Exception as error:
        raise ExportError(
            f"torch cannot decompose the program: {error}",
            where=name,
            remedy="check that ep.run_decompositions() works, and that the model is exported in eval mode",
        ) from error
    signature = read_signature(core)
    reorder_outputs(core.graph, signature.outputs)
    remove_checks(core.graph_module)
    drop_unused(core.graph)
    trim_metadata(core.graph)
    return EdgeProgram(
        name=name,
        graph_module=core.graph_module,
        inputs=signature.inputs,
        constants=signature.constants,
        constant_names=signature.constant_names,
        states=signature.states,
        mutated=signature.mutated,
        in_spec=ep.call_spec.in_spec,
        out_spec=ep.call_spec.out_spec,
        range_constraints=ep.range_constraints,
    )
