"""Lowered methods -> one Program, its memory planned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from delegate.emit.fallback import emit_fallback
from delegate.emit.method import emit_method
from delegate.emit.parallel import run_together
from delegate.emit.shared import SharedTables
from delegate.emit.spaces import keep_on_devices
from delegate.errors import LoweringError
from delegate.partitioner.cut import LoweredProgram
from delegate.program.model import Method, Program
from delegate.program.stages import depends_on_data
from delegate.program.verifier import verify
from delegate.runtime.bounds import planned_at_bounds
from delegate.runtime.kernels import Kernels
from delegate.runtime.storage import assign_storage

NOTHING: Mapping[str, bool] = MappingProxyType({})


def emit(
    methods: Sequence[LoweredProgram],
    kernels: Kernels,
    *,
    keep: Mapping[str, bool] = NOTHING,
    on_fallback: str = "warn",
    tell: Callable[[str], None] = warnings.warn,
) -> Program:
    """The program of these methods, without a report.

    Memory is planned here: for the largest sizes where they are symbolic and have bounds. Where they have none, or
    depend on data, the runtime plans it.

    Args:
        methods: lowered.
        kernels: that run what no backend took.
        keep: backends whose partitions are emitted in kernels too; whether one that no kernels can run is an error,
            else it is left without.
        on_fallback: what happens when a fallback is used: "allow", "warn" or "error".
        tell: is given a sentence on each thing that the exports assumed and the program does not check.

    Raises:
        LoweringError: see `emit_method` and `emit_fallback`.
        PartitionError: see `run_together`.
    """
    shared = SharedTables()
    made = [keep_on_devices(emit_method(lowered, shared, kernels), shared) for lowered in methods]
    fallbacks = _fallbacks(methods, shared, kernels, keep)
    program = Program(
        methods=tuple(made),
        operators=tuple(shared.operators),
        constants=tuple(shared.constants),
        states=tuple(shared.states),
        delegates=tuple(shared.delegates),
        segments=tuple(shared.segments),
        on_fallback=on_fallback,
        spaces=tuple(shared.spaces),
    )
    made = [run_together(program, m, part.together, kernels) for m, part in zip(made, methods, strict=True)]
    planned = program._replace(
        methods=tuple(_planned(program, m, kernels) for m in made),
        fallbacks=tuple(_planned(program, m, kernels) for m in fallbacks),
    )
    verify(planned)
    for sentence in shared.told:
        tell(sentence)
    return planned


def _fallbacks(
    methods: Iterable[LoweredProgram], shared: SharedTables, kernels: Kernels, keep: Mapping[str, bool]
) -> list[Method]:
    """Methods in kernels for the delegates of these backends, which are told of them."""
    regions = {name: (d.region, m.program.range_constraints) for m in methods for name, d in m.delegates.items()}
    made: list[Method] = []
    for number, spec in enumerate(shared.delegates):
        if spec.backend not in keep:
            continue
        mark = shared.mark()
        try:
            method = emit_fallback(*regions[spec.name], shared, kernels)
        except LoweringError:
            if keep[spec.backend]:
                raise
            shared.cut_back(mark)
            continue
        shared.delegates[number] = spec._replace(fallback=len(made))
        made.append(method)
    return made


def _planned(program: Program, method: Method, kernels: Kernels) -> Method:
    if depends_on_data(method):
        return method
    if method.symbols:
        return planned_at_bounds(program, method, kernels)
    plan = assign_storage(program, method, kernels, {})
    values = tuple(v._replace(storage=s) for v, s in zip(method.values, plan.storages, strict=True))
    return method._replace(values=values, arenas=plan.arenas)
