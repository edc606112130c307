"""to_edge: from an ExportedProgram to an EdgeProgram."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node
from torch.nn import Module

from delegate.edge.build import storage_address
from delegate.edge.control_flow import index_by_tensors, lower_flex_attention
from delegate.edge.decompose import Decomposer, compound_nodes, compound_operators, core_decompositions
from delegate.edge.exported import (
    refuse_effects,
    refuse_written_parameters,
    run_decompositions,
    warn_of_training,
    with_buffers,
    with_plain_tensors,
    with_row_major_strides,
    writers,
)
from delegate.edge.functional import NotSimple, functionalize, hidden_writes, inline_modes
from delegate.edge.graphs import drop_unused, graph_modules, remove_checks, trim_metadata
from delegate.edge.node import META_CONSTANT, arguments, describe, op_name, tensor, tensors
from delegate.edge.open_sizes import find_kept_dimensions, open_sizes
from delegate.edge.program import EdgeProgram
from delegate.edge.signature import read_program, warn_of_merged_inputs
from delegate.edge.torch_private import FakeTensor, first_auto_functionalized, guards_code
from delegate.edge.verifier import verify
from delegate.errors import ExportError, LoweringError
from delegate.plugins import first_line

logger = logging.getLogger(__name__)


def to_edge(ep: ExportedProgram, *, name: str = "forward", preserve_ops: Set[str] = frozenset()) -> EdgeProgram:
    """Convert an exported program to edge dialect: core ATen and preserved operators, functional, without checks.

    Args:
        ep: a program of `torch.export.export`; it is not changed.
        name: name of the method.
        preserve_ops: preserved operators that are not core ATen, e.g. "aten.linear.default".

    Raises:
        ExportError: the program has inputs, effects or operators that an inference program cannot have.
        DialectError: the program cannot be converted to edge dialect; the error names the node.
    """
    decomposer = Decomposer(frozenset(preserve_ops))
    warn_of_training(ep.graph, name)
    warn_of_merged_inputs(ep, name)
    exported_guards = guards_code(ep)  # torch would write others for the programs below
    ep = with_row_major_strides(with_plain_tensors(ep))
    written = writers(ep)
    refuse_written_parameters(ep, written)
    refuse_effects(ep)
    try:
        program = _fast_path(ep, decomposer, name)
    except (NotSimple, LoweringError) as why:
        logger.info("%s is decomposed by torch's run_decompositions: %s", name, why)
        program = _slow_path(ep, decomposer, name)
    preserved = compound_operators(program.graph_module) & decomposer.preserve_ops
    drop_unused(program.graph)
    _refuse_absent_data(program)
    _refuse_shared_states(program, written)
    guards = (*exported_guards, *program.guards, *find_kept_dimensions(program.graph))
    program = replace(program, guards=guards, preserved=preserved)
    for placeholder in program.graph.find_nodes(op="placeholder"):
        placeholder.meta[META_CONSTANT] = program.is_constant(placeholder)
    verify(program, decomposer.preserve_ops)
    return program


def _sizes(ep: ExportedProgram) -> dict[tuple[str, int], int | None]:
    """Return every size of the inputs, by input and dimension; None for dynamic sizes."""
    names = {spec.arg.name for spec in ep.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT}
    placeholders = [node for node in ep.graph.find_nodes(op="placeholder") if node.name in names]
    return {
        (node.name, dim): size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size
        for node in placeholders
        for tensor in tensors(node)
        for dim, size in enumerate(tensor.shape)
    }


def _refuse_fixed_sizes(
    before: Mapping[tuple[str, int], int | None], after: Mapping[tuple[str, int], int | None]
) -> None:
    """Raise ExportError if a dynamic size became fixed: torch's decompositions may read a size, which fixes it."""
    for (name, dim), size in after.items():
        if size is not None and before.get((name, dim), size) is None:
            raise ExportError(
                f"torch's decomposition of the program fixes dimension {dim}, which is dynamic, at {size}",
                where=f"input {name!r}",
                remedy="export it without that dynamic dimension, or write in one step to views of views "
                "(x[0, 1:] = y, not x[0][1:] = y)",
            )


def _refuse_absent_data(program: EdgeProgram) -> None:
    """Raise ExportError for weights without data: the model was made on the meta device, or with fake tensors."""
    for placeholder, value in program.constants.items():
        if value.is_meta or isinstance(value, FakeTensor):
            kind = "a fake tensor" if isinstance(value, FakeTensor) else "on the meta device"
            name = program.constant_names.get(placeholder, placeholder)
            raise ExportError(f"{name} is {kind} and has no data", remedy="load the weights before the export")


