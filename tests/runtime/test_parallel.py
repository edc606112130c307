"""Branches that may run at the same time: the answers of one after another, whatever goes wrong, from many threads."""

from __future__ import annotations

import gc
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from delegate.backends.info import Availability, BackendInfo
from delegate.emit.parallel import form_parallel_regions
from delegate.errors import BackendFailed, DelegateError, KernelError, PartitionError
from delegate.kernels.selection import Kernels, kernels_of
from delegate.memory.storage import assign_storage
from delegate.partitioner.plan import Group
from delegate.program.dtypes import DType
from delegate.program.file import serialize
from delegate.program.model import (
    Block,
    DelegateCall,
    DelegateSpec,
    Input,
    Instruction,
    KernelCall,
    Method,
    Program,
    Ref,
    State,
    Storage,
    StorageKind,
    Structure,
    StructuredCall,
    Tree,
    Value,
)
from delegate.program.verifier import verify
from delegate.registry import default_registry
from delegate.runtime.backend import BackendRuntime, Delegate
from delegate.runtime.loaded import LoadedProgram, load
from delegate.runtime.parallel import ParallelStep, Stop, Workers
from tests.runtime import stranger
from tests.support.program_builder import A, B, Builder, run
from tests.support.sampling import every

SHAPE = (4, 4)
LEAF = Tree("leaf")


