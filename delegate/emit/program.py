"""Lowered methods -> one Program, its memory planned, with fallbacks of its partitions.

A fallback is the region of a partition as a hidden method on kernels, for machines that cannot run its delegate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch.fx import Graph, GraphModule, Node

from delegate.backend.aot import Region
from delegate.common.user_warnings import warn_user
from delegate.edge.decompose import compound_nodes, decompose
from delegate.edge.graphs import drop_unused, extract_graph
from delegate.edge.node import dtype_of, new_symbols, op_name, tensors
from delegate.edge.program import EdgeInput, EdgeProgram
from delegate.edge.torch_private import pytree
from delegate.emit.device_memory import assign_device_memory
from delegate.emit.method import emit_method
from delegate.emit.tables import SharedTables
from delegate.errors import LoweringError
from delegate.kernels.selection import Kernels
from delegate.memory.storage import assign_storage, plan_at_bounds
from delegate.partitioner.extraction import LoweredProgram
from delegate.program.model import MethodDefinition, Program
from delegate.program.stages import depends_on_data
from delegate.program.verifier import verify

NO_FALLBACKS: Mapping[str, bool] = MappingProxyType({})


def emit(
    methods: Sequence[LoweredProgram],
    kernels: Kernels,
    *,
    keep: Mapping[str, bool] = NO_FALLBACKS,
    on_fallback: str = "warn",
    warn: Callable[[str], None] = warn_user,
) -> Program:
    """Return the program of these methods, without a report.

    Memory is planned for the largest sizes if symbolic sizes have bounds. If they have none, or depend on data, the
    runtime plans the memory.

    Args:
        methods: lowered.
        kernels: that run the nodes outside of partitions.
        keep: backends whose partitions get fallbacks, where True raises an error if no kernels can run a partition;
            False skips its fallback.
        on_fallback: effect of a fallback that runs: "allow", "warn" or "error".
        warn: called with a sentence for each assumption of the exports that the program does not check.

    Raises:
        LoweringError: see `emit_method` and `emit_fallback`.
    """
    shared = SharedTables()
    emitted = [assign_device_memory(emit_method(lowered, shared, kernels), shared) for lowered in methods]
    fallbacks = _fallbacks(methods, shared, kernels, keep)
    program = Program(
        methods=tuple(emitted),
        operators=tuple(shared.operators),
        constants=tuple(shared.constants),
        states=tuple(shared.states),
        delegates=tuple(shared.delegates),
        segments=tuple(shared.segments),
        on_fallback=on_fallback,
        spaces=tuple(shared.spaces),
    )
    planned = program._replace(
        methods=tuple(_plan_memory(program, m, kernels) for m in emitted),
        fallbacks=tuple(_plan_memory(program, m, kernels) for m in fallbacks),
    )
    verify(planned)
    for sentence in shared.warnings:
        warn(sentence)
    return planned


def _fallbacks(
    methods: Iterable[LoweredProgram], shared: SharedTables, kernels: Kernels, keep: Mapping[str, bool]
) -> list[MethodDefinition]:
    """Return the fallback methods for the delegates of these backends; set them in the delegates' specs."""
    regions = {name: (d.region, m.program.range_constraints) for m in methods for name, d in m.delegates.items()}
    fallbacks: list[MethodDefinition] = []
    for number, spec in enumerate(shared.delegates):
        if spec.backend not in keep:
            continue
        mark = shared.mark()
        try:
            method = emit_fallback(*regions[spec.name], shared, kernels)
        except LoweringError:
            if keep[spec.backend]:
                raise
            shared.rollback(mark)
            continue
        shared.delegates[number] = spec._replace(fallback=len(fallbacks))
        fallbacks.append(method)
    return fallbacks


def _plan_memory(program: Program, method: MethodDefinition, kernels: Kernels) -> MethodDefinition:
    if depends_on_data(method):
        return method
    if method.symbols:
        return plan_at_bounds(program, method, kernels)
    plan = assign_storage(program, method, kernels, {})
    values = tuple(v._replace(storage=s) for v, s in zip(method.values, plan.storages, strict=True))
    return method._replace(values=values, arenas=plan.arenas)


def emit_fallback(
    region: Region, ranges: Mapping[Any, Any], shared: SharedTables, kernels: Kernels
) -> MethodDefinition:
    """Return a method with the inputs and outputs of the region's delegate, without planned memory.

    Args:
        region: not changed.
        ranges: torch's range constraints of the region's program.
        shared: What the program's methods share; the fallback shares constants with them.
        kernels: that run the fallback. Compound operators without a kernel are decomposed.

    Raises:
        LoweringError: an operator has no kernel, or a size cannot be known from the shapes of the region's inputs.
    """
    program = _program(region, ranges)
    try:
        while leftover := compounds_without_kernel(program.graph, kernels):
            program = decompose(program, leftover)
            drop_unused(program.graph)
        return emit_method(LoweredProgram(program, {}), shared, kernels)
    except LoweringError as error:
        where = ", ".join(part for part in (f"fallback of partition {region.name}", error.where) if part)
        remedy = "; ".join(part for part in (error.remedy, "or set fallback.keep to false") if part)
        raise LoweringError(error.what, where=where, remedy=remedy) from error


def _program(region: Region, ranges: Mapping[Any, Any]) -> EdgeProgram:
    """Return a copy of the region as a program; constants come first, as in every program."""
    graph, _ = extract_graph((*region.constants, *region.inputs), region.calls, region.outputs)
    return EdgeProgram(
        name=region.name,
        graph_module=GraphModule({}, graph),
        inputs=tuple(EdgeInput(n.name, n.name) for n in region.inputs),
        constants={n.name: tensor for n, tensor in region.constants.items()},
        constant_names={},
        states={},
        mutated=(),
        in_spec=pytree.tree_structure(((0,) * len(region.inputs), {})),
        out_spec=pytree.tree_structure((0,) * len(region.outputs)),
        range_constraints=ranges,
    )


def has_kernel(node: Node, kernels: Kernels) -> bool:
    """Return if a kernel without torch runs the node's operator on its dtypes."""
    dtypes = {d for n in (node, *node.all_input_nodes) for t in tensors(n) if (d := dtype_of(t.dtype))}
    kernel = kernels.torch_free.find(op_name(node), dtypes, allocates=bool(new_symbols(node)))
    # A view is made before a call, and so of one tensor alone: `expand_as` becomes `expand`.
    return kernel is not None and not (kernel.is_view and len([n for n in node.all_input_nodes if tensors(n)]) > 1)


def compounds_without_kernel(graph: Graph, kernels: Kernels) -> list[Node]:
    """Return the nodes without a kernel that can be decomposed."""
    return [n for n in compound_nodes(graph) if not has_kernel(n, kernels)]
