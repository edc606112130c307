"""Lowered methods -> one Program, its memory planned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence

from delegate.emit.fallback import emit_fallback
from delegate.emit.method import emit_method
from delegate.emit.parallel import run_together
from delegate.emit.shared import SharedTables
from delegate.emit.spaces import keep_on_devices
from delegate.partitioner.cut import LoweredProgram
from delegate.program.model import Method, Program
from delegate.program.stages import depends_on_data
from delegate.program.verifier import verify
from delegate.runtime.bounds import planned_at_bounds
from delegate.runtime.kernels import Kernels
from delegate.runtime.storage import assign_storage


def emit(
    methods: Sequence[LoweredProgram],
    kernels: Kernels,
    *,
    keep_fallbacks: bool = False,
    on_fallback: str = "warn",
    tell: Callable[[str], None] = warnings.warn,
) -> Program:
    """The program of these methods, without a report.

    Memory is planned here: for the largest sizes where they are symbolic and have bounds. Where they have none, or
    depend on data, the runtime plans it.

    Args:
        methods: lowered.
        kernels: that run what no backend took.
        keep_fallbacks: emit every partition in kernels too.
        on_fallback: what happens when a fallback is used: "allow", "warn" or "error".
        tell: is given a sentence on each thing that the exports assumed and the program does not check.

    Raises:
        LoweringError: see `emit_method` and `emit_fallback`.
        PartitionError: see `run_together`.
    """
    shared = SharedTables()
    made = [keep_on_devices(emit_method(lowered, shared, kernels), shared) for lowered in methods]
    fallbacks = _fallbacks(methods, shared, kernels) if keep_fallbacks else []
    program = Program(
        methods=tuple(made),
        operators=tuple(shared.operators),
        constants=tuple(shared.constants),
        states=tuple(shared.states),
        delegates=tuple(d._replace(fallback=i if keep_fallbacks else -1) for i, d in enumerate(shared.delegates)),
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


def _fallbacks(methods: Iterable[LoweredProgram], shared: SharedTables, kernels: Kernels) -> list[Method]:
    """A method in kernels for every delegate, in their order."""
    regions = {name: (d.region, m.program.range_constraints) for m in methods for name, d in m.delegates.items()}
    return [emit_fallback(*regions[spec.name], shared, kernels) for spec in shared.delegates]


def _planned(program: Program, method: Method, kernels: Kernels) -> Method:
    if depends_on_data(method):
        return method
    if method.symbols:
        return planned_at_bounds(program, method, kernels)
    plan = assign_storage(program, method, kernels, {})
    values = tuple(v._replace(storage=s) for v, s in zip(method.values, plan.storages, strict=True))
    return method._replace(values=values, arenas=plan.arenas)
