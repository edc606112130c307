"""Context: a program's methods with states and memory of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from delegate.errors import ProgramError, did_you_mean
from delegate.program.dtypes import DType
from delegate.runtime.backend import Array
from delegate.runtime.lifecycle import NotPicklable, closed_error, torn_states_error
from delegate.runtime.method import Method
from delegate.runtime.resources import Resources
from delegate.runtime.states import Parts, States
from delegate.runtime.translate_errors import translate_input_errors

if TYPE_CHECKING:
    from delegate.runtime.profile import Profile


class Context(NotPicklable):
    """An independent use of a program, such as one conversation: methods that share states with each other alone.

    Contexts of one program share its constants, its delegates and its plans; states and working memory are their own.
    Calls are safe from any thread. Those in one context run one after another, because they share its memory; those in
    different contexts run at the same time, but for partitions of a delegate that takes one call at a time.

    Args:
        resources: what all contexts of the program share; its states are what those of the context start with.
    """

    def __init__(self, resources: Resources) -> None:
        program = resources.program
        self._lock = threading.Lock()
        self._platform = resources.platform
        self._states = States(program.states, resources.states, resources.platform)
        own = resources._replace(states=self._states.arrays, lock=self._lock)
        self._methods = {m.name: Method(own, m) for m in program.methods}
        self._default: Callable[..., Any] = self._methods.get(self.default_method, self._no_default)
        self._ready: Callable[[], Resources] | None = None  # after a fork: creates the resources to bind to
        self._torn = False
        self._profiles: tuple[Profile, ...] = ()
        self._portable_shares = resources.portable_shares

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._methods) or 'a closed program'}>"

    def mark_forked(self, ready: Callable[[], Resources]) -> None:
        """Delay binding until the first call in this forked process: see `lifecycle`.

        Args:
            ready: returns the resources of the contexts, created in this process.
        """
        self._torn = self._lock.locked() and bool(self._states.arrays)
        self._lock, self._ready = threading.Lock(), ready
        for method in self._methods.values():
            method.mark_forked(self.make_ready, self._lock)

    def make_ready(self) -> None:
        """Bind the methods in this process, if it was forked after they were bound.

        Raises:
            ExecutionError: a call was writing the states then.
            BackendError: a delegate cannot be created here.
        """
        with self._lock:
            if self._ready is None:
                return
            if self._torn:
                raise torn_states_error()
            own = self._ready()._replace(states=self._states.arrays, lock=self._lock)
            for method in self._methods.values():
                method.rebind(own)
            self._ready = None

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods."""
        return tuple(self._methods)

    def method(self, name: str) -> Method:
        """Return a method by name; raise ProgramError for an unknown one, or if the program is closed."""
        if not self._methods:
            raise closed_error()
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
        self.method(self.default_method)
        raise AssertionError  # unreachable

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
        with self._lock:
            self._states.reset()
            self._torn = False

    def snapshot(self, parts: Parts | None = None) -> dict[str, Array]:
        """Return a copy of all states by name, as they are between two calls; bfloat16 as its bits in uint16.

        Args:
            parts: copy only these parts of some states, each a NumPy index, for example the filled part of a cache.

        Raises:
            InputError: a state is unknown, or has no such part.
        """
        with self._lock, translate_input_errors("the parts"):
            if self._torn:
                raise torn_states_error()
            return self._states.snapshot(parts)

    def restore(self, snapshot: Mapping[str, Array], parts: Parts | None = None) -> None:
        """Set all states to a `snapshot` of this or another context of the program.

        Args:
            snapshot: the result of `snapshot`.
            parts: the parts of the snapshot; everything else stays unchanged.

        Raises:
            InputError: names, dtypes or shapes are not those of the states, which stay unchanged.
        """
        with self._lock, translate_input_errors("the snapshot"):
            self._states.restore(snapshot, parts)
            self._torn = self._torn and parts is not None

    @contextmanager
    def profile(self) -> Iterator[Profile]:
        """Measure the calls of this context inside a `with` block: the number of runs of each instruction, and their
        time.

        Several profiles may be active at once, nested or not; each counts all runs in its block. Methods are bound
        again when it begins and when it ends; then the report has the measured shares. Profiling costs about a
        microsecond per instruction. Without a profile it costs nothing.
        """
        from delegate.runtime.profile import Profile

        profile = Profile()
        self.make_ready()
        try:
            self._watch((*self._profiles, profile))
            yield profile
        finally:
            self._watch(tuple(p for p in self._profiles if p is not profile))
            self._portable_shares |= profile.portable_shares()

    def _watch(self, profiles: tuple[Profile, ...]) -> None:
        from delegate.runtime.profile import Stopwatch

        self._profiles = profiles
        watch = Stopwatch(profiles, self._platform.clock) if profiles else None
        for method in self._methods.values():
            method.watch(watch)

    def close(self) -> None:
        """Wait for a running call, and release its memory. The context cannot be called afterwards."""
        methods, self._methods = self._methods, {}
        self._default = self._no_default
        for method in methods.values():
            method.close()