class Weighted(Delegate):
    """x + 2 * y, in some time of its own."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def execute(self, inputs: Any, outputs: Any) -> None:
        time.sleep(self._draw.choice([0, 0, 0.0005]))
        np.add(inputs[0], inputs[1], out=outputs[0])
        time.sleep(self._draw.choice([0, 0, 0.0005]))
        np.add(outputs[0], inputs[1], out=outputs[0])


class Runtime(BackendRuntime):
    def init(self, blob: memoryview, compile_specs: Any) -> Delegate:
        return Weighted(random.Random(0))


INFO = BackendInfo("weighted", "", f"{__name__}:None", f"{__name__}:Runtime", lambda: Availability(True), "nothing")


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    default_registry.cache_clear()
    default_registry().register(INFO)
    default_registry().register(stranger.INFO)
    yield
    default_registry.cache_clear()


class Graph:
    """A random graph of delegates, kernels, views, a branch of control flow and writes to a state, in one line."""

    def __init__(self, seed: int) -> None:
        draw = self._draw = random.Random(seed)
        self.values = [
            self._value("x", StorageKind.INPUT, 0),
            self._value("y", StorageKind.INPUT, 1),
            self._value("s", StorageKind.STATE),
        ]
        self.values.append(Value("yes", DType.bool, (), Storage(StorageKind.CONSTANT, 0)))
        self.calls: list[Instruction] = []
        self.delegates = 0
        self._readable = [0, 1]
        for _ in range(draw.randrange(6, 26)):
            kinds = [self._delegate] * 5 + [self._kernel] * 3 + [self._view] * 2 + [self._choice]
            draw.choice([*kinds, self._write, self._read_state] if seed % 3 == 0 else kinds)()
        self.results = draw.sample(self._readable[2:], min(len(self._readable) - 2, draw.randrange(1, 4)))

    def _value(self, name: str, home: StorageKind = StorageKind.ARENA, index: int = 0) -> Value:
        return Value(name, DType.float32, SHAPE, Storage(home, index, -1 if home is StorageKind.ARENA else 0))

    def _new(self) -> int:
        self.values.append(self._value(f"v{len(self.values)}"))
        return len(self.values) - 1

    def _some(self) -> int:
        """Sources are mostly far back, so that much of the graph is independent."""
        return self._draw.choice(self._readable)

    def _made(self, call: Callable[[int], Instruction]) -> None:
        out = self._new()
        self.calls.append(call(out))
        self._readable.append(out)

    def _delegate(self) -> None:
        number, sources = self.delegates, (self._some(), self._some())
        self.delegates += 1
        self._made(lambda out: DelegateCall(number, sources, (out,)))

    def _kernel(self) -> None:
        op, sources = self._draw.randrange(2), (Ref(self._some()), Ref(self._some()))
        self._made(lambda out: KernelCall(op, (*sources, 1) if op == 0 else sources, (out,)))

    def _view(self) -> None:
        source = Ref(self._some())
        self._made(lambda out: KernelCall(2, (source, (1, 0)), (out,)))

    def _write(self) -> None:
        self.calls.append(KernelCall(3, (Ref(2), Ref(self._some()), False), (2,)))

    def _read_state(self) -> None:
        source = Ref(self._some())
        self._made(lambda out: KernelCall(0, (Ref(2), source, 1), (out,)))

    def _choice(self) -> None:
        a, b = self._some(), self._some()
        first, second = self._new(), self._new()
        blocks = Block((), (first,), (KernelCall(0, (Ref(a), Ref(b), 1), (first,)),)), Block((), (second,), (
            KernelCall(1, (Ref(a), Ref(b)), (second,)),))  # fmt: skip
        self._made(lambda out: StructuredCall(Structure.IF, (3,), 0, blocks, (out,)))

    def program(self) -> Program:
        count = len(self.results)
        method = Method(
            name="forward",
            inputs=(Input("x", 0), Input("y", 1)),
            outputs=tuple(map(Ref, self.results)),
            in_tree=Tree("tuple", (), (Tree("tuple", (), (LEAF, LEAF)), Tree("dict"))),
            out_tree=Tree("tuple", (), (LEAF,) * count),
            values=tuple(self.values),
            instructions=tuple(self.calls),
            arenas=(-1,),
        )
        return Program(
            methods=(method,),
            operators=("aten.add.Tensor", "aten.mul.Tensor", "aten.permute.default", "aten.copy.default"),
            constants=(_flag(),),
            states=(State("s", DType.float32, SHAPE, 1),),
            delegates=tuple(DelegateSpec(f"weighted_{n}", "weighted", 2, {}) for n in range(self.delegates)),
            segments=(b"\1", np.ones(SHAPE, np.float32).tobytes(), b"sum"),
        )

    def group(self, draw: random.Random) -> Group:
        """Some delegates in two or three branches."""
        names = [f"weighted_{n}" for n in range(self.delegates)]
        draw.shuffle(names)
        count = min(draw.choice([2, 2, 2, 3]), len(names))
        branches: list[list[str]] = [[names.pop()] for _ in range(count)]
        while names and draw.random() < 0.3:
            draw.choice(branches).append(names.pop())
        return tuple(map(tuple, branches))


def _flag() -> Any:
    from delegate.program.model import Constant

    return Constant("yes", DType.bool, (), 0)


def planned(program: Program, kernels: Kernels) -> Program:
    """With the plan of memory that a file would hold."""
    method = program.methods[0]
    plan = assign_storage(program, method, kernels, {})
    values = tuple(v._replace(storage=s) for v, s in zip(method.values, plan.storages, strict=True))
    return program._replace(methods=(method._replace(values=values, arenas=plan.arenas),))


def require_apart(program: Program) -> None:
    """Looked at without lifetimes: no two branches make values that share a byte of an arena."""
    method = program.methods[0]
    calls = [c for c in method.instructions if isinstance(c, StructuredCall) and c.kind is Structure.PARALLEL]
    assert calls
    for call in calls:
        blocks = [{*_bytes(method, block.instructions)} for block in call.blocks]
        for first, second in itertools.combinations(blocks, 2):
            assert not first & second


def _bytes(method: Method, calls: Any) -> Iterator[int]:
    for call in calls:
        if isinstance(call, StructuredCall):
            for block in call.blocks:
                yield from _bytes(method, block.instructions)
        for output in call.outputs:
            storage = method.values[output].storage
            if storage.kind is StorageKind.ARENA:
                yield from range(storage.offset, storage.offset + 64)


def results(loaded: LoadedProgram, count: int = 3) -> list[Any]:
    """What calls one after another give: states make them differ."""
    x, y = (np.arange(16, dtype=np.float32).reshape(SHAPE) % n / n for n in (5, 7))
    return [loaded(x, y) for _ in range(count)]


@pytest.mark.parametrize("part", every(5, range(10)))
def test_random_graphs_give_the_same_answers(part):
    """Bit for bit, twice over: planned as in a file, and by the runtime; and where the group cannot be, it is said."""
    kernels = kernels_of(default_registry(), None)
    done = 0
    for seed in range(part * 40, part * 40 + 40):
        graph = Graph(seed)
        if graph.delegates < 2 or len(graph.results) < 1:
            continue
        flat, draw = graph.program(), random.Random(seed)
        expected = results(LoadedProgram(flat))
        for _ in range(3):
            try:
                method = form_parallel_regions(flat, flat.methods[0], [graph.group(draw)], kernels)
            except PartitionError:  # one needs another, or something keeps its place between them
                continue
            done += 1
            beside = flat._replace(methods=(method,))
            verify(beside)
            saved = planned(beside, kernels)
            require_apart(saved)
            for program in (LoadedProgram(beside), load(serialize(saved))):
                with program:
                    for made, wanted in zip(results(program), expected, strict=True):
                        np.testing.assert_array_equal(made, wanted)
    assert done > 10


def towers(
    count: int = 2, *, specs: Any = None, backend: str = "stranger", depth: int = 3, fallback: bool = False
) -> Program:
    """`count` branches of `depth` delegates that each add y, begun with x; their results."""
    build = Builder()
    x, y = build.input((2, 3)), build.input((2, 3))
    blocks = []
    for branch in range(count):
        last, calls = x, []
        for place in range(depth):
            out = build.value((2, 3))
            calls.append(DelegateCall(branch * depth + place, (last, y), (out,)))
            last = out
        blocks.append(Block((), (last,), tuple(calls)))
    outputs = tuple(o for b in blocks for o in b.outputs)
    made = build.program([StructuredCall(Structure.PARALLEL, (), 0, tuple(blocks), outputs)], outputs)
    kept = load(stranger.program(fallback=True)).program.fallbacks if fallback else ()
    return made._replace(
        states=(),
        delegates=tuple(
            DelegateSpec(f"{backend}_{n}", backend, 2, {} if specs is None else specs(n), 0 if fallback else -1)
            for n in range(count * depth)
        ),
        operators=("aten.add.Tensor",) if fallback else made.operators,
        segments=(*made.segments, b"sum"),
        fallbacks=kept,
    )


X = np.ones((2, 3), np.float32)


def right(program: Any, first: float = 1, count: int = 2, depth: int = 3) -> bool:
    made = program(X * first, X)
    return len(made) == count and all(np.array_equal(m, X * first + depth * X) for m in made)


@pytest.mark.parametrize("isolate", [False, True])
def test_branches_run_at_the_same_time(isolate):
    """Two that sleep take the time of one: each waits for the other's beginning, in threads."""
    program = towers(2, depth=1)
    with LoadedProgram(program, isolate=isolate) as loaded:
        assert right(loaded, depth=1)
        begin = time.perf_counter()
        loaded(X * stranger.SLOW, X)
        assert time.perf_counter() - begin < 0.95  # two of half a second; one after another never takes less than 1


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_however_few_helpers_there_are(most):
    with LoadedProgram(towers(4)) as loaded:
        loaded._shared.workers._most = most
        for _ in range(20):
            assert right(loaded, count=4)


