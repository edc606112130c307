"""to_edge: from an ExportedProgram to an EdgeProgram."""

from __future__ import annotations

import builtins
import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Graph, GraphModule, Node
from torch.nn import Module

from delegate.edge.build import storage_address
from delegate.edge.decompose import Decomposer, compound_nodes, compound_operators, core_decompositions
from delegate.edge.effects import refuse_effects, remove_tokens, run_decompositions
from delegate.edge.functional import NotSimple, functionalize, hidden_writes, inline_modes
from delegate.edge.graphs import drop_unused, graph_modules, remove_checks, trim_metadata
from delegate.edge.higher_order import index_by_tensors, lower_associative_scans, lower_flex_attention
from delegate.edge.node import META_CONSTANT, arguments, describe, op_name, tensor, tensors
from delegate.edge.open_sizes import kept_dimensions, open_sizes
from delegate.edge.program import EdgeProgram
from delegate.edge.signature import Signature, read_signature, warn_of_merged_inputs
from delegate.edge.strides import with_row_major_strides
from delegate.edge.subclasses import with_plain_tensors
from delegate.edge.torch_private import FakeTensor, first_auto_functionalized, guards_code, rename_uniquely
from delegate.edge.training import warn_of_training
from delegate.edge.verifier import verify
from delegate.edge.writes import refuse_written_parameters, with_buffers, writers
from delegate.errors import ExportError, LoweringError
from delegate.plugins import first_line

logger = logging.getLogger(__name__)


class _Converted(NamedTuple):
    """A program in edge dialect, with the model's assertions; see `EdgeProgram` for its size ranges and notes."""

    module: GraphModule
    signature: Signature
    asserted: list[torch.SymBool]
    ranges: Mapping[Any, Any]
    notes: tuple[str, ...]


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
    guards = guards_code(ep)  # torch would write others for the programs below
    ep = with_row_major_strides(with_plain_tensors(ep))
    written = writers(ep)
    refuse_written_parameters(ep, written)
    try:
        module, signature, asserted, ranges, notes = _fast_path(ep, decomposer)
    except (NotSimple, LoweringError) as why:
        logger.info("%s is decomposed by torch's run_decompositions: %s", name, why)
        module, signature, asserted, ranges, notes = _slow_path(ep, decomposer, name)
    names = [spec.arg.name for spec in ep.graph_signature.input_specs if spec.kind is not InputKind.TOKEN]
    signature = _with_lasting_names(module, signature, names)
    preserved = compound_operators(module) & decomposer.preserve_ops
    drop_unused(module.graph)
    _refuse_absent_data(signature)
    _refuse_shared_states(signature, module.graph, written)
    in_spec, out_spec = ep.call_spec  # which torch makes a class for at each access
    program = EdgeProgram(
        name=name,
        graph_module=module,
        inputs=signature.inputs,
        constants=signature.constants,
        constant_names=signature.constant_names,
        states=signature.states,
        mutated=signature.mutated,
        in_spec=in_spec,
        out_spec=out_spec,
        range_constraints=ranges,
        written=signature.written,
        guards=(*guards, *asserted, *kept_dimensions(module.graph)),
        preserved=preserved,
        notes=notes,
    )
    for placeholder in module.graph.find_nodes(op="placeholder"):
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


def _refuse_absent_data(signature: Signature) -> None:
    """Raise ExportError for weights without data: the model was made on the meta device, or with fake tensors."""
    for placeholder, value in signature.constants.items():
        if value.is_meta or isinstance(value, FakeTensor):
            kind = "a fake tensor" if isinstance(value, FakeTensor) else "on the meta device"
            name = signature.constant_names.get(placeholder, placeholder)
            raise ExportError(f"{name} is {kind} and has no data", remedy="load the weights before the export")


