"""Contexts of one program: states apart, set back, copied out and in; calls from several threads."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import DelegateError, InputError, ProgramError
from delegate.kernels.portable import TABLE
from delegate.kernels.table import KernelTable
from delegate.program.file import serialize
from delegate.runtime.backend import BackendRuntime, Delegate
from delegate.runtime.loaded import LoadedProgram
from tests.support.lowering import assert_same, compiled


class Recurrent(nn.Module):
    """A hidden state of two dtypes and a counter; the answer depends on all calls so far."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("hidden", torch.zeros(2, 8))
        self.register_buffer("trace", torch.ones(8, dtype=torch.bfloat16))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.hidden.copy_(torch.tanh(self.layer(self.hidden) + a))
        self.trace.mul_(0.5)
        self.count.add_(1)
        return self.hidden * 2, self.count + self.trace.float().sum()


torch.manual_seed(0)
MODULE = Recurrent().eval()
INPUTS = [torch.randn(2, 8) * (i + 1) for i in range(6)]
# The sums of integers, and the sum that shows a state in bfloat16, rounded.
REFUSED = {"aten.add.Tensor": 2, "aten._to_copy.default": 1}
PROGRAMS = {
    "": compiled(copy.deepcopy(MODULE), (INPUTS[0],)),
    "xnnpack": compiled(copy.deepcopy(MODULE), (INPUTS[0],), backends="xnnpack", portable=REFUSED),
}


def eager(inputs: list[torch.Tensor]) -> list[Any]:
    module = copy.deepcopy(MODULE)
    with torch.no_grad():
        return [copy.deepcopy(module(a)) for a in inputs]


@pytest.fixture(params=list(PROGRAMS))
def program(request):
    made = PROGRAMS[request.param]
    made.reset()
    return made


def test_contexts_do_not_disturb_each_other(program):
    first, second = program.context(), program.context()
    program(INPUTS[5])
    expected_first, expected_second = eager(INPUTS), eager(INPUTS[::-1])
    for i, given in enumerate(INPUTS):
        assert_same(first(given), expected_first[i])
        assert_same(second(INPUTS[::-1][i]), expected_second[i])
    assert int(program.states["count"]) == 1
    assert int(first.states["count"]) == 6


def test_reset_snapshot_restore(program):
    expected = eager(INPUTS)
    for given in INPUTS[:3]:
        program(given)
    kept = program.snapshot()
    assert {n: (t.dtype, tuple(t.shape)) for n, t in kept.items()} == {
        n: (t.dtype, tuple(t.shape)) for n, t in MODULE.named_buffers()
    }
    after = [program(given) for given in INPUTS[3:]]
    program.reset()
    assert_same(program(INPUTS[0]), expected[0])
    program.restore(kept)
    for given, wanted in zip(INPUTS[3:], after, strict=True):
        assert_same(program(given), wanted, tolerance=0)
    other = program.context()
    other.restore(kept)
    assert_same(other(INPUTS[3]), expected[3])


def test_states_are_views_that_cannot_be_written():
    context = PROGRAMS[""].loaded.context()
    states = context.states
    context(INPUTS[0].numpy())
    assert states["count"] == 1
    with pytest.raises(ValueError, match="read-only"):
        states["count"][...] = 5
    with pytest.raises(TypeError):
        states["count"] = np.array(5)


WRONG = {
    "missing": (lambda s: {k: v for k, v in s.items() if k != "count"}, "lacks count"),
    "unknown": (lambda s: s | {"counter": s["count"]}, r"no state 'counter': did you mean 'count'"),
    "shape": (lambda s: s | {"hidden": s["hidden"][:1]}, r"'hidden' is float32\[1, 8\].*must be float32\[2, 8\]"),
    "dtype": (lambda s: s | {"count": s["count"].astype(np.int32)}, r"'count' is int32\[\].*must be int64\[\]"),
    "no array": (lambda s: s | {"count": 3}, "'count' is a int"),
}


