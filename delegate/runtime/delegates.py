"""The delegates of a loaded program, one per partition."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from delegate.errors import BackendFailed, DelegateError
from delegate.plugins import AUTHOR, one_line
from delegate.program.model import DelegateSpec, Program
from delegate.registry import Registry
from delegate.runtime.backend import BackendRuntime, Delegate
from delegate.runtime.steps import failed

if TYPE_CHECKING:
    from delegate.runtime.fallback import Fallbacks


def make_delegates(
    program: Program,
    registry: Registry,
    fallbacks: Fallbacks | None,
    runtimes: dict[str, BackendRuntime],
    trust_code: bool,
) -> tuple[Delegate, ...]:
    """Make the delegate of every partition; if one fails, those made before are closed.

    Args:
        program: verified.
        registry: where backends are looked up.
        fallbacks: what partitions that have a fallback run on where their delegates fail; None: a failure is an error.
        runtimes: takes the runtime half of every backend that has made a delegate.
        trust_code: open blobs of machine code too.

    Raises:
        BackendError: a backend cannot be used here, or does not take its blob.
        KernelError: neither can the fallback be used.
    """
    init = _Init(program, registry, runtimes, trust_code)
    made: list[Delegate] = []
    try:
        for spec in program.delegates:
            if fallbacks is not None and spec.fallback >= 0:
                made.append(_guarded(init, spec, fallbacks))
            else:
                made.append(_unguarded(init, spec))
    except BaseException:
        with suppress(BackendFailed):  # what stopped the load is the one to tell
            close_delegates(program, made)
        raise
    return tuple(made)


def close_delegates(program: Program, delegates: Iterable[Delegate]) -> None:
    """Free what the vendor libraries hold, of every delegate.

    Args:
        program: whose delegates, from the first one on, they are.

    Raises:
        BackendFailed: one could not be closed; all others are.
    """
    failure: DelegateError | None = None
    for spec, delegate in zip(program.delegates, delegates, strict=False):
        try:
            delegate.close()
        except (Exception, SystemExit) as error:  # a plugin may raise anything
            if failure is None:
                what = f"it could not be closed: {one_line(error)}"
                failure = BackendFailed(what, remedy=AUTHOR).at(f"partition {spec.name} of {spec.backend}")
                failure.__cause__ = error
    if failure is not None:
        raise failure


def _unguarded(init: _Init, spec: DelegateSpec) -> Delegate:
    try:
        return init(spec)
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise failed(spec, error) from error


def _guarded(init: _Init, spec: DelegateSpec, fallbacks: Fallbacks) -> Delegate:
    try:
        delegate = init(spec)
    except (Exception, SystemExit) as error:
        return fallbacks.instead(spec, error)
    return fallbacks.guard(spec, delegate)


class _Init(NamedTuple):
    """Has a backend's runtime half make a delegate."""

    program: Program
    registry: Registry
    runtimes: dict[str, BackendRuntime]
    trust_code: bool

    def __call__(self, spec: DelegateSpec) -> Delegate:
        runtime = self.runtimes.get(spec.backend) or self.registry.runtime(spec.backend)()
        if not self.trust_code and runtime.runs_code(spec.compile_specs):
            raise BackendFailed(
                "its blob is machine code, which this process would run",
                remedy="load it with trust_code=True (--trust-code) if you would run a library from where it comes",
            )
        made = runtime.init(memoryview(self.program.segments[spec.segment]), spec.compile_specs)
        if not isinstance(made, Delegate):
            what = f"its init() gave a {type(made).__name__}, not a Delegate"
            raise BackendFailed(what, remedy=AUTHOR)
        self.runtimes[spec.backend] = runtime
        return made