def _refuse_shared_states(signature: Signature, graph: Graph, written: Mapping[str, Node]) -> None:
    """Raise ExportError if a state shares memory with another constant, which a write would change, too.

    A buffer with two names in the module is another case, because torch uses one name everywhere.
    """
    used = {n.name for n in graph.find_nodes(op="placeholder") if n.users} | signature.states.keys()
    owners: dict[int, list[str]] = {}
    for placeholder, value in signature.constants.items():
        if placeholder in used and (address := storage_address(value)):
            owners.setdefault(address, []).append(placeholder)
    for sharing in owners.values():
        state = next((p for p in sharing if p in signature.states), None)
        if state is not None and len(sharing) > 1:
            names = ", ".join(signature.constant_names[p] for p in sharing)
            writer = written.get(signature.states[state])
            raise ExportError(
                f"the buffer {signature.states[state]} is written to, but shares its memory with others",
                where=names if writer is None else f"{names}; {describe(writer)}",
                remedy="register only one of them and create the views in forward, or clone them",
            )


def _fast_path(ep: ExportedProgram, decomposer: Decomposer) -> _Converted:
    """Rewrite the program node by node, which is several times faster than tracing it again."""
    signature = read_signature(ep)
    refuse_effects(ep)
    graph = inline_modes(ep.graph_module)
    remove_tokens(graph, ep.graph_signature)
    ranges, notes = open_sizes(graph, ep.range_constraints)
    module = GraphModule(Module(), graph)
    asserted = remove_checks(module)
    signature = _with_writes(ep, signature, functionalize(module.graph), module)
    _settle_factors(module.graph)
    decomposer.expand(compound_nodes(module.graph, decomposer))
    return _Converted(module, signature, asserted, ranges, notes)


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


def _with_lasting_names(module: GraphModule, signature: Signature, names: Sequence[str]) -> Signature:
    """Return the signature with names of inputs that a copy of the graph preserves.

    torch.fx renames nodes with names of Python's own functions, e.g. the argument "input" of nn.Sequential.

    Args:
        module: its graph's placeholders get the new names.
        signature: signature of the program that the graph was made from.
        names: names of that program's placeholders, in order.
    """
    lasting: dict[str, str] = {}
    for name, node in zip(names, module.graph.find_nodes(op="placeholder"), strict=True):
        if hasattr(builtins, node.name):
            rename_uniquely(node)
        lasting[name] = node.name
    inputs = tuple(replace(i, node=lasting[i.node]) for i in signature.inputs)
    return replace(signature, inputs=inputs, written=tuple(lasting[name] for name in signature.written))


def _with_writes(
    ep: ExportedProgram, signature: Signature, written: Mapping[Node, Node], module: GraphModule
) -> Signature:
    """Add the new values of buffers and inputs, which functionalisation found, to the signature and the results."""
    kinds = {spec.arg.name: spec.kind for spec in ep.graph_signature.input_specs}
    buffers = [p for p in written if kinds[p.name] in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR)]
    inputs = [p for p in written if kinds[p.name] is InputKind.USER_INPUT]
    if len(buffers) + len(inputs) != len(written):
        raise NotSimple("a parameter is written to")
    if written and (signature.mutated or signature.written):
        raise NotSimple("tensors are written both in place and through results")
    output = module.graph.output_node()
    results = output.args[0]
    assert isinstance(results, tuple | list)
    output.args = ((*(results[p] for p in signature.outputs), *(written[p] for p in (*buffers, *inputs))),)
    return signature.mutating([p.name for p in buffers], [p.name for p in inputs])


def _slow_path(ep: ExportedProgram, decomposer: Decomposer, name: str) -> _Converted:
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
    signature = read_signature(core)
    module = core.graph_module
    remove_tokens(module.graph, core.graph_signature)
    results = module.graph.output_node().args[0]
    assert isinstance(results, tuple | list)
    module.graph.output_node().args = (tuple(results[p] for p in signature.outputs),)
    ranges, notes = open_sizes(module.graph, core.range_constraints)
    asserted = remove_checks(module)
    lower_associative_scans(module)
    lower_flex_attention(module, decomposer)
    index_by_tensors(module)
    for each in graph_modules(module):
        trim_metadata(each.graph)
    return _Converted(module, signature, asserted, ranges, notes)