def _refuse_shared_states(program: EdgeProgram, written: Mapping[str, Node]) -> None:
    """Raise ExportError if a state shares memory with another constant, which a write would change, too.

    A buffer with two names in the module is another case, because torch uses one name everywhere.
    """
    used = {n.name for n in program.graph.find_nodes(op="placeholder") if n.users} | program.states.keys()
    owners: dict[int, list[str]] = {}
    for placeholder, value in program.constants.items():
        if placeholder in used and (address := storage_address(value)):
            owners.setdefault(address, []).append(placeholder)
    for sharing in owners.values():
        state = next((p for p in sharing if p in program.states), None)
        if state is not None and len(sharing) > 1:
            names = ", ".join(program.constant_names[p] for p in sharing)
            writer = written.get(program.states[state])
            raise ExportError(
                f"the buffer {program.states[state]} is written to, but shares its memory with others",
                where=names if writer is None else f"{names}; {describe(writer)}",
                remedy="register only one of them and create the views in forward, or clone them",
            )


def _read(ep: ExportedProgram, module: GraphModule, name: str) -> EdgeProgram:
    """Return a program with another graph, without checks, in which sizes may be 0 and 1."""
    program = read_program(ep, module, name)
    ranges, notes = open_sizes(module.graph, program.range_constraints)
    return replace(program, range_constraints=ranges, notes=notes, guards=tuple(remove_checks(module)))


def _fast_path(ep: ExportedProgram, decomposer: Decomposer, name: str) -> EdgeProgram:
    """Rewrite the program node by node, which is several times faster than tracing it again."""
    program = _read(ep, GraphModule(Module(), inline_modes(ep.graph_module)), name)
    program = _with_writes(program, functionalize(program.graph))
    _settle_factors(program.graph)
    decomposer.expand(compound_nodes(program.graph, decomposer))
    return program


# Resizing of which torch's kernels ignore the factor of a dimension whose size stays. Its decompositions use it.
_RESIZING = frozenset({
    "aten.upsample_nearest2d.vec", "aten.upsample_linear1d.vec", "aten.upsample_bilinear2d.vec",
    "aten.upsample_trilinear3d.vec", "aten._upsample_bilinear2d_aa.vec", "aten._upsample_bicubic2d_aa.vec",
})  # fmt: skip


def _settle_factors(graph: Graph) -> None:
    """Set the factor of resizing to 1 along each dimension whose size stays."""
    for node in graph.nodes:
        if node.op == "call_function" and op_name(node) in _RESIZING and (factors := arguments(node)["scale_factors"]):
            old, new = tensor(node.all_input_nodes[0]).shape[2:], tensor(node).shape[2:]
            settled = [1.0 if str(a) == str(b) else f for a, b, f in zip(old, new, factors, strict=True)]
            node.args, node.kwargs = tuple({**arguments(node), "scale_factors": settled}.values()), {}


def _with_writes(program: EdgeProgram, written: Mapping[Node, Node]) -> EdgeProgram:
    """Add the new values of buffers and inputs, which functionalisation found, to the program's results."""
    if not written:
        return program
    if program.mutated or program.written:
        raise NotSimple("tensors are written both in place and through results")
    buffers = [p for p in written if p.name in program.constants]
    inputs = [p for p in written if p.name not in program.constants]
    output = program.graph.output_node()
    results: Any = output.args[0]
    output.args = ((*results, *(written[p] for p in (*buffers, *inputs))),)
    states = {p.name: program.constant_names[p.name] for p in buffers}
    return replace(program, states=states, mutated=tuple(states.values()), written=tuple(p.name for p in inputs))


def _slow_path(ep: ExportedProgram, decomposer: Decomposer, name: str) -> EdgeProgram:
    """Convert the program by torch's own functionalisation and decomposition; its ranges have other symbols."""
    sizes = _sizes(ep)
    updating = {op_name(n) for part in graph_modules(ep.graph_module) for n in part.graph.nodes if hidden_writes(n)}
    try:
        with first_auto_functionalized():
            core = run_decompositions(with_buffers(ep), core_decompositions(decomposer.preserve_ops - updating))
    except Exception as error:
        raise ExportError(
            f"torch cannot decompose the program: {first_line(error)}",
            where=name,
            remedy="check that ep.run_decompositions() works, and that the model is exported in eval mode",
        ) from error
    _refuse_fixed_sizes(sizes, _sizes(core))
    program = _read(core, core.graph_module, name)
    module = program.graph_module
    lower_flex_attention(module, decomposer)
    index_by_tensors(module)
    for each in graph_modules(module):
        trim_metadata(each.graph)
    return program
