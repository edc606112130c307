"""Code of the user that runs in a call and uses the program again: an error where the thread would wait for itself.

Such code are listeners, kernels, backends, platforms, signal handlers, and `__del__` in a garbage collection.
"""

from __future__ import annotations

import faulthandler
import gc
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import delegate
from delegate.errors import DelegateError, ExecutionError, ListenerError, ProgramError
from delegate.events import SerialCalls
from delegate.events.kinds import Event, MethodRun
from delegate.program.file import serialize
from delegate.program.model import Program
from delegate.runtime.context import Context
from delegate.runtime.lifecycle import error_chain
from delegate.runtime.loaded import LoadedProgram
from tests.runtime import calling
from tests.runtime.calling import HOOKS, direct, whole
from tests.support import vector_backend
from tests.support.lowering import compiled
from tests.support.plugins import registered
from tests.support.program_builder import SQUARE

X = np.arange(4, dtype=np.float32).reshape(SQUARE)
WORDS = r"(the context|partition \S+ of calling) is used by a listener, kernel, signal handler or __del__ in a call"
SIGNAL = signal.SIGALRM


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    faulthandler.dump_traceback_later(100, exit=True)  # of a thread that waits for itself
    yield from registered(calling.INFO)
    faulthandler.cancel_dump_traceback_later()
    HOOKS.clear()


def _load(program: Program, **settings: Any) -> LoadedProgram:
    return LoadedProgram(program, kernels=[calling.TABLE], **settings)


@contextmanager
def _handler(function: Callable[[], object]) -> Iterator[None]:
    before = signal.signal(SIGNAL, lambda *_: function())
    try:
        yield
    finally:
        signal.signal(SIGNAL, before)


