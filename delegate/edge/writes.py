"""Writes of a model to its parameters, buffers and constants, also those that the schema of an operator hides."""

from __future__ import annotations

from dataclasses import replace

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from delegate.edge.build import with_inputs
from delegate.edge.functional import hidden_writes, memory_chain
from delegate.edge.node import arguments, describe, overload
from delegate.edge.torch_private import schema_of
from delegate.errors import ExportError


def writers(ep: ExportedProgram) -> dict[str, Node]:
    """Return the first node that writes to each parameter, buffer or constant, by its name in the user's module."""
    names = {spec.arg.name: spec.target for spec in ep.graph_signature.input_specs if spec.target is not None}
    first: dict[str, Node] = {}
    for node in ep.graph.nodes:
        for written in _written(node):
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


def with_buffers(ep: ExportedProgram) -> ExportedProgram:
    """Return a program whose constants, such as tensors that are plain attributes, are buffers, which it may write."""
    specs = [
        replace(spec, kind=InputKind.BUFFER, persistent=False) if spec.kind is InputKind.CONSTANT_TENSOR else spec
        for spec in ep.graph_signature.input_specs
    ]
    return with_inputs(ep, ep.graph_module, specs, {})


def _written(node: Node) -> list[Node]:
    operator = overload(node)
    if operator is None:
        return []
    declared = (a.name for a in schema_of(operator).arguments if a.alias_info is not None and a.alias_info.is_write)
    values = [arguments(node)[name] for name in declared]
    return [value for value in (*values, *hidden_writes(node)) if isinstance(value, Node)]
