"""Context: a program's methods with states and memory of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from delegate.errors import ProgramError, did_you_mean
from delegate.program.dtypes import DType
from delegate.runtime.backend import Array
from delegate.runtime.forking import torn_states_error
from delegate.runtime.lifecycle import NotPicklable, closed_error
from delegate.runtime.method import Method
from delegate.runtime.resources import Resources
from delegate.runtime.states import Parts, States
from delegate.runtime.translate_errors import reading

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
        self._ready: Callable[[], Resources] | None = None  # where the process was forked: what to bind to first
        self._torn = False
        self._profiles: tuple[Profile, ...] = ()
        self._portable_shares = resources.portable_shares

    def mark_forked(self, ready: Callable[[], Resources]) -> None:
        """Wait for the first call in this process, which was forked: see `forking`.

        Args:
            ready: gives what the contexts share, made in this process.
        """
        self._torn = self._lock.locked() and bool(self._states.arrays)
        self._lock, self._ready = threading.Lock(), ready
        for method in self._methods.values():
            method.mark_forked(self.make_ready, self._lock)

    def make_ready(self) -> None:
        """Bind the methods in this process, where it was forked since they were bound.

        Raises:
            ExecutionError: a call was writing the states then.
            BackendError: a delegate cannot be made here.
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
        """The names of its methods."""
        return tuple(self._methods)

    def method(self, name: str) -> Method:
        """A method by name; raises ProgramError for an unknown one, or where the program is closed."""
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
        """The method that a call means: the only one, else "forward"."""
        return self.methods[0] if len(self.methods) == 1 else "forward"

    def _no_default(self, *args: Any, **kwargs: Any) -> NoReturn:
        self.method(self.default_method)
        raise AssertionError  # that raises

    @property
    def states(self) -> Mapping[str, Array]:
        """The states by name as read-only views, which show what later calls write; bfloat16 as its bits in uint16.

        Reading them while another thread calls a method may give a mixture of old and new.
        """
        return self._states.views()

    @property
    def state_dtypes(self) -> Mapping[str, DType]:
        """The element types of the states by name."""
        return self._states.dtypes

    def reset(self) -> None:
        """Set all states back to where they started."""
        with self._lock:
            self._states.reset()
            self._torn = False

    def snapshot(self, parts: Parts | None = None) -> dict[str, Array]:
        """A copy of all states by name, as they are between two calls; bfloat16 as its bits in uint16.

        Args:
            parts: copy these parts of some states alone, each as NumPy is given it: such as what is filled of a cache.

        Raises:
            InputError: a state is unknown, or has no such part.
        """
        with self._lock, reading("the parts"):
            if self._torn:
                raise torn_states_error()
            return self._states.snapshot(parts)

    def restore(self, snapshot: Mapping[str, Array], parts: Parts | None = None) -> None:
        """Set all states to what `snapshot` gave, here or in another context of the program.

        Args:
            snapshot: what it gave.
            parts: of which it was told so; all else stays as it is.

        Raises:
            InputError: names, dtypes or shapes are not those of the states; they are then as they were.
        """
        with self._lock, reading("the snapshot"):
            self._states.restore(snapshot, parts)
            self._torn = self._torn and parts is not None

    @contextmanager
    def profile(self) -> Iterator[Profile]:
        """Watch the calls of this context inside a `with` block: how often each instruction runs, and for how long.

        Several profiles may be taken at once, one within another or not: each counts all that runs meanwhile. Methods
        are bound anew when it begins and when it ends; then the report has the measured shares. Watching costs about a
        microsecond an instruction; while nobody watches it costs nothing.
        """
        from delegate.runtime.profile import Profile

        made = Profile()
        self.make_ready()
        try:
            self._watch((*self._profiles, made))
            yield made
        finally:
            self._watch(tuple(p for p in self._profiles if p is not made))
            self._portable_shares |= made.portable_shares()

    def _watch(self, profiles: tuple[Profile, ...]) -> None:
        from delegate.runtime.profile import Stopwatch

        self._profiles = profiles
        watch = Stopwatch(profiles, self._platform.clock) if profiles else None
        for method in self._methods.values():
            method.watch(watch)

    def close(self) -> None:
        """Wait for the call that runs, and give its memory back. It cannot be called afterwards."""
        methods, self._methods = self._methods, {}
        self._default = self._no_default
        for method in methods.values():
            method.close()
