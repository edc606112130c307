"""Partitions that were kept in kernels: whatever fails, the answer is right, told once, and in the report."""

from __future__ import annotations

import copy
import functools
import json
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from typer.testing import CliRunner

import delegate
from delegate.backend.info import Availability, BackendInfo
from delegate.cli.app import app
from delegate.compiled import CompiledProgram
from delegate.errors import (
    BackendBroken,
    BackendError,
    BackendFailed,
    BackendNotFound,
    BackendUnavailable,
    ConfigError,
    DelegateError,
    LoweringError,
)
from delegate.plugins import BLOCK_VARIABLE
from delegate.program.file import serialize
from delegate.program.model import Program
from delegate.registry import default_registry
from delegate.runtime.backend import Array, BackendRuntime, Delegate
from delegate.runtime.loaded import LoadedProgram
from tests.support import vector_backend
from tests.support.functions import Function
from tests.support.lowering import assert_same, compiled, relative_error
from tests.support.plugins import Site
from tests.support.processes import AHEAD_OF_TIME, run

pytestmark = pytest.mark.usefixtures("vector")


class Net(nn.Module):
    """Two partitions of the vector backend with a portable node between them, and two results of one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.cumsum(torch.tanh(a * self.scale), 0)
        return hidden + self.scale, -hidden


NET = Net().eval()
CUMSUM = {"aten.cumsum.default": 1}


def x(rows: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


ARGS = (x(),)


def lowered(module: nn.Module = NET, args: Any = ARGS, backend: str = "vector", **changes: Any) -> CompiledProgram:
    """The module with its fallbacks kept; of `NET` the cumulative sum is portable."""
    fallback = {"keep": True, **changes.pop("fallback", {})}
    portable = changes.pop("portable", CUMSUM if module is NET else None)
    config = {"backends": [backend], "fallback": fallback}
    return compiled(module, args, config=config, portable=portable, **changes)


@functools.cache
def net(policy: str = "allow") -> Program:
    """`NET` with its fallbacks kept."""
    return lowered(fallback={"policy": policy}).program


def expected(module: nn.Module, *args: torch.Tensor) -> list[np.ndarray]:
    with torch.no_grad():
        result = module(*args)
    return [t.numpy() for t in (result if isinstance(result, tuple) else (result,))]


def assert_right(program: LoadedProgram, module: nn.Module, *args: torch.Tensor) -> None:
    made = program(*(a.numpy() for a in args))
    for got, wanted in zip(made if isinstance(made, tuple) else (made,), expected(module, *args), strict=True):
        assert relative_error(got, wanted) < 1e-6


# What breaks a saved program of the adder backend when it is loaded elsewhere.


class Sum(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a + b) + b


BOTH = (x(), x(seed=1))


def _uninstalled(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setattr("sys.path", [p for p in sys.path if p != str(site.root)])


def _blocked(site: Site, patch: pytest.MonkeyPatch) -> None:
    patch.setenv(BLOCK_VARIABLE, "adder")


def _device_gone(site: Site, patch: pytest.MonkeyPatch) -> None:
    _rewrite(site, "Availability(True, ''", "Availability(False, 'no device'")


def _broken(site: Site, patch: pytest.MonkeyPatch) -> None:
    _rewrite(site, "adder_halves:Runtime", "adder_halves:Nothing")


def _rewrite(site: Site, old: str, new: str) -> None:
    """Change what the plugin says of itself, which is asked in another process."""
    source = site.root / "adder_plugin.py"
    source.write_text(source.read_text().replace(old, new))


ABSENCES: dict[str, tuple[Callable[[Site, pytest.MonkeyPatch], None], type[DelegateError], str]] = {
    "not installed": (_uninstalled, BackendNotFound, "no backend is named 'adder'"),
    "blocked": (_blocked, BackendUnavailable, BLOCK_VARIABLE),
    "device absent": (_device_gone, BackendUnavailable, "no device"),
    "plugin broken": (_broken, BackendBroken, "adder_halves:Nothing"),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", ABSENCES)
def test_a_backend_that_is_not_there(site, monkeypatch, name):
    site.backend("adder")
    kept, bare = (
        serialize(lowered(Sum(), BOTH, "adder", fallback={"keep": keep}, portable={"aten.relu.default": 1}).program)
        for keep in (True, False)
    )
    default_registry.cache_clear()
    absence, error, words = ABSENCES[name]
    absence(site, monkeypatch)
    with pytest.warns(RuntimeWarning) as caught:
        program = delegate.load(kept)
    assert len(caught) == len(program.fallback_events) == 2  # partitions
    assert_right(program, Sum(), *BOTH)
    for warning, event in zip(caught, program.fallback_events, strict=True):
        assert (event.backend, event.when) == ("adder", "load")
        assert words in event.reason
        assert str(warning.message) == str(event)
        assert str(event) in str(program.report)
    with pytest.raises(error, match=rf"{words}.*partition adder_0 of adder.*load it with fallback=\"warn\""):
        delegate.load(kept, fallback="error")
    with pytest.raises(error, match=rf"{words}.*partition adder_0 of adder.*lower with fallback\.keep: true to run it"):
        delegate.load(bare)
    assert_right(delegate.load(kept, fallback="allow"), Sum(), *BOTH)


def test_xnnpack_without_its_library(tmp_path):
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3), nn.Softmax(-1))
    lowered(module, backend="xnnpack").save(tmp_path / "net.dlg")
    np.save(tmp_path / "in.npy", x().numpy())
    code = """
