"""Division of the CPU threads among delegates that may run in parallel. Imported only if there are such delegates."""

from __future__ import annotations

from collections.abc import Iterator

from delegate.errors import BackendError
from delegate.program.blocks import walk
from delegate.program.model import DelegateCall, Program, Structure, StructuredCall
from delegate.program.task import cores
from delegate.registry import Registry

THREADS = "threads"  # of `BackendRuntime.load_options`: the number of threads of a call; absent or 0 means all


def split_threads(program: Program, registry: Registry) -> Program:
    """Return the program with a number of threads for each delegate that may run in parallel with others.

    Branches that run in parallel get equal shares of the cores, if they have a delegate with a thread option. A number
    set at lowering or at load stays.
    """
    configurable = {n for n, spec in enumerate(program.delegates) if _has_thread_option(spec.backend, registry)}
    shares: dict[int, int] = {}
    for branches in _branches(program):
        sharing = [configurable & branch for branch in branches if configurable & branch]
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
    """Yield the delegates of each branch, for all branches that may run in parallel."""
    for method in program.methods:
        for call in walk(method.instructions):
            if isinstance(call, StructuredCall) and call.kind is Structure.PARALLEL:
                inner = (walk(block.instructions) for block in call.blocks)
                yield [{c.delegate for c in calls if isinstance(c, DelegateCall)} for calls in inner]


def _has_thread_option(backend: str, registry: Registry) -> bool:
    try:
        return THREADS in registry.runtime(backend).load_options
    except BackendError:  # reported when its delegate is created
        return False
