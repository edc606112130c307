"""LoadedProgram: a program with its delegates, and its contexts."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args
from weakref import WeakSet

import numpy as np

from delegate.errors import BackendFailed, ConfigError, DelegateError, did_you_mean
from delegate.events import emit, is_heard
from delegate.kernels.selection import kernels_of
from delegate.plugins import in_known_spelling
from delegate.program import file
from delegate.program.model import Constant, Program, State
from delegate.program.raw import array_over
from delegate.registry import Registry, default_registry
from delegate.report import Report
from delegate.runtime.arrays import Resources
from delegate.runtime.backend import Array, BackendRuntime, Delegate
from delegate.runtime.context import Context, zeros
from delegate.runtime.delegates import InProcess, announce, close_delegates, lock_of, make_delegates
from delegate.runtime.lifecycle import FORKED, CallLock, closing_error, fork_error
from delegate.runtime.option_rules import Rule, accepts, describe, rules_of_json
from delegate.runtime.platform import DEFAULT, Platform

if TYPE_CHECKING:
    from delegate.kernels.libraries import KernelRequest
    from delegate.program.memory_picture import MemoryPicture
    from delegate.program.source import Source
    from delegate.runtime.devices import Space
    from delegate.runtime.fallback import FallbackEvent, Fallbacks
    from delegate.runtime.isolated import Isolated

Policy = Literal["allow", "warn", "error"]
_POLICIES = get_args(Policy)
_MAX_SECONDS = 1e6  # of `isolate`: system calls take no more
LoadOptions = Mapping[str, Mapping[str, Any]]  # backend -> option -> value
# An option that does not exist at lowering has only the type of the runtime part.
_BY_TYPE: Mapping[type, Rule] = {
    int: [{"type": "integer", "minimum": 0}],
    bool: [{"type": "boolean"}],
    str: [{"type": "string"}],
    float: [{"type": "number"}],
}


def load(
    source: Source,
    *,
    kernels: KernelRequest | None = None,
    fallback: Policy | None = None,
    platform: Platform = DEFAULT,
    trust_code: bool = False,
    isolate: bool | float = False,
    copy: bool = False,
    options: LoadOptions | None = None,
) -> LoadedProgram:
    """Load a program file: check it completely, create its delegates, bind its methods.

    Example::

        program = delegate.load("model.dlg")
        result = program(np.zeros((1, 8), np.float32))  # a NumPy array

    Args:
        source: a path, which is mapped; its bytes; a binary file object, read from where it stands; a `zipfile.Path` or
            a file of `importlib.resources`.
        kernels: kernel libraries in order of preference, each a name ("aten": torch's own kernels) or a `KernelTable`
            of the caller's own; "portable" comes last if it is not named. None: the libraries of installed plugins,
            then "portable".
        fallback: see `LoadedProgram`.
        platform: where memory, time and messages come from and go to.
        trust_code: open partitions that are machine code too, as TVM and QNN make them: it runs in this process,
            so give True only for a file that comes from where you would take a library.
        isolate: run the delegates in a process of their own, for an untrusted file: vendor libraries parse its blobs.
            If one of them crashes, a BackendFailed is raised, or the partition falls back. A number: seconds after
            which a delegate without an answer has failed. See docs/how-to/security.md.
        copy: read the file into memory of this process in place of mapping it: for one that somebody else may cut or
            overwrite while it is in use. Replacing a file, as `save` does, is safe without it.
        options: options of backends to change at load, by name of the backend; only those that need no other blob,
            e.g. {"xnnpack": {"threads": 4}}.

    Raises:
        ProgramError: the file is damaged, foreign, or of another version.
        ConfigError: an option is none that can be given here.
        KernelError: a kernel library cannot be used, or none has a kernel that the program needs.
        BackendNotFound, BackendUnavailable, BackendFailed: a partition's backend cannot run here, and the partition has
            no usable fallback.
    """
    start = platform.clock()
    try:
        registry = default_registry()
        loaded = LoadedProgram(
            with_load_options(file.load(source, copy=copy), options or {}, registry),
            registry,
            kernels,
            fallback=fallback,
            platform=platform,
            trust_code=trust_code,
            isolate=isolate,
        )
    except DelegateError as error:
        platform.abort(error)
        raise
    duration = platform.clock() - start
    platform.log("debug", f"loaded {', '.join(loaded.methods)} in {duration / 1e6:.3g} ms")
    if is_heard():
        from delegate.events.kinds import ProgramLoaded

        segments = sum(map(len, loaded.program.segments))
        arenas = sum(size for method in loaded.program.methods for size in method.arenas if size > 0)
        emit(ProgramLoaded(loaded.methods, segments, arenas, start, duration))
    return loaded


def with_load_options(program: Program, options: LoadOptions, registry: Registry) -> Program:
    """Return the program with changed compile specs, for options that the backend's runtime part allows.

    Raises:
        ConfigError: the program has no partition of a backend. Or an option is unknown, was fixed at lowering, or has a
            value that lowering would reject, too.
        ProgramError: the rules for values cannot be read.
        BackendError: the backend cannot be used here.
    """
    if not options:
        return program
    rules = rules_of_json(program.load_rules)
    used = {spec.backend for spec in program.delegates}
    _require_mapping(options, "options", "of backend to options, e.g. {'xnnpack': {'threads': 4}}")
    options = {in_known_spelling(backend, used): requested for backend, requested in options.items()}
    for backend, requested in options.items():
        _require_mapping(requested, f"options of {backend}", "of name to value, e.g. {'threads': 4}")
        if backend not in used:
            what = f"options are set for backend {backend!r}, but the program has no partition of it"
            raise ConfigError(what, remedy=did_you_mean(backend, used) if used else "remove the options")
        known = {name: _BY_TYPE[kind] for name, kind in registry.runtime(backend).load_options.items()}
        known |= {name: rule for name, rule in rules.get(backend, {}).items() if name in known}
        fixed = {key for spec in program.delegates if spec.backend == backend for key in spec.compile_specs}
        for key, value in requested.items():
            _check_option(backend, key, value, known, fixed)
    changed = (s._replace(compile_specs={**s.compile_specs, **options.get(s.backend, {})}) for s in program.delegates)
    return program._replace(delegates=tuple(changed))


def _require_mapping(value: Any, what: str, kind: str) -> None:
    """Raise ConfigError if a value is not a mapping with text as keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{what} should be a mapping {kind}, not {value!r}", where="load")


def _time_limit(isolate: Any) -> float | None:
    """Return the seconds of an argument `isolate`, None without a limit; raise ConfigError if it is invalid."""
    if isinstance(isolate, bool):
        return None
    if isinstance(isolate, int | float) and 0 < isolate <= _MAX_SECONDS:
        return float(isolate)
    allowed = f"True, False, or a positive number of seconds up to {_MAX_SECONDS:g}"
    raise ConfigError(f"isolate should be {allowed}, not {reprlib.repr(isolate)}", where="load")


def _check_option(backend: str, key: str, value: Any, known: Mapping[str, Rule], fixed: set[str]) -> None:
    where = f"options of {backend}"
    if key in known:
        if not accepts(known[key], value):
            raise ConfigError(f"{key} should be {describe(known[key])}, not {value!r}", where=where)
        return
    if key in fixed:
        raise ConfigError(f"{key} is fixed: the blob was compiled with it", where=where, remedy="lower the model again")
    remedy = did_you_mean(key, known) if known else "the backend has no load options"
    raise ConfigError(f"there is no load option {key!r}", where=where, remedy=remedy)


class LoadedProgram(Context):
    """A program that can be called and requires no torch.

    Example::

        with delegate.load("model.dlg") as program:
            print(program.methods, program.report)
            with program.profile() as profile:
                result = program(np.zeros((1, 8), np.float32))
            print(profile.table())

    It is its own default context, and `context` returns more contexts, each with its own states.

    Args:
        program: verified, from `delegate.program.file.load` or `delegate.emit`.
        registry: where backends and kernels are looked up; the installed plugins if None.
        kernels: see `load`.
        fallback: what happens when a delegate cannot be made, or fails at a call, and its partition was kept in
            kernels. "allow": the partition runs on those from then on; "warn": so it does, with one RuntimeWarning;
            "error": the failure is raised. None: what was chosen when the program was lowered.
        platform: where memory, time and messages come from and go to.
        trust_code, isolate: see `load`.
    """

    def __init__(
        self,
        program: Program,
        registry: Registry | None = None,
        kernels: KernelRequest | None = None,
        *,
        fallback: Policy | None = None,
        platform: Platform = DEFAULT,
        trust_code: bool = False,
        isolate: bool | float = False,
    ) -> None:
        self.program = program
        self._registry = registry or default_registry()
        self._trust_code, self._isolate, self._limit = trust_code, bool(isolate), _time_limit(isolate)
        self._shared = Resources(
            program=program,
            constants=tuple(_array(program, c) for c in program.constants),
            delegates=(),
            delegate_locks=(),
            kernels=kernels_of(self._registry, kernels),
            platform=platform,
            states=_initial_states(program),
            lazy_constants={},
            lock=CallLock("the program"),
            portable_shares={},
        )
        self._fallbacks = _fallbacks(self._shared, program.on_fallback if fallback is None else fallback)
        self._contexts: WeakSet[Context] = WeakSet()
        self._make_delegates()
        try:
            super().__init__(self._shared)
        except BaseException:  # kernels of a plugin may raise anything, too
            with suppress(BackendFailed):
                self._close_delegates()
            raise

    def __repr__(self) -> str:
        if not self._methods:
            return super().__repr__()
        backends = ", ".join(sorted({spec.backend for spec in self.program.delegates}))
        count = len(self.program.delegates)
        partitions = f"{count} partition{'s' * (count != 1)} on {backends}" if count else "no partitions"
        return f"<LoadedProgram of {', '.join(self._methods)}: {partitions}>"

    def context(self) -> Context:
        """Return a new context: the same methods, with initial states that no other context shares.

        Raises:
            ProgramError: the program is closed.
        """
        if not self._methods:
            raise closing_error()
        if self._lock is FORKED:
            raise fork_error()
        context = Context(self._shared)
        self._contexts.add(context)
        return context

    def _make_delegates(self) -> None:
        program = self.program
        if self._isolate:
            from delegate.runtime.isolated import Isolated  # not needed by most programs

            self._init: InProcess | Isolated = Isolated(program, self._registry, self._trust_code, self._limit)
        else:
            self._init = InProcess(program, self._registry, self._trust_code)
        delegates: tuple[Delegate, ...] = ()
        try:
            init = announce(self._init, program, self._shared.platform.clock) if is_heard() else self._init
            delegates = make_delegates(program, init, self._fallbacks)
            delegate_locks = tuple(map(lock_of, program.delegates, delegates))
            spaces = _spaces(program, self._init.runtimes, self._fallbacks)
        except BaseException:  # plugins may raise anything
            with suppress(BackendFailed):
                close_delegates(program.delegates, delegates)
            self._init.close()
            raise
        self._shared = self._shared._replace(delegates=delegates, delegate_locks=delegate_locks, spaces=spaces)

    def _close_delegates(self) -> None:
        delegates, self._shared = self._shared.delegates, self._shared._replace(delegates=(), delegate_locks=())
        try:
            close_delegates(self.program.delegates, delegates)
        finally:
            self._init.close()

    @property
    def fallback_events(self) -> tuple[FallbackEvent, ...]:
        """The partitions that run on their fallbacks, in the order in which their delegates failed."""
        return tuple(self._fallbacks.events) if self._fallbacks is not None else ()

    @property
    def report(self) -> Report:
        """The planned partition of the program, with the reasons; its notes end with the `fallback_events`.

        Profiled methods have the measured share of their portable kernels instead of the estimated one.
        """
        return self.add_observations(self._planned)

    def add_observations(self, planned: Report) -> Report:
        """Return a report with observations of this process: measured shares of profiles, and the `fallback_events`."""
        notes = (*planned.notes, *map(str, self.fallback_events))
        shares = dict(self._shared.portable_shares)
        return replace(planned, notes=notes, portable_shares=shares, memory=self._memory)

    @cached_property
    def _memory(self) -> tuple[MemoryPicture, ...]:
        from delegate.program.memory_picture import memory_pictures  # only reports need it

        return memory_pictures(self.program)

    @cached_property
    def _planned(self) -> Report:
        return Report.from_json(self.program.report)

    def _repr_html_(self) -> str:
        """Return the page of the report in a frame, for notebooks."""
        return self.report._repr_html_()

    def close(self) -> None:
        """Free the vendor libraries' resources. Neither the program nor its contexts can be called afterwards.

        Raises:
            BackendFailed: a delegate could not be closed, while all others are closed.
            ExecutionError: a call of this thread is using the program, which stays open.
        """
        if self._lock is FORKED:
            return
        contexts = list(self._contexts)
        for context in (self, *contexts):
            context.refuse_reentry()
        for lock in filter(None, self._shared.delegate_locks):
            lock.refuse_reentry()
        for context in contexts:
            context.close()
        super().close()
        self._close_delegates()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(BackendFailed) if error else nullcontext():  # report the error that ends the block
            self.close()


def _fallbacks(shared: Resources, policy: str) -> Fallbacks | None:
    """Return the fallbacks of a program that has some and may use them."""
    if policy not in _POLICIES:
        raise ConfigError(f"{policy!r} is not a policy for fallbacks", remedy=did_you_mean(policy, _POLICIES))
    if policy == "error" or not shared.program.fallbacks:
        return None
    from delegate.runtime.fallback import Fallbacks

    return Fallbacks(shared, warn=policy == "warn")


def _spaces(program: Program, runtimes: Mapping[str, BackendRuntime], fallbacks: Fallbacks | None) -> tuple[Space, ...]:
    """Return the device memory spaces of a program; `runtimes` are those that have created a delegate."""
    if not program.spaces:
        return ()
    from delegate.runtime.devices import Space  # most programs have none

    return tuple(Space(n, s, runtimes.get(s.backend), fallbacks) for n, s in enumerate(program.spaces, 1))


def _initial_states(program: Program) -> tuple[Array, ...]:
    """Return the initial value of each state. Each segment is read once; the caches of all layers share one."""
    arrays = [(state.segment, _array(program, state)) for state in program.states]
    is_empty = {segment: not array.reshape(-1).view(np.uint8).any() for segment, array in dict(arrays).items()}
    return tuple(zeros(array.dtype, array.shape) if is_empty[segment] else array for segment, array in arrays)


def _array(program: Program, tensor: Constant | State) -> Array:
    """Return a read-only array over the bytes of a constant or of an initial state."""
    array = array_over(program.segments[tensor.segment], tensor.dtype.numpy, tensor.shape)
    array.flags.writeable = False
    return array
