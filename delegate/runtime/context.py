"""Context: a program's methods with states and memory of their own.

States are mutable buffers that persist between calls, with reset, snapshot and restore.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from delegate.errors import InputError, ProgramError, did_you_mean
from delegate.events import subscribe
from delegate.plugins import one_line
from delegate.program.dtypes import DType
from delegate.program.model import State
from delegate.runtime.arrays import Resources
from delegate.runtime.backend import Array
from delegate.runtime.delegates import ProfiledDelegates
from delegate.runtime.lifecycle import FORKED, PROGRAMS, CallLock, NotPicklable, Rejecting, closing_error, leak
from delegate.runtime.method import Method
from delegate.runtime.platform import Platform, translate_input_errors

if TYPE_CHECKING:
    from delegate.events import Listener, Subscription
    from delegate.runtime.profile import Profile
    from delegate.runtime.watch import ModulePaths

Index = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]
Parts = Mapping[str, Index]  # of some states, by name


class States:
    """One array per state of a program, in its order.

    Not thread-safe: the context that owns it guards it.

    Args:
        definitions: the program's states.
        start: the initial content of each; not modified.
        platform: allocates the memory.
    """

    def __init__(self, definitions: Sequence[State], start: Sequence[Array], platform: Platform) -> None:
        self._definitions, self._start = tuple(definitions), tuple(start)
        self.arrays = tuple((platform.zeros if is_zeros(a) else platform.empty)(a.shape, a.dtype) for a in start)
        for array, content in zip(self.arrays, start, strict=True):
            if not is_zeros(content):
                np.copyto(array, content)

    @property
    def dtypes(self) -> Mapping[str, DType]:
        """The element type of each state, by name."""
        return {d.name: d.dtype for d in self._definitions}

    def views(self) -> Mapping[str, Array]:
        """Return a read-only view of each state by name."""
        views = {}
        for definition, array in zip(self._definitions, self.arrays, strict=True):
            views[definition.name] = array.view()
            views[definition.name].flags.writeable = False
        return MappingProxyType(views)

    def reset(self) -> None:
        """Set every state to its initial content."""
        for array, start in zip(self.arrays, self._start, strict=True):
            np.copyto(array, start)

    def snapshot(self, parts: Parts | None = None) -> dict[str, Array]:
        """Return a copy of every state by name, or of these parts of some.

        Raises:
            InputError: a state is unknown, or has no such part.
        """
        return {name: np.array(part) for name, part in self._parts(parts).items()}

    def restore(self, snapshot: Mapping[str, Array], parts: Parts | None = None) -> None:
        """Copy a snapshot in; if it does not fit, change nothing.

        Raises:
            InputError: a state is missing or unknown, or an array has another dtype or shape.
        """
        targets = self._parts(parts)
        for name in snapshot:
            if name not in targets:
                what = "the program has no state" if parts is None else "there is no part for state"
                raise InputError(f"{what} {name!r}", remedy=did_you_mean(str(name), targets))
        if missing := [name for name in targets if name not in snapshot]:
            raise InputError(f"the snapshot lacks {', '.join(missing)}", remedy="pass every state of the program")
        sources = {name: _check_fits(name, part, snapshot[name]) for name, part in targets.items()}
        arrays = self._arrays()
        for name, source in sources.items():
            arrays[name][... if parts is None else parts[name]] = source

    def _arrays(self) -> dict[str, Array]:
        return {d.name: array for d, array in zip(self._definitions, self.arrays, strict=True)}

    def _parts(self, parts: Parts | None) -> dict[str, Array]:
        arrays = self._arrays()
        return arrays if parts is None else {n: _part(str(n), arrays, index) for n, index in parts.items()}


def zeros(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return zeros for an initial state, which take no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def is_zeros(start: Array) -> bool:
    """Return True for a result of `zeros`."""
    return start.size > 1 and not any(start.strides)


def _part(name: str, arrays: Mapping[str, Array], index: Index) -> Array:
    if name not in arrays:
        raise InputError(f"the program has no state {name!r}", remedy=did_you_mean(name, arrays))
    try:
        return np.asarray(arrays[name][index])
    except (IndexError, TypeError, ValueError) as error:
        what = f"state {name!r} of shape {list(arrays[name].shape)} has no part {index}"
        raise InputError(what, where=one_line(error), remedy="pass slices and integers, as in NumPy") from error


def _check_fits(name: str, state: Array, value: object) -> Array:
    """Return the array if it fits a state or a part of one; else raise InputError."""
    if not isinstance(value, np.ndarray):
        raise InputError(f"state {name!r} is a {type(value).__name__}", remedy="pass a NumPy array")
    if (value.dtype, value.shape) != (state.dtype, state.shape):
        raise InputError(
            f"state {name!r} is {value.dtype}{list(value.shape)}",
            where="restore",
            remedy=f"it must be {state.dtype}{list(state.shape)}",
        )
    return value


_numbers = itertools.count()  # of contexts in this process
_CONTEXT = "the context"  # in messages


class Context(NotPicklable):
    """An independent use of a program, such as one conversation: methods that share states with each other alone.

    Contexts of one program share its constants, its delegates and its plans; states and working memory are their own,
    and calls are safe from any thread. Those in one context run one after another, because they share its memory; those
    in different contexts run at the same time, but for partitions of a delegate that takes one call at a time. A call
    by which a thread would wait for itself is an ExecutionError: in a listener of the context, in a kernel, in a signal
    handler or a `__del__` that interrupts a call.

    Args:
        resources: what all contexts of the program share; its states are what the context's states start with.
    """

    def __init__(self, resources: Resources) -> None:
        program = resources.program
        lock = CallLock(_CONTEXT)
        self._lock: CallLock | Rejecting = lock
        self._platform = resources.platform
        self._states = States(program.states, resources.states, resources.platform)
        own = resources._replace(states=self._states.arrays, lock=lock)
        self._methods = {m.name: Method(own, m) for m in program.methods}
        self._default: Callable[..., Any] = self._methods.get(self.default_method, self._no_default)
        self._listeners: tuple[tuple[Subscription, bool], ...] = ()  # True: with the operators of vendor libraries
        self._profiled: ProfiledDelegates | None = None
        self._modules: ModulePaths | None = None
        self._program, self._number = program, next(_numbers)
        self._portable_shares = resources.portable_shares
        PROGRAMS.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._methods) or 'a closed program'}>"

    def leave_to_parent(self) -> None:
        """Reject all calls in this forked process, and keep the delegates of the parent as they are."""
        self._lock = FORKED
        leak(self)
        for method in self._methods.values():
            method.leave_to_parent()

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(self._methods)

    def method(self, name: str) -> Method:
        """Return a method by name; raise ProgramError for an unknown one, or if the program is closed."""
        if not self._methods:
            raise closing_error()
        if name not in self._methods:
            raise ProgramError(f"no method {name!r} in this program", remedy=did_you_mean(name, self._methods))
        return self._methods[name]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call method "forward", or the only method."""
        return self._default(*args, **kwargs)

    @property
    def default_method(self) -> str:
        """The method of a plain call: the only one, else "forward"."""
        return self.methods[0] if len(self.methods) == 1 else "forward"

    def _no_default(self, *args: Any, **kwargs: Any) -> NoReturn:
        if not self._methods:
            raise closing_error()
        names = sorted(self._methods)
        what = f"no method {self.default_method!r} in this program; known: {', '.join(names)}"
        raise ProgramError(what, remedy=f"call one of them, as program.method({names[0]!r})(...)")

    @property
    def states(self) -> Mapping[str, Array]:
        """The states by name as read-only views, which show later writes; bfloat16 as its bits in uint16.

        A read during another thread's call may return a mixture of old and new.
        """
        return self._states.views()

    @property
    def state_dtypes(self) -> Mapping[str, DType]:
        """The element types of the states by name."""
        return self._states.dtypes

    def reset(self) -> None:
        """Set all states back to their initial values."""
        with self._lock.hold():
            self._states.reset()

    def snapshot(self, parts: Parts | None = None) -> dict[str, Array]:
        """Return a copy of all states by name, as they are between two calls; bfloat16 as its bits in uint16.

        Args:
            parts: copy only these parts of some states, each a NumPy index, for example the filled part of a cache.

        Raises:
            InputError: a state is unknown, or has no such part.
        """
        with self._lock.hold(), translate_input_errors("the parts"):
            return self._states.snapshot(parts)

    def restore(self, snapshot: Mapping[str, Array], parts: Parts | None = None) -> None:
        """Set all states to a `snapshot` of this or another context of the program.

        Args:
            snapshot: the result of `snapshot`.
            parts: the parts of the snapshot; everything else stays unchanged.

        Raises:
            InputError: names, dtypes or shapes differ from the states, which stay unchanged.
        """
        with self._lock.hold(), translate_input_errors("the snapshot"):
            self._states.restore(snapshot, parts)

    @contextmanager
    def listen(self, listener: Listener, *, inner: bool = False) -> Iterator[None]:
        """Send the events of this context's calls to a listener, inside a `with` block.

        Several listeners may be active at once, nested or not; each receives all events of its block. Methods are
        bound again when the block begins and when it ends, and an event costs about a microsecond per instruction.
        Without a listener it costs nothing.

        Args:
            listener: receives each event in the thread of the run; see `delegate.events.kinds`.
            inner: also request the operators of vendor libraries, as far as these report them. Their delegates are
                opened a second time, and are slower. Some libraries report all operators at the end of the block.

        Raises:
            ListenerError: at the end, if the listener has raised an exception, while the results are valid.
            BackendFailed: a delegate could not be opened again, or not be closed.
            ExecutionError: a call of this thread is using the context.
        """
        self.refuse_reentry()
        with subscribe(listener) as subscription:
            try:
                self._bind_listeners((*self._listeners, (subscription, inner)))
                yield
            finally:
                self._bind_listeners(tuple(pair for pair in self._listeners if pair[0] is not subscription))

    @contextmanager
    def profile(self, *, inner: bool = False) -> Iterator[Profile]:
        """Measure the calls of this context inside a `with` block: how often each instruction runs, and its
        time.

        After the block, the report has the measured shares. See `listen` for `inner`, the cost, and the errors.
        """
        from delegate.runtime.profile import Profile

        profile = Profile()
        with self.listen(profile, inner=inner):
            try:
                yield profile
            finally:
                self._portable_shares |= profile.portable_shares()

    def refuse_reentry(self) -> None:
        """Raise ExecutionError if a call of this thread is using the context, or a delegate that it would wait for."""
        self._lock.refuse_reentry()
        for method in self._methods.values():
            method.refuse_reentry()

    def _bind_listeners(self, listeners: tuple[tuple[Subscription, bool], ...]) -> None:
        """Bind the methods with other listeners."""
        self.refuse_reentry()
        from delegate.runtime.watch import EventWatch, ModulePaths  # most programs have no listeners

        watch, profiled = None, None
        if listeners:
            self._modules = self._modules or ModulePaths(self._program.report)
            subscriptions = tuple(subscription for subscription, _ in listeners)
            watch = EventWatch(subscriptions, self._platform.clock, self._number, self._modules, set())
        inner = tuple(subscription for subscription, is_inner in listeners if is_inner)
        if inner and self._methods:
            own = next(iter(self._methods.values())).delegates
            profiled = ProfiledDelegates(self._program.delegates, own, inner)
        before, self._listeners, self._profiled = self._profiled, listeners, profiled
        try:
            for method in self._methods.values():
                method.watch(watch, {} if profiled is None else profiled.delegates)
        finally:
            if before is not None:
                before.close()  # the methods do not use them any more

    def close(self) -> None:
        """Wait for a running call, and release its memory, after which the context cannot be called.

        Raises:
            ExecutionError: a call of this thread is using the context, which stays open.
        """
        self.refuse_reentry()
        methods, self._methods = self._methods, {}
        self._default = self._no_default
        for method in methods.values():
            method.close()
        if self._profiled is not None:
            profiled, self._profiled = self._profiled, None
            profiled.close()
