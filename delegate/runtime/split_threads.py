"""Shares of the threads, for delegates that may run at the same time. Imported only where there are some."""

from __future__ import annotations

from collections.abc import Iterator

from delegate.errors import BackendError
from delegate.program.blocks import walk
from delegate.program.model import DelegateCall, Program, Structure, StructuredCall
from delegate.program.task import cores
from delegate.registry import Registry

THREADS = "threads"  # of `BackendRuntime.load_options`: how many a call may take, with nothing or 0 for all there are


def split_threads(program: Program, registry: Registry) -> Program:
    """The program, its delegates told how many threads to run with where others run at the same time.

    Of branches that run together each gets the same share of the cores, if it has a delegate that can be told. What was
    said of threads at lowering or at load stays.
    """
    told = {n for n, spec in enumerate(program.delegates) if _can_be_told(spec.backend, registry)}
    shares: dict[int, int] = {}
    for branches in _branches(program):
        sharing = [told & branch for branch in branches if told & branch]
        share = max(cores() // max(len(sharing), 1), 1)
        for number in set().union(*sharing):
            shares[number] = min(shares.get(number, share), share)
    delegates = list(program.delegates)
    for number, share in shares.items():
        specs = delegates[number].compile_specs
        if not specs.get(THREADS):
            delegates[number] = delegates[number]._replace(compile_specs={**specs, THREADS: share})
    return program._replace(delegates=tuple(delegates))


def _branches(program: Program) -> Iterator[list[set[int]]]:
    """The delegates of each branch, for all branches that run together."""
    for method in program.methods:
        for call in walk(method.instructions):
            if isinstance(call, StructuredCall) and call.kind is Structure.PARALLEL:
                inner = (walk(block.instructions) for block in call.blocks)
                yield [{c.delegate for c in calls if isinstance(c, DelegateCall)} for calls in inner]


def _can_be_told(backend: str, registry: Registry) -> bool:
    try:
        return THREADS in registry.runtime(backend).load_options
    except BackendError:  # told where its delegate is made
        return False