@pytest.mark.parametrize("isolate", [False, True])
def test_many_threads_call_at_once(isolate):
    """In one context, and in contexts of their own, of a program whose delegates they share."""
    with LoadedProgram(towers(3), isolate=isolate) as loaded:
        contexts = [loaded, loaded, *(loaded.context() for _ in range(6))]

        def calls(number: int) -> bool:
            return all(right(contexts[number], number + turn, count=3) for turn in range(25))

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(calls, range(8)))


def test_states_are_each_context_s_own():
    graph = Graph(3)
    flat = graph.program()
    expected = results(LoadedProgram(flat))
    with LoadedProgram(flat) as loaded:
        contexts = [loaded.context() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            for made in pool.map(results, contexts):
                for first, second in zip(made, expected, strict=True):
                    np.testing.assert_array_equal(first, second)


def failing(*branches: int) -> Callable[[int], dict[str, Any]]:
    """Compile specs of towers of which some fail at their second delegate."""
    return lambda n: {"absent": False} if n // 3 not in branches or n % 3 != 1 else {"fails": True}


class Failing(stranger.StrangerRuntime):
    def init(self, blob: memoryview, compile_specs: Any) -> Delegate:
        return _Raises() if compile_specs.get("fails") else super().init(blob, compile_specs)


class _Raises(stranger.Adder):
    def execute(self, inputs: Any, outputs: Any) -> None:
        raise ZeroDivisionError("on purpose")


@pytest.fixture
def fails() -> None:
    paths = (f"{__name__}:None", f"{__name__}:Failing")
    default_registry().register(BackendInfo("failing", "", *paths, lambda: Availability(True), "nothing"))


@pytest.mark.parametrize("branches", [(0,), (1,), (2,), (1, 2), (0, 1, 2)], ids=str)
def test_the_first_branch_that_fails_is_told(fails, branches):
    with LoadedProgram(towers(3, specs=failing(*branches), backend="failing")) as loaded:
        for _ in range(20):
            with pytest.raises(BackendFailed, match=f"on purpose.*failing_{branches[0] * 3 + 1} of failing"):
                loaded(X, X)


@pytest.mark.parametrize("branches", [(0,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("contexts", [1, 4])
def test_delegates_that_fail_in_branches_fall_back(fails, branches, contexts):
    program = towers(3, specs=failing(*branches), backend="failing", fallback=True)
    with LoadedProgram(program, fallback="allow") as loaded:
        given = [loaded, *(loaded.context() for _ in range(contexts - 1))]
        with ThreadPoolExecutor(contexts) as pool:
            assert all(pool.map(lambda c: all(right(c, count=3) for _ in range(10)), given))
        assert {e.partition for e in loaded.fallback_events} == {f"failing_{b * 3 + 1}" for b in branches}
        assert len(loaded.fallback_events) == len(branches)


def test_a_fallback_warns_once_from_whatever_thread(fails):
    program = towers(2, specs=failing(0, 1), backend="failing", fallback=True)
    with LoadedProgram(program, fallback="warn") as loaded:
        with pytest.warns(RuntimeWarning, match="runs on portable kernels") as caught:
            assert right(loaded)
        assert len(caught) == 2
        assert right(loaded)


def test_a_profile_counts_each_instruction_of_each_branch():
    with LoadedProgram(towers(3)) as loaded, loaded.profile() as profile:
        for _ in range(5):
            assert right(loaded, count=3)
    counts = {t.what: t.count for t in profile.timings}
    assert counts == {"parallel": 5, **{f"partition stranger_{n}": 5 for n in range(9)}}


def test_kernels_in_branches_are_as_silent_as_others():
    """NumPy's warnings are switched off per thread: infinities and NaN are as torch has them."""
    build = Builder()
    x = build.input()
    outs = [build.value() for _ in range(4)]
    blocks = tuple(
        Block((), (outs[2 * n + 1],), (build.call("log.default", Ref(x), out=outs[2 * n]),
                                       build.call("div.Tensor", Ref(outs[2 * n]), Ref(x), out=outs[2 * n + 1])))
        for n in range(2)
    )  # fmt: skip
    call = StructuredCall(Structure.PARALLEL, (), 0, blocks, (outs[1], outs[3]))
    for _ in range(10):
        made = run(build.program([call], [outs[1], outs[3]]), A - 1)
    with np.errstate(all="ignore"):
        expected = np.log(A - 1) / (A - 1)
    for result in made:
        np.testing.assert_array_equal(result, expected)


def test_a_state_is_written_in_one_branch():
    build = Builder()
    x = build.input()
    state = build.value(storage=Storage(StorageKind.STATE, 0))
    first, second = build.value(), build.value()
    writes = (
        build.call("add.Tensor", Ref(state), Ref(x), 1, out=first),
        build.call("copy.default", Ref(state), Ref(first), False, out=state),
    )
    blocks = Block((), (first,), writes), Block((), (second,), (build.call("mul.Tensor", Ref(x), Ref(x), out=second),))
    call = StructuredCall(Structure.PARALLEL, (), 0, blocks, (first, second))
    program = build.program([call], [first, second])
    with LoadedProgram(program) as loaded:
        for turn in range(1, 5):
            made = loaded(B)
            np.testing.assert_array_equal(made[0], 8 + turn * B)
            np.testing.assert_array_equal(made[1], B * B)
            np.testing.assert_array_equal(loaded.states["state"], made[0])


def endless() -> Program:
    """A branch that never ends beside one that adds; and then one that never ends in each."""
    build = Builder()
    x, y = build.input(), build.input()
    blocks, outs = [], []
    for _ in range(3):
        inside, more = build.value(), build.value((), DType.bool)
        body_in, body_out, out = build.value(), build.value(), build.value()
        condition = Block((inside,), (more,), (build.call("any.default", Ref(inside), out=more),))
        body = Block((body_in,), (body_out,), (build.call("add.Tensor", Ref(body_in), Ref(y), 1, out=body_out),))
        blocks.append(Block((), (out,), (StructuredCall(Structure.WHILE, (x,), 1, (condition, body), (out,)),)))
        outs.append(out)
    return build.program([StructuredCall(Structure.PARALLEL, (), 0, tuple(blocks), tuple(outs))], outs)


def interrupted(call: Callable[[], Any], after: float) -> None:
    """Interrupt this thread's call, as Ctrl-C does; again where Python dropped that, as it does in a finalizer."""
    assert threading.current_thread() is threading.main_thread()
    ended = threading.Event()

    def interrupt() -> None:
        time.sleep(after)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        while not ended.wait(20):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    ended.set()
    sender.join()


def test_loops_without_end_are_interrupted():
    with LoadedProgram(endless()) as loaded:
        one = np.ones((2, 2), np.float32)
        interrupted(lambda: loaded(one, one), 0.3)
        made = loaded(one * 0, one)  # the condition does not hold: no turn
        assert [np.array_equal(m, one * 0) for m in made] == [True] * len(made) != []
        interrupted(lambda: loaded(one, one), 0.2)


@pytest.mark.parametrize("kept", [False, True])
def test_an_isolated_delegate_that_hangs_is_interrupted(kept):
    """Also the one of a branch that another thread runs; it is no failure, and the next call is right."""
    with LoadedProgram(towers(2, fallback=kept), isolate=True) as loaded:
        assert right(loaded)
        interrupted(lambda: loaded(X * stranger.HANG, X), 0.5)
        assert right(loaded)
        assert loaded.fallback_events == ()


def test_what_runs_beside_ends_before_an_interrupt_is_raised():
    """Until then it uses the context's memory."""
    running: list[int] = []
    begun = threading.Event()

    class Long:
        def __call__(self) -> None:
            running.append(1)
            if len(running) == 2:
                begun.set()
            try:
                begun.wait(60)
                until = time.perf_counter() + 1
                while time.perf_counter() < until:
                    time.sleep(0.01)
            finally:
                running.pop()

        def failed(self, error: BaseException) -> DelegateError:
            return KernelError(str(error))

    step = ParallelStep("here", [[Long()], [Long()]], Stop([]), Workers(1))

    def call() -> None:
        try:
            step()
        finally:
            assert begun.is_set()
            assert not running

    interrupted(call, 0.5)


def test_a_signal_that_another_thread_is_given_interrupts_too():
    """The system may hand it to any thread; the caller's only waits then, for a branch without end."""
    begun, stop = threading.Event(), Stop([])

    class Endless:
        def __call__(self) -> None:
            begun.set()
            while True:
                stop()
                time.sleep(0.01)

        failed = staticmethod(stop.failed)

    def interrupt() -> None:
        begun.wait(60)
        time.sleep(0.3)
        signal.raise_signal(signal.SIGINT)  # in this very thread

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        ParallelStep("here", [[Endless()], []], stop, Workers(1))()
    sender.join()


def test_helpers_end_with_the_program():
    def helpers() -> int:
        return sum(t.name == "delegate-branch" for t in threading.enumerate())

    def waits(count: int) -> bool:
        until = time.perf_counter() + 20
        while helpers() > count and time.perf_counter() < until:
            time.sleep(0.01)
        return helpers() <= count

    gc.collect()
    before = helpers()
    for close in (True, False):
        loaded = LoadedProgram(towers(3))
        loaded._shared.workers._most = 2
        loaded(X * stranger.SLOW, X)
        assert helpers() > before
        if close:
            loaded.close()
            assert waits(before)
        del loaded
        gc.collect()
        assert waits(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_goes_on():
    with LoadedProgram(towers(3)) as loaded:
        assert right(loaded, count=3)
        context = loaded.context()
        if (child := os.fork()) == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)
                good = right(loaded, 2, count=3) and right(context, 3, count=3) and right(loaded.context(), count=3)
                loaded.close()
                os._exit(0 if good else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert right(loaded, count=3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_may_be_forked_in_the_middle_of_a_call():
    """The threads that were at work are not there; nothing waits for them."""
    with LoadedProgram(towers(3)) as loaded:
        caller = threading.Thread(target=loaded, args=(X * stranger.SLOW, X))
        caller.start()
        time.sleep(0.2)
        if (child := os.fork()) == 0:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(60)
                os._exit(0 if right(loaded, 2, count=3) else 1)
            finally:
                os._exit(2)
        caller.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Shares(stranger.StrangerRuntime):
    load_options = {"threads": int}  # noqa: RUF012


@pytest.mark.parametrize(
    ("given", "at_load", "told"),
    [({}, {}, 2), ({"threads": None}, {}, 2), ({"threads": 0}, {}, 2), ({"threads": 3}, {}, 3),
     ({}, {"sharing": {"threads": 4}}, 4), ({"threads": None}, {"sharing": {"threads": 0}}, 2)],
)  # fmt: skip
def test_branches_share_the_cores(monkeypatch, given, at_load, told):
    """Unless it was said how many threads a backend takes."""
    seen: list[Any] = []
    paths = (f"{__name__}:None", f"{__name__}:Shares")
    default_registry().register(BackendInfo("sharing", "", *paths, lambda: Availability(True), "nothing"))
    monkeypatch.setattr("delegate.runtime.parallel.cores", lambda: 5)
    monkeypatch.setattr(Shares, "init", lambda self, blob, specs: seen.append(specs["threads"]) or stranger.Adder())
    program = towers(2, depth=1, backend="sharing", specs=lambda n: given)
    with load(serialize(program), options=at_load) as loaded:
        assert right(loaded, depth=1)
    assert seen == [told, told]