@pytest.mark.parametrize("name", WRONG)
def test_snapshots_that_do_not_fit_change_nothing(name):
    spoil, message = WRONG[name]
    context = PROGRAMS[""].loaded.context()
    context(INPUTS[0].numpy())
    before = context.snapshot()
    spoilt = spoil({k: v + 1 if k == "hidden" else v for k, v in before.items()})
    with pytest.raises(InputError, match=message):
        context.restore(spoilt)
    for state, array in context.snapshot().items():
        np.testing.assert_array_equal(array, before[state])


def test_parts_of_states():
    context, other = PROGRAMS[""].loaded.context(), PROGRAMS[""].loaded.context()
    context(INPUTS[0].numpy())
    parts = {"hidden": (slice(1), slice(3, 6))}
    kept = context.snapshot(parts)
    np.testing.assert_array_equal(kept["hidden"], context.states["hidden"][:1, 3:6])
    assert kept["hidden"].any()
    before = other.snapshot()
    other.restore(kept, parts)
    expected = before["hidden"].copy()
    expected[:1, 3:6] = kept["hidden"]
    np.testing.assert_array_equal(other.states["hidden"], expected)
    assert other.states["count"] == before["count"]


WRONG_PARTS = {
    "unknown": ({"hiden": slice(1)}, "no state 'hiden': did you mean 'hidden'"),
    "axes": ({"hidden": (0, 0, 0)}, r"'hidden' of shape \[2, 8\] has no part"),
    "number": ({"hidden": 2}, r"'hidden' of shape \[2, 8\] has no part 2"),
    "no index": ({"hidden": "first"}, r"'hidden' of shape \[2, 8\] has no part first"),
    "no mapping": (3, "the parts cannot be read"),
}


@pytest.mark.parametrize("name", WRONG_PARTS)
def test_parts_that_states_have_not(name):
    parts, message = WRONG_PARTS[name]
    with pytest.raises(InputError, match=message):
        PROGRAMS[""].loaded.context().snapshot(parts)


def test_states_of_zeros_take_no_memory_before_they_are_written():
    program = delegate.load(serialize(PROGRAMS[""].program))
    starts = dict(zip(program.states, program._shared.states, strict=True))
    assert starts["hidden"].base.size == 1
    context = program.context()
    for _ in range(2):
        assert not context.states["hidden"].any()
        context(INPUTS[0].numpy())
        context.reset()
    np.testing.assert_array_equal(context.states["trace"], starts["trace"])


def test_a_closed_program_closes_its_contexts():
    program = delegate.load(serialize(PROGRAMS["xnnpack"].program))
    context = program.context()
    kept = program.method("forward")
    program.close()
    for call in (program, context, kept, lambda _: program.context()):
        with pytest.raises(ProgramError, match="the program is closed: load it again"):
            call(INPUTS[0].numpy())


