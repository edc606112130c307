"""Lowered methods -> one Program, its memory planned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from delegate.emit.method import emit_method
from delegate.emit.pools import Pools
from delegate.partitioner.cut import LoweredProgram
from delegate.program.model import Method, Program
from delegate.program.verifier import verify
from delegate.runtime.kernels import Kernels
from delegate.runtime.storage import assign_storage


def emit(methods: Iterable[LoweredProgram], kernels: Kernels, report: str) -> Program:
    """The program of these methods.

    A method of static shapes has its memory planned here; the memory of one with symbolic sizes is planned by the
    runtime, per combination of shapes.

    Raises:
        LoweringError: see `emit_method`.
    """
    pools = Pools()
    made = [emit_method(lowered, pools, kernels) for lowered in methods]
    program = Program(
        methods=tuple(made),
        operators=tuple(pools.operators),
        constants=tuple(pools.constants),
        states=tuple(pools.states),
        delegates=tuple(pools.delegates),
        segments=tuple(pools.segments),
        report=report,
    )
    planned = replace(program, methods=tuple(_planned(program, m, kernels) for m in made))
    verify(planned)
    return planned


def _planned(program: Program, method: Method, kernels: Kernels) -> Method:
    if method.symbols:
        return method
    plan = assign_storage(program, method, kernels, {})
    values = tuple(replace(v, storage=s) for v, s in zip(method.values, plan.storages, strict=True))
    return replace(method, values=values, arenas=plan.arenas)