class Cycle:
    """Garbage that does something when it is collected."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.itself, self.function = self, function

    def __del__(self) -> None:
        self.function()


# What the code of the user does. True: also where a delegate is used, and not the context.
ACTIONS: dict[str, tuple[Callable[[LoadedProgram], object], bool]] = {
    "call": (lambda program: program(X), True),
    "call method": (lambda program: program.method("forward")(X), True),
    "close": (lambda program: program.close(), True),
    "close context": (Context.close, True),
    "listen": (lambda program: program.listen(print).__enter__(), True),
    "profile": (lambda program: program.profile().__enter__(), True),
    "snapshot": (lambda program: program.snapshot(), False),
    "restore": (lambda program: program.restore({"state": X}), False),
    "reset": (lambda program: program.reset(), False),
}


class Place:
    """Code of the user in one place of a call, which acts once."""

    def __init__(self, place: str, action: Callable[[], object]) -> None:
        self.place, self._action = place, action
        self.errors: list[BaseException] = []
        self._has_acted = False

    def act(self) -> None:
        if not self._has_acted:
            self._has_acted = True
            try:
                self._action()
            except BaseException as error:
                self.errors.append(error)

    def hook(self, running: str) -> None:
        kind, _, where = self.place.partition(" in ")
        if (where or kind) != running:
            return
        if kind == "signal":
            signal.raise_signal(SIGNAL)
        elif kind == "garbage":
            Cycle(self.act)
            gc.collect()
        else:
            self.act()

    def listener(self, event: Event) -> None:
        if type(event).__name__ == self.place:
            self.act()

    @contextmanager
    def installed(self, program: LoadedProgram) -> Iterator[None]:
        HOOKS.append(self.hook)
        try:
            with _handler(self.act):
                if self.place.endswith("Run"):
                    with program.listen(self.listener):
                        yield
                else:
                    yield
        finally:
            HOOKS.clear()


PLACES = [
    "InstructionRun",
    "MethodRun",
    "kernel",
    "backend",
    "signal in kernel",
    "signal in backend",
    "garbage in backend",
]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", PLACES)
def test_use_of_a_context_in_its_own_call(name, action):
    """The call is right, the use in it an error that says so, and all works as before."""
    act, _ = ACTIONS[action]
    with _load(whole()) as program:
        place = Place(name, lambda: act(program))
        with place.installed(program):
            result = program(X)
        (error,) = place.errors
        assert isinstance(error, ExecutionError)
        with pytest.raises(ExecutionError, match=WORDS):
            raise error
        np.testing.assert_array_equal(result, (X + 1) * 2)
        _require_as_before(program, (X + 1) * 2)


@pytest.mark.parametrize("action", [name for name, (_, is_of_delegates) in ACTIONS.items() if is_of_delegates])
@pytest.mark.parametrize("name", ["backend", "signal in backend", "garbage in backend"])
def test_use_of_a_delegate_in_its_own_call(name, action):
    """A method of one partition calls it directly. Other contexts share the delegate, too."""
    for is_other in (False, True):
        with _load(direct()) as program:
            used = program.context() if is_other and action != "close" else program
            place = Place(name, lambda used=used: ACTIONS[action][0](used))
            with place.installed(program):
                result = program(X)
            (error,) = place.errors
            assert isinstance(error, ExecutionError)
            with pytest.raises(ExecutionError, match=WORDS):
                raise error
            np.testing.assert_array_equal(result, X * 2)
            _require_as_before(program, X * 2)


def _require_as_before(program: LoadedProgram, expected: Any) -> None:
    """Require that a program works, here and in another thread, and that it has no listener and can be closed."""
    results = [program(X), program.context()(X)]
    thread = threading.Thread(target=lambda: results.append(program(X)))
    thread.start()
    thread.join(30)
    assert len(results) == 3
    for result in results:
        np.testing.assert_array_equal(result, expected)
    events: list[Event] = []
    with program.listen(events.append):
        program(X)
    assert sum(isinstance(event, MethodRun) for event in events) == 1
    program.snapshot()
    program.close()
    with pytest.raises(ProgramError):
        program(X)


@pytest.mark.parametrize("name", ["InstructionRun", "MethodRun", "kernel", "signal in kernel"])
def test_other_contexts_and_programs_may_be_used(name):
    """Their locks are others."""
    with _load(whole()) as program, _load(whole()) as other:
        results: list[Any] = []
        context = program.context()

        def act() -> None:
            results.extend([context(X), program.context()(X), other(X)])
            context.close()

        place = Place(name, act)
        with place.installed(program):
            results.append(program(X))
        assert place.errors == []
        for result in results:
            np.testing.assert_array_equal(result, (X + 1) * 2)


@pytest.mark.parametrize("made", [whole, direct])
def test_a_delegate_of_many_threads_may_be_used_in_its_call(made):
    with _load(made(is_safe=True)) as program:
        results: list[Any] = []
        place = Place("backend", lambda: results.append(program.context()(X)))
        with place.installed(program):
            results.append(program(X))
        assert place.errors == []
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("made", [whole, direct])
def test_calls_of_other_threads_wait(made):
    """Also those of a thread that begins in the call."""
    with _load(made()) as program:
        expected, results = program(X), []
        threads = [threading.Thread(target=lambda: results.append(program(X))) for _ in range(3)]
        place = Place("backend", lambda: [thread.start() for thread in threads])
        with place.installed(program):
            results.append(program(X))
        assert place.errors == []
        for thread in threads:
            thread.join(30)
        assert len(results) == 4
        for result in results:
            np.testing.assert_array_equal(result, expected)


def test_errors_that_nobody_catches():
    """A listener fails and the call does not; an error of a kernel, a backend or a signal handler ends the call."""
    program = _load(whole())
    with pytest.raises(ListenerError, match=WORDS), program.listen(lambda _: program(X)):
        np.testing.assert_array_equal(program(X), (X + 1) * 2)
    for running in ("kernel", "backend"):
        HOOKS[:] = [lambda place, running=running: program(X) if place == running else None]
        with pytest.raises(ExecutionError, match=WORDS):
            program(X)
        HOOKS[:] = [lambda place, running=running: signal.raise_signal(SIGNAL) if place == running else None]
        with _handler(lambda: program(X)), pytest.raises(ExecutionError, match=WORDS):
            program(X)
    HOOKS.clear()
    _require_as_before(program, (X + 1) * 2)


def test_a_handler_is_no_fault_of_the_backend(vector, monkeypatch):
    """Its error ends the call, and the partition still runs on its backend in the next one."""

    def negative(x: Any) -> Any:
        for hook in HOOKS:
            hook("backend")
        return np.negative(x)

    monkeypatch.setitem(vector_backend.OPERATORS, "aten.neg.default", negative)
    settings = {"backends": ["vector"], "fallback": {"keep": True, "policy": "allow"}}
    made = compiled(Negative(), (torch.from_numpy(X),), config=settings)
    with delegate.load(serialize(made.program)) as program:
        HOOKS.append(lambda _: signal.raise_signal(SIGNAL))
        with _handler(lambda: program(X)), pytest.raises(DelegateError, match=WORDS.replace("calling", "vector")):
            program(X)
        HOOKS.clear()
        np.testing.assert_array_equal(program(X), -X)
        assert program.fallback_events == ()


class Negative(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.neg(x)


def test_programs_that_share_the_memory_of_a_thread():
    """XNNPACK's models of varying sizes use one memory in a thread, also if one interrupts another."""
    models = [torch.nn.Linear(1024, 1024).eval() for _ in range(2)]
    batch = torch.export.Dim("batch", min=1, max=64)
    x = torch.rand(9, 1024)
    programs = []
    for model in models:
        lowered = compiled(model, (x,), backends="xnnpack", dynamic_shapes=({0: batch},))
        content = serialize(lowered.program)
        programs.append(delegate.load(content, options={"xnnpack": {"weight_cache": True}}))
    first, second = programs
    expected, of_second = first(x.numpy()), second(x.numpy())
    with _handler(lambda: np.testing.assert_array_equal(second(x.numpy()), of_second)):
        for _ in _interrupts(300, 3e-3):
            for _ in range(3):
                np.testing.assert_array_equal(first(x.numpy()), expected)


def _interrupts(count: int, most: float) -> Iterator[None]:
    """Yield some times; each time a signal comes within these seconds, and at the latest at the end."""
    draw = random.Random(0)
    for _ in range(count):
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, most))
        yield
        while signal.getitimer(signal.ITIMER_REAL)[0]:
            pass


def test_a_call_within_a_serial_call_comes_next():
    calls, order = SerialCalls(), list[int]()

    def outer(number: int) -> None:
        calls.call(order.append, number + 1)
        order.append(number)

    calls.call(outer, 1)
    calls.call(order.append, 3)
    assert order == [1, 2, 3]


def test_an_error_that_is_its_own_cause_has_a_chain_that_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(error_chain(first)) == [first, second]