import numpy as np, delegate, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    program = delegate.load(sys.argv[1] + "/net.dlg")
    np.save(sys.argv[1] + "/out.npy", program(np.load(sys.argv[1] + "/in.npy")))
print(len(caught), caught[0].message)
"""
    done = run(code, tmp_path, absent=("ai_edge_litert", *AHEAD_OF_TIME))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 partition xnnpack_0 runs on portable kernels because xnnpack failed at load: ")
    assert "pip install" in done.stdout
    assert relative_error(np.load(tmp_path / "out.npy"), expected(module, x())[0]) < 1e-5


# What a runtime part does wrong.


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class ErrorOfThePlugin(BackendFailed):
    """Made by arguments of its own."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")


class Flaky(Delegate):
    """Wraps the vector delegate: every call from number `calls` on raises `error`, after half of the outputs."""

    def __init__(self, inner: Delegate, calls: int, error: Callable[[], BaseException]) -> None:
        self.inner, self.calls, self.error, self.count, self.closed = inner, calls, error, 0, False

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.count += 1
        if self.count < self.calls:
            self.inner.execute(inputs, outputs)
            return
        for output in outputs:
            output.reshape(-1)[: output.size // 2] = 1e6
        raise self.error()

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def flaky(
    monkeypatch: pytest.MonkeyPatch, calls: int, error: Callable[[], BaseException], broken: int = 0
) -> list[Flaky]:
    """Have the runtime part make flaky delegates; of the first `broken` of them the rest is sound."""
    made: list[Flaky] = []
    init = vector_backend.VectorRuntime.init

    def wrapped(self: BackendRuntime, blob: memoryview, specs: Any) -> Delegate:
        bad = broken == 0 or len(made) < broken
        made.append(Flaky(init(self, blob, specs), calls if bad else 10**9, error))
        return made[-1]

    monkeypatch.setattr(vector_backend.VectorRuntime, "init", wrapped)
    return made


ERRORS = {
    "any": lambda: RuntimeError("the device is\ngone"),
    "its own": lambda: BackendFailed("out of memory"),
    "a subclass": lambda: ErrorOfThePlugin(7),
    "without text": Unprintable,
    "an assertion": AssertionError,
    "the end of the process": lambda: SystemExit(3),
    "memory": MemoryError,
    "of a generator": StopIteration,
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("calls", [1, 3])
def test_execute_fails(monkeypatch, name, calls):
    delegates = flaky(monkeypatch, calls, ERRORS[name])
    program = LoadedProgram(net("warn"))
    for seed in range(1, calls):
        assert_right(program, NET, x(seed=seed))
    assert program.fallback_events == ()
    given = x(seed=9).numpy()
    kept = given.copy()
    with pytest.warns(RuntimeWarning, match="vector_. runs on portable kernels because vector failed at run"):
        made = program(given)
    np.testing.assert_array_equal(given, kept)
    for got, wanted in zip(made, expected(NET, x(seed=9)), strict=True):
        assert relative_error(got, wanted) < 1e-6
    for seed in range(10, 13):
        assert_right(program, NET, x(seed=seed))  # without a warning
    assert [d.count for d in delegates] == [calls] * 2
    assert [e.when for e in program.fallback_events] == ["run"] * 2
    assert all("\n" not in str(e) for e in program.fallback_events)
    program.close()
    assert all(d.closed for d in delegates)


def test_one_of_several_partitions_fails(monkeypatch):
    delegates = flaky(monkeypatch, 2, RuntimeError, broken=1)
    program = LoadedProgram(net())
    for seed in range(4):
        assert_right(program, NET, x(seed=seed))
    assert len(delegates) == 2
    assert [d.count for d in delegates] == [2, 4]
    (event,) = program.fallback_events
    assert event.partition == "vector_0"


@pytest.mark.parametrize("fault", ["init", "execute"])
@pytest.mark.parametrize("override", [None, "allow", "warn", "error"])
@pytest.mark.parametrize("saved", ["allow", "warn", "error"])
def test_policies(fault, saved, override):
    data = serialize(net(saved))
    vector_backend.FAULTS.add(fault)
    policy = override or saved
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if policy == "error":
            with pytest.raises(BackendFailed, match=r"partition vector_0 of vector.*fallback=\"warn\""):
                delegate.load(data, fallback=override)(x().numpy())
        else:
            program = delegate.load(data, fallback=override)
            assert_right(program, NET, x())
            assert_right(program, NET, x())
            assert len(program.fallback_events) == 2
    assert len(caught) == (2 if policy == "warn" else 0)


def test_an_unknown_policy():
    with pytest.raises(ConfigError, match="'alow' is not a policy for fallbacks: did you mean 'allow'"):
        delegate.load(serialize(net()), fallback="alow")


def test_without_a_fallback_the_error_says_how_to_have_one():
    program = lowered(fallback={"keep": False}).loaded
    vector_backend.FAULTS.add("execute")
    with pytest.raises(BackendFailed, match=r"report it to the backend's author; or lower with fallback\.keep: true"):
        program(x().numpy())
    assert program.fallback_events == ()


def test_a_warning_that_is_an_error_comes_once(monkeypatch):
    flaky(monkeypatch, 1, RuntimeError, broken=1)
    program = LoadedProgram(net("warn"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DelegateError, match="partition vector_0"):
            program(x().numpy())
        assert_right(program, NET, x())


def test_states():
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4))

        def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            self.total.add_(torch.tanh(a.sum(0)))
            return self.total * 2, torch.cumsum(self.total, 0)

    module = Sums()
    portable = CUMSUM | {"aten.sum.dim_IntList": 1}
    program = lowered(copy.deepcopy(module), fallback={"policy": "allow"}, portable=portable).loaded
    for seed in range(6):
        if seed == 2:
            vector_backend.FAULTS.add("execute")
        assert_right(program, module, x(seed=seed))
    assert program.fallback_events
    program.reset()
    assert_right(program, Sums(), x())


def test_dynamic_shapes():
    rows = Dim("rows", min=1, max=64)
    program = lowered(dynamic_shapes=({0: rows},), fallback={"policy": "allow"}).loaded
    for count in (3, 1, 64):
        assert_right(program, NET, x(count))
    vector_backend.FAULTS.add("execute")
    for count in (64, 7, 1, 3, *range(20, 32), 7):  # more shapes than bindings are kept of
        assert_right(program, NET, x(count))
    assert len(program.fallback_events) == 2


def _dim(name: str) -> dict[int, Dim]:
    return {0: Dim(name, min=4, max=50)}


# The sizes of what goes into a partition, as functions of the inputs' sizes, and calls with inputs of these sizes.
SIZES: dict[str, tuple[Callable[..., torch.Tensor], tuple[Any, ...], list[tuple[int, ...]]]] = {
    "n // 2": (
        lambda a: torch.tanh(torch.sort(a.reshape(-1, 2), 1)[0]).reshape(-1),
        ({0: 2 * Dim("half", min=2, max=8)},),
        [(6,), (4,), (16,)],
    ),
    "(n + 1) // 2": (lambda a: torch.tanh(torch.cumsum(a[::2], 0)) * 2, (_dim("n"),), [(7,), (4,), (50,), (6,)]),
    "n + m": (
        lambda a, b: -torch.cat([a, b]).cumsum(0), (_dim("n"), _dim("m")), [(5, 6), (6, 5), (50, 4), (4, 4)],
    ),
    "n * m": (
        lambda a, b: torch.tanh(torch.sort((a[:, None] + b).reshape(-1))[0]), (_dim("n"), _dim("m")), [(5, 6), (9, 4)],
    ),
    "data": (lambda a: torch.tanh(torch.nonzero(a > 0)[:, 0].float()) * 2, (_dim("n"),), [(8,), (50,), (4,)]),
}  # fmt: skip

# The operators that the vector backend refuses.
OF_SIZES = {
    "n // 2": {"aten.view.default": 2, "aten.sort.default": 1},
    "(n + 1) // 2": {"aten.slice.Tensor": 1, "aten.cumsum.default": 1},
    "n + m": {"aten.cat.default": 1, "aten.cumsum.default": 1},
    "n * m": {"aten.unsqueeze.default": 1, "aten.view.default": 1, "aten.sort.default": 1},
    "data": {"aten.gt.Scalar": 1, "aten.nonzero.default": 1, "aten.select.int": 1, "aten._to_copy.default": 1},
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_are_no_symbols_of_their_own(name):
    function, dims, calls = SIZES[name]
    given = [tuple(torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in sizes) for sizes in calls]
    module = Function(function)
    fallback, portable = {"policy": "allow"}, OF_SIZES[name]
    program = lowered(module, given[0], dynamic_shapes=(dims,), fallback=fallback, portable=portable).loaded
    assert program.program.delegates
    for args in given:
        assert_right(program, module, *args)
    vector_backend.FAULTS.add("execute")
    for args in given:
        assert_right(program, module, *args)
    assert len(program.fallback_events) == len(program.program.delegates)


class Loop(nn.Module):
    """A branch within a loop; partitions in both."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(0, 1, 4))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        def more(i: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return i < 6

        def turn(i: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            b = torch.cond(b.sum() > 0, lambda c: torch.tanh(c * 2), lambda c: -c + self.shift, (b,))
            return i + 1, torch.sort(b, 0)[0] * 1.5

        return torch.while_loop(more, turn, (torch.tensor(0), a))[1]


@pytest.mark.parametrize("calls", [1, 2])
def test_partitions_in_control_flow(monkeypatch, calls):
    delegates = flaky(monkeypatch, calls, RuntimeError)
    portable = {
        "while_loop": 1, "aten.lt.Scalar": 1, "aten.sum.dim_IntList": 1, "aten.gt.Scalar": 1, "cond": 1,
        "aten.add.Tensor": 1, "aten.sort.default": 1,
    }  # fmt: skip
    program = lowered(Loop(), fallback={"policy": "allow"}, portable=portable).loaded
    for seed in range(3):
        assert_right(program, Loop(), x(seed=seed))
    assert len(program.fallback_events) == len(delegates) >= 3
    assert {d.count for d in delegates} == {calls}


def test_contexts_share_what_has_failed(monkeypatch):
    delegates = flaky(monkeypatch, 1, RuntimeError, broken=1)
    program = LoadedProgram(net())
    for context in (program.context(), program, program.context()):
        assert relative_error(context(x().numpy())[0], expected(NET, x())[0]) < 1e-6
    assert delegates[0].count == 1
    assert len(program.fallback_events) == 1


def test_two_calls_that_fail_at_once(monkeypatch):
    class Waiting(Flaky):
        thread_safe = True
        meeting = threading.Barrier(2)

        def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            self.meeting.wait(10)
            super().execute(inputs, outputs)

    monkeypatch.setattr(f"{__name__}.Flaky", Waiting)
    delegates = flaky(monkeypatch, 1, RuntimeError)
    module = nn.Sequential(nn.Tanh())
    program = lowered(module, fallback={"policy": "allow"}).loaded
    contexts = [program.context(), program.context()]
    given = [x(seed=1), x(seed=2)]
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda context, a: context(a.numpy()), contexts, given))
    for got, a in zip(made, given, strict=True):
        assert relative_error(got, expected(module, a)[0]) < 1e-6
    assert delegates[0].count == 2
    assert len(program.fallback_events) == 1


def test_the_report_of_a_program_that_was_just_compiled():
    program = lowered(fallback={"policy": "allow"})
    before = program.report
    assert not before.notes
    assert program.fallback_events == ()
    vector_backend.FAULTS.add("execute")
    assert_same(program(x()), NET(x()))
    assert program.report.notes == program.loaded.report.notes == tuple(map(str, program.fallback_events))
    assert len(program.report.notes) == 2
    assert program.report.partitions == before.partitions


def test_constants_are_stored_once():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(100, 100))

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            hidden = torch.cumsum(a + self.weight, 0)
            return torch.cumsum(hidden * self.weight, 0) + self.weight

    module = Twice()
    args = (torch.randn(100, 100),)
    both, portable = ({"keep": False}, {"keep": True}), {"aten.cumsum.default": 2}
    programs = [lowered(copy.deepcopy(module), args, fallback=f, portable=portable).program for f in both]
    sizes = [sum(memoryview(s).nbytes for s in p.segments) for p in programs]
    assert sizes[1] - sizes[0] == 40_000
    assert len(programs[1].fallbacks) == 3
    assert len(programs[1].constants) == 1


def test_what_no_kernel_runs_is_decomposed_or_named():
    class Whole(vector_backend.Vector):
        preserve_ops = frozenset({"aten.rms_norm.default", "delegate_tests.thrice.default"})

        def check(self, node):
            return vector_backend.YES

        def preprocess(self, region):
            return vector_backend.PreprocessResult(b"{}")

    @torch.library.custom_op("delegate_tests::thrice", mutates_args=())
    def thrice(a: torch.Tensor) -> torch.Tensor:
        return a * 3

    thrice.register_fake(torch.empty_like)

    class Runtime(BackendRuntime):
        def init(self, blob, specs):
            raise BackendUnavailable("nothing is here")

    globals().update(WholeOfTests=Whole, RuntimeOfTests=Runtime)
    halves = f"{__name__}:WholeOfTests", f"{__name__}:RuntimeOfTests"
    info = BackendInfo("whole", "Takes everything", *halves, lambda: Availability(True), "pip install nothing")
    Whole.name = "whole"
    default_registry().register(info)
    module = nn.RMSNorm(4)
    program = lowered(module, backend="whole", fallback={"policy": "allow"})
    assert_same(program(x()), module(x()).detach())
    assert program.loaded.fallback_events[0].reason == "BackendUnavailable: nothing is here"

    class Custom(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return thrice(a)

    with pytest.raises(LoweringError, match=r"thrice.*fallback of partition whole_0.*or set fallback\.keep to false"):
        lowered(Custom(), backend="whole")


def shown(*args: Any) -> str:
    done = CliRunner().invoke(app, [str(a) for a in args])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_line(tmp_path):
    lowered(fallback={"policy": "allow"}).save(tmp_path / "net.dlg")
    vector_backend.FAULTS.add("init")
    text = shown("inspect", tmp_path / "net.dlg")
    assert "fallback vector_0 with constants of 16 bytes" in text
    assert "on fallback: allow" in text
    data = json.loads(shown("inspect", tmp_path / "net.dlg", "--json"))
    assert [d["fallback"] for d in data["delegates"]] == [{"bytes": 16}] * 2
    text = shown("run", tmp_path / "net.dlg")
    assert "note: partition vector_1 runs on portable kernels because vector failed at load: ValueError" in text
    data = json.loads(shown("run", tmp_path / "net.dlg", "--json"))
    assert [e["partition"] for e in data["fallbacks"]] == ["vector_0", "vector_1"]


def test_errors_at_lowering_are_no_matter_of_fallbacks():
    vector_backend.FAULTS.add("preprocess")
    with pytest.raises(LoweringError, match="compiler bug"):
        lowered()
    assert issubclass(BackendFailed, BackendError)