class Slow(nn.Module):
    """One partition of XNNPACK that is the whole method."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.tanh(a)


@pytest.mark.parametrize("name", ["one partition", "partition and kernels"])
def test_closing_waits_for_calls_that_run(name):
    """A delegate that is freed while it executes would take the process down."""
    one = name == "one partition"
    module, given, portable = (Slow(), torch.randn(400, 400), {}) if one else (MODULE, INPUTS[0], REFUSED)
    data = serialize(compiled(module, (given,), backends="xnnpack", portable=portable).program)
    for _ in range(5):
        program = delegate.load(data)
        said: list[str] = []

        def call(program: Any = program, said: list[str] = said) -> None:
            try:
                while True:
                    program(given.numpy())
            except DelegateError as error:
                said.append(error.what)

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        program.close()
        for thread in threads:
            thread.join(20)
        assert set(said) == {"the program is closed"}


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_what_is_bound_is_not_pickled(act):
    program = PROGRAMS["xnnpack"]
    for bound in (program, program.loaded, program.method("forward"), program.loaded.method("forward")):
        with pytest.raises(TypeError, match=f"a {type(bound).__name__} cannot be pickled or copied: it holds memory"):
            act(bound)


def in_threads(work: Any, count: int = 4) -> None:
    """Run `work(number)` in threads that start at the same moment; raises what they raise."""
    start = threading.Barrier(count)

    def run(number: int) -> None:
        start.wait(20)
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(run, range(count)))


@pytest.mark.parametrize("shared", [False, True], ids=["made in the thread", "made before"])
def test_contexts_in_threads(program, shared):
    expected = eager(INPUTS)
    before = [program.context() for _ in range(4)]

    def work(number: int) -> None:
        context = before[number] if shared else program.context()
        for _ in range(15):
            context.reset()
            for i, given in enumerate(INPUTS):
                assert_same(context(given), expected[i])

    in_threads(work)


def test_methods_of_a_context_do_not_interleave():
    """Each method adds in two steps; were they mixed, an addition would be lost."""

    class Adder(nn.Module):
        def __init__(self, total: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("total", total)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            slow = (self.total.expand(2000, 64).sin() * 0).sum()
            self.total.add_(a + slow)
            return a + slow

    one, total = torch.ones(1), torch.zeros(1)
    methods = {name: torch.export.export(Adder(total), (one,)) for name in ("add", "more")}
    context = delegate.to_backend(methods, []).loaded.context()
    in_threads(lambda number: [context.method(("add", "more")[number % 2])(one.numpy()) for _ in range(50)])
    assert context.states["total"] == 200


class Plugins:
    """A registry with a backend's runtime part of the test's own."""

    def __init__(self, runtime: type[BackendRuntime]) -> None:
        self._runtime = runtime

    @property
    def kernels(self) -> Plugins:
        return self

    def tables(self) -> tuple[KernelTable, ...]:
        return (TABLE,)

    def runtime(self, _name: str) -> type[BackendRuntime]:
        return self._runtime


def test_contexts_run_at_the_same_time():
    """A kernel of one context waits for that of the other: were there one lock for both, it would wait in vain."""
    meeting = threading.Barrier(2)
    table = KernelTable("meeting")

    @table.kernel("aten.sin.default")
    def sin(x: np.ndarray, *, out: np.ndarray) -> None:
        meeting.wait(20)
        np.sin(x, out=out)

    class Sine(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return a.sin()

    program = LoadedProgram(compiled(Sine(), (torch.ones(2),)).program, kernels=[table])
    contexts = [program, program.context()]
    in_threads(lambda number: contexts[number](np.ones(2, np.float32)), count=2)


@pytest.mark.parametrize("safe", [False, True])
def test_a_delegate_gets_one_call_at_a_time_unless_it_is_thread_safe(safe):
    most = []

    class Watched(Delegate):
        thread_safe = safe
        running = 0

        def execute(self, inputs: Any, outputs: Any) -> None:
            self.running += 1
            time.sleep(0.01)
            most.append(self.running)
            self.running -= 1
            for out in outputs:
                out.fill(1)

    class Runtime(BackendRuntime):
        def init(self, blob: memoryview, compile_specs: Any) -> Delegate:
            return Watched()

    program = LoadedProgram(PROGRAMS["xnnpack"].program, Plugins(Runtime))
    contexts = [program.context() for _ in range(4)]
    in_threads(lambda number: [contexts[number](INPUTS[0].numpy()) for _ in range(3)])
    assert (max(most) > 1) is safe


@pytest.mark.parametrize("backend", ["", "xnnpack"])
def test_other_threads_go_on_during_a_long_call(backend):
    """Both NumPy's loops and LiteRT's invoke release the GIL: a thread wakes up many times meanwhile."""
    module = nn.Linear(2048, 2048).eval()
    given = torch.randn(4096, 2048)
    program = compiled(module, (given,), backends=[backend] if backend else []).loaded
    assert len(program.program.methods[0].instructions) <= 3
    array = given.numpy()
    program(array)
    wakes: list[float] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            time.sleep(0.001)
            wakes.append(time.perf_counter())

    counter = threading.Thread(target=count)
    counter.start()
    begin = time.perf_counter()
    program(array)
    end = time.perf_counter()
    done.set()
    counter.join()
    assert sum(begin < t < end for t in wakes) >= 5
