"""The delegates of a loaded program, one per partition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from delegate.program.model import DelegateSpec, Program
from delegate.registry import Registry
from delegate.runtime.backend import BackendRuntime, Delegate
from delegate.runtime.steps import failed

if TYPE_CHECKING:
    from delegate.runtime.fallback import Fallbacks


def make_delegates(
    program: Program, registry: Registry, fallbacks: Fallbacks | None, runtimes: dict[str, BackendRuntime]
) -> tuple[Delegate, ...]:
    """Make the delegate of every partition; if one fails, those made before are closed.

    Args:
        program: verified.
        registry: where backends are looked up.
        fallbacks: what partitions that have a fallback run on where their delegates fail; None: a failure is an error.
        runtimes: takes the runtime half of every backend that has made a delegate.

    Raises:
        BackendError: a backend cannot be used here, or does not take its blob.
        KernelError: neither can the fallback be used.
    """
    made: list[Delegate] = []
    try:
        for spec in program.delegates:
            if fallbacks is not None and spec.fallback >= 0:
                made.append(_guarded(program, spec, registry, runtimes, fallbacks))
            else:
                made.append(_unguarded(program, spec, registry, runtimes))
    except BaseException:
        close_delegates(made)
        raise
    return tuple(made)


def close_delegates(delegates: Iterable[Delegate]) -> None:
    """Free what the vendor libraries hold."""
    for delegate in delegates:
        delegate.close()


def _unguarded(
    program: Program, spec: DelegateSpec, registry: Registry, runtimes: dict[str, BackendRuntime]
) -> Delegate:
    try:
        return _init(program, spec, registry, runtimes)
    except Exception as error:  # a plugin may raise anything
        raise failed(spec, error) from error


def _guarded(
    program: Program, spec: DelegateSpec, registry: Registry, runtimes: dict[str, BackendRuntime], fallbacks: Fallbacks
) -> Delegate:
    try:
        delegate = _init(program, spec, registry, runtimes)
    except (Exception, SystemExit) as error:
        return fallbacks.instead(spec, error)
    return fallbacks.guard(spec, delegate)


def _init(program: Program, spec: DelegateSpec, registry: Registry, runtimes: dict[str, BackendRuntime]) -> Delegate:
    runtime = runtimes.get(spec.backend) or registry.runtime(spec.backend)()
    made = runtime.init(memoryview(program.segments[spec.segment]), spec.compile_specs)
    runtimes[spec.backend] = runtime
    return made
