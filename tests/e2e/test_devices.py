"""Tensors between partitions of one device stay in its memory, whatever else runs, and whatever fails."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.compiled import CompiledProgram
from delegate.errors import BackendFailed, DeviceLost, ProgramError
from delegate.memory.planner import plan_buffers
from delegate.program.file import serialize
from delegate.program.lifetimes import Lifetime
from delegate.program.model import COPY_ACROSS, MethodDefinition, Ref, Storage, StorageKind
from delegate.program.segments import align
from delegate.program.verifier import verify
from delegate.registry import Registry, default_registry
from delegate.report import Report
from delegate.runtime.loaded import LoadedProgram
from tests.e2e import device_backend
from tests.support import vector_backend
from tests.support.lowering import assert_same, compiled, relative_error
from tests.support.plugins import registered


@pytest.fixture(autouse=True)
def toy() -> Iterator[Registry]:
    """A registry that has the toy device and, beside it, the vector backend; a fresh record of what the device did."""
    yield from registered(device_backend.info(), vector_backend.INFO)
    for record in (device_backend.FAULTS, device_backend.ALLOCATED, device_backend.EXECUTED, device_backend.WRITTEN):
        record.clear()


class Residual(nn.Module):
    """`kept` passes by what a kernel does: the device has it when it goes on."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        kept = torch.tanh(a)
        return torch.cumsum(torch.neg(kept), 0) + kept


class Shared(nn.Module):
    """`kept` is wanted by the device, by a kernel, and by the caller."""

    def forward(self, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.tanh(a)
        return torch.cumsum(kept, 0) + kept, kept


class Chain(nn.Module):
    """Four partitions; what the first keeps for the second is dead when the third keeps something for the fourth."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        first = torch.tanh(a)
        second = torch.neg(torch.cumsum(torch.neg(first), 0) + first)
        third = torch.cumsum(torch.tanh(second), 0) * second
        return torch.cumsum(torch.neg(third), 0) + third


class Branches(nn.Module):
    """Control flow whose bodies read what the device made outside, and keep something of their own."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        kept = torch.tanh(a)

        def then(t: torch.Tensor) -> torch.Tensor:
            inner = torch.neg(t)
            return torch.cumsum(torch.tanh(inner), 0) + inner

        summed = torch.cumsum(torch.neg(kept), 0)
        return torch.cond(summed.sum() > 0, then, lambda t: t * 2.0, (kept,)) + kept


class Stateful(nn.Module):
    """A state on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3, 4))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        kept = torch.tanh(a)
        self.total.add_(torch.cumsum(torch.neg(kept), 0))
        return self.total + kept


class Alone(nn.Module):
    """Two partitions that share the caller's tensor alone."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.neg(torch.cumsum(torch.tanh(a), 0)) + a, 0)


class Twice(nn.Module):
    """Three partitions: two read the caller's tensor, and two one that a kernel makes."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        summed = torch.cumsum(torch.tanh(a), 0)
        return torch.cumsum(torch.neg(summed), 0) * torch.neg(a) + summed


def x(rows: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


class Picked(nn.Module):
    """Rows that the data chooses."""

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        kept = torch.tanh(a)
        return torch.cumsum(torch.neg(kept), 0)[torch.cumsum(kept + kept, 0)[:, 0] > 0] * 2.0


CUMSUM = {"aten.cumsum.default": 1}
# Module -> the operators that the toy backend refuses, if they are others.
REFUSED = {
    Chain: {"aten.cumsum.default": 3},
    Alone: {"aten.cumsum.default": 2},
    Twice: {"aten.cumsum.default": 2},
    Branches: {"aten.cumsum.default": 2, "aten.sum.dim_IntList": 1, "aten.gt.Scalar": 1, "cond": 1},
    Picked: {"aten.cumsum.default": 2, "aten.select.int": 1, "aten.gt.Scalar": 1, "aten.index.Tensor": 1},
}


def lowered(module: nn.Module, *, keep: str = "", **changes: Any) -> CompiledProgram:
    config: dict[str, Any] = {"backends": ["toy"]}
    if keep:
        config["fallback"] = {"keep": True, "policy": keep}
    portable = CUMSUM | REFUSED.get(type(module), {})
    return compiled(module, (x(),), config=config, portable=portable, **changes)


def on_device(method: MethodDefinition) -> list[str]:
    return [v.name for v in method.values if v.storage.kind is StorageKind.ARENA and v.storage.index]


def fetches(program: Any) -> int:
    return sum(
        program.operators[c.operator] == COPY_ACROSS for c in program.methods[0].instructions if hasattr(c, "operator")
    )


@pytest.mark.parametrize(
    ("module", "kept", "fetched", "kinds"),
    [
        (Residual(), 1, 0, [("a", "da"), ("ad", "a")]),
        (Shared(), 1, 1, [("a", "d"), ("ad", "a")]),
        (Chain(), 3, 0, [("a", "da"), ("ad", "da"), ("ad", "da"), ("ad", "a")]),
    ],
    ids=lambda p: type(p).__name__ if isinstance(p, nn.Module) else "",
)
def test_what_passes_between_partitions_stays(module, kept, fetched, kinds):
    program = lowered(module)
    assert_same(program(x()), module(x()))
    assert [(sorted(i), sorted(o)) for i, o in device_backend.EXECUTED] == [(sorted(i), sorted(o)) for i, o in kinds]
    method = program.program.methods[0]
    assert len(on_device(method)) == kept
    assert fetches(program.program) == fetched
    blocks = min(kept, 2)  # what lives at different times shares one
    assert method.arenas[1] == sum(device_backend.ALLOCATED) == 64 * blocks
    with delegate.load(serialize(program.program)) as loaded:
        assert loaded.program.spaces == program.program.spaces
        assert (
            relative_error(loaded(x().numpy()) if not fetched else loaded(x().numpy())[0], _first(module(x()))) < 1e-6
        )


def _first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize(
    ("module", "shared", "copied_in"),
    [(Alone(), 1, [48, 48]), (Twice(), 2, [48, 48, 48])],
    ids=lambda p: type(p).__name__ if isinstance(p, nn.Module) else "",
)
@pytest.mark.parametrize("rows", [(3, 3), (3, 6, 2)], ids=["static", "dynamic"])
def test_what_several_partitions_read_is_copied_in_once(module, shared, copied_in, rows):
    shapes = ({0: Dim("rows", max=6)},) if 6 in rows else None
    program = lowered(module, keep="allow", dynamic_shapes=shapes)
    assert [p.copied_in for p in program.report.partitions] == copied_in
    assert "a" in program.report.partitions[-1].stays
    for seed, count in enumerate(rows):
        assert_same(program(x(count, seed)), module(x(count, seed)))
    assert sum(device_backend.WRITTEN) == sum(shared * x(count).nbytes for count in rows)
    device_backend.FAULTS.add("write")
    with LoadedProgram(program.program) as loaded:
        for seed in range(2):
            assert relative_error(loaded(x(seed=seed).numpy()), module(x(seed=seed))) < 1e-6
        assert [e.partition for e in loaded.fallback_events] == [d.name for d in program.program.delegates]
    with pytest.raises(DeviceLost, match="partition toy_0 of toy"):
        LoadedProgram(program.program, fallback="error")(x().numpy())
    default_registry.cache_clear()
    default_registry().register(device_backend.info("HostRuntime"))
    assert relative_error(LoadedProgram(program.program)(x().numpy()), module(x())) < 1e-6


def test_the_host_has_no_room_for_it():
    with_space = lowered(Residual()).program.methods[0]
    without = compiled(Residual(), (x(),), backends="vector", portable=CUMSUM).program.methods[0]
    assert with_space.arenas[0] == without.arenas[0] - align(x().nbytes)
    assert with_space.arenas[1:] == (align(x().nbytes),)
    assert without.arenas[1:] == ()


@pytest.mark.parametrize("module", [Branches(), Stateful()], ids=["control flow", "states"])
def test_all_that_programs_do(module):
    program = lowered(module)
    assert len(on_device(program.program.methods[0])) >= 1
    for seed in range(3):
        assert_same(program(x(seed=seed)), module(x(seed=seed)))


@pytest.mark.parametrize("largest", [6, None], ids=["bounded", "unbounded"])
def test_dynamic_sizes(largest):
    program = lowered(Residual(), dynamic_shapes=({0: Dim("rows", max=largest)},), keep="")
    for rows in (3, 2, 6, 5, 3):
        assert_same(program(x(rows)), Residual()(x(rows)))
    assert device_backend.EXECUTED
    assert set(device_backend.EXECUTED) <= {("a", "da"), ("a", "ad"), ("ad", "a"), ("da", "a")}
    if largest:
        assert [align(x(largest).nbytes)] == device_backend.ALLOCATED  # one block for all sizes


def test_sizes_of_data_keep_the_host_and_say_so():
    program = lowered(Picked())
    assert_same(program(x()), Picked()(x()))
    assert on_device(program.program.methods[0]) == []
    assert any("sizes depend on data" in note for note in program.report.notes)


def test_contexts_threads_and_profiles():
    program = LoadedProgram(lowered(Stateful()).program)
    contexts = [program.context() for _ in range(4)]

    def work(number: int) -> float:
        module, worst = Stateful(), 0.0
        for seed in range(20):
            a = x(seed=100 * number + seed)
            worst = max(worst, relative_error(contexts[number](a.numpy()), module(a)))
        return worst

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(4))) < 1e-5
    program.reset()
    state = program.snapshot()
    with program.profile() as profile:
        first = program(x().numpy())
        program.restore(state)
        assert np.array_equal(program(x().numpy()), first)
    assert {t.what: t.count for t in profile.timings}["partition toy_0"] == 2
    program.close()


# What fails, and how often each partition runs on the device in two calls, by the policy.
@pytest.mark.parametrize(
    ("fault", "event"),
    [
        ("init toy_0", "partition toy_0 runs on portable kernels because toy failed at load"),
        ("init toy_1", "partition toy_1 runs on portable kernels because toy failed at load"),
        ("execute toy_0", "partition toy_0 runs on portable kernels because toy failed at run"),
        ("execute toy_1", "partition toy_1 runs on portable kernels because toy failed at run"),
        (
            "allocate",
            "toy_0 writes its results to the host because toy could not allocate memory: "
            "MemoryError: the device is full",
        ),
    ],
)
@pytest.mark.parametrize("module", [Residual(), Shared()], ids=["residual", "shared"])
def test_fallbacks(module, fault, event):
    program = lowered(module, keep="allow").program
    device_backend.FAULTS.add(fault)
    with LoadedProgram(program) as loaded:
        for seed in range(3):
            result = loaded(x(seed=seed).numpy())
            assert relative_error(_first(result), _first(module(x(seed=seed)))) < 1e-6
        assert relative_error(_first(loaded.context()(x().numpy())), _first(module(x()))) < 1e-6
        assert any(event in str(e) for e in loaded.fallback_events)
        assert len(loaded.fallback_events) == 1
    with pytest.raises(BackendFailed, match=r"partition toy_[01] of toy"):
        LoadedProgram(program, fallback="error")(x().numpy())


def test_both_fail_in_turn():
    program = lowered(Residual(), keep="warn").program
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = LoadedProgram(program)
        for fault in ("", "execute toy_0", "execute toy_1"):
            device_backend.FAULTS.add(fault)
            assert relative_error(loaded(x().numpy()), Residual()(x())) < 1e-6
    assert [e.partition for e in loaded.fallback_events] == ["toy_0", "toy_1"]
    assert len(caught) == 2


@pytest.mark.parametrize("module", [Residual(), Shared(), Chain()], ids=lambda m: type(m).__name__)
def test_a_device_that_is_lost_within_a_call(module):
    """What lies there cannot be had any more: the call begins again, on kernels."""
    program = LoadedProgram(lowered(module, keep="allow").program)
    device_backend.FAULTS.update({"execute toy_1", "read"})
    for seed in range(2):
        assert relative_error(_first(program(x(seed=seed).numpy())), _first(module(x(seed=seed)))) < 1e-6
    assert {e.partition for e in program.fallback_events} == {d.name for d in program.program.delegates}


def test_a_call_that_writes_states_is_not_run_again():
    program = LoadedProgram(lowered(Stateful(), keep="allow").program)
    device_backend.FAULTS.update({"execute toy_1", "execute toy_2", "read"})
    with pytest.raises(DeviceLost, match=r"the device is lost.*partition toy_[12]"):
        program(x().numpy())
    program.reset()
    assert relative_error(program(x().numpy()), Stateful()(x())) < 1e-6


def test_a_lost_device_without_fallback():
    program = LoadedProgram(lowered(Residual()).program)
    device_backend.FAULTS.add("execute toy_1")
    with pytest.raises(BackendFailed, match="partition toy_1"):
        program(x().numpy())
    device_backend.FAULTS.clear()
    assert relative_error(program(x().numpy()), Residual()(x())) < 1e-6


def test_a_failed_read_names_the_partition():
    program = LoadedProgram(lowered(Shared()).program)
    device_backend.FAULTS.add("read")
    with pytest.raises(BackendFailed, match="partition toy_0 of toy"):
        program(x().numpy())
    device_backend.FAULTS.clear()
    assert relative_error(program(x().numpy())[0], Shared()(x())[0]) < 1e-6


def test_without_memory_of_the_device_arrays_are_given():
    program = lowered(Residual()).program
    default_registry.cache_clear()
    default_registry().register(device_backend.info("HostRuntime"))
    assert relative_error(LoadedProgram(program)(x().numpy()), Residual()(x())) < 1e-6
    assert device_backend.EXECUTED == [("a", "aa"), ("aa", "a")]


def test_the_report_counts_copies():
    report = lowered(Shared()).report
    size = x().nbytes
    first, second = report.partitions
    assert (first.space, first.copied_in, first.copied_out, first.stays) == ("sram", size, size, ("tanh",))
    assert (second.copied_in, second.copied_out, second.stays) == (size, size, ("tanh",))
    assert second.bytes_in == 2 * size
    assert Report.from_json(report.to_json()) == report
    assert "toy_0 in sram memory: 48 B from the host, 48 B to it; tanh stays there" in str(report)
    beside = compiled(Shared(), (x(),), backends="vector", portable=CUMSUM).report
    assert {(p.space, p.copied_in, p.copied_out, p.stays) for p in beside.partitions} == {("", 0, 0, ())}
    assert "from the host" not in str(beside)


def test_inspect_shows_memory_per_space(tmp_path):
    lowered(Residual()).save(tmp_path / "net.dlg")
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "net.dlg")]).stdout
    assert "64 bytes in memory 'sram' of toy" in shown
    data = json.loads(CliRunner().invoke(app, ["inspect", str(tmp_path / "net.dlg"), "--json"]).stdout)
    assert data["methods"][0]["memory"] == {"host": data["methods"][0]["arenas"][0], "toy:sram": 64}


def altered(what: str) -> Any:
    """The program of `Shared` with a wrong memory space."""
    program = lowered(Shared()).program
    (method,) = program.methods
    (kept,) = (i for i, v in enumerate(method.values) if v.name in on_device(method))
    values = list(method.values)
    fetch = next(i for i, c in enumerate(method.instructions) if getattr(c, "args", ())[:1] == (Ref(kept),))
    if what == "a kernel reads it":
        calls = list(method.instructions)
        calls[fetch] = calls[fetch]._replace(operator=program.operators.index("aten.cumsum.default"))
        return program._replace(methods=(method._replace(instructions=tuple(calls)),))
    if what == "the caller gets it":
        return program._replace(methods=(method._replace(outputs=(method.outputs[0], Ref(kept))),))
    if what in ("a kernel makes it", "from device to device"):
        made = next(i for i, v in enumerate(values) if v.storage.kind is StorageKind.ARENA and not v.storage.index)
        index = made if what == "a kernel makes it" else method.instructions[fetch].outputs[0]
        values[index] = values[index]._replace(storage=Storage(StorageKind.ARENA, 1, 0))
        return program._replace(methods=(method._replace(values=tuple(values)),))
    if what == "no such space":
        return program._replace(delegates=tuple(d._replace(space=3) for d in program.delegates))
    if what == "another backend":
        return program._replace(spaces=(program.spaces[0]._replace(backend="other"),))
    assert what == "a delegate without it"
    return program._replace(delegates=(program.delegates[0], program.delegates[1]._replace(space=0)))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a kernel reads it", "is in toy's memory 'sram', which is not accessible here"),
        ("from device to device", "not accessible here"),
        ("the caller gets it", "not accessible here.*outputs"),
        ("a kernel makes it", "not accessible here"),
        ("no such space", "there is no memory space 2, only 1"),
        ("another backend", "its tensors are declared in memory of 'other'"),
        ("a delegate without it", "not accessible here"),
    ],
)
def test_wrong_spaces_are_refused(what, message):
    with pytest.raises(ProgramError, match=message):
        verify(altered(what))


@pytest.mark.parametrize("seed", range(8))
def test_buffers(seed):
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, 50, 60)
    blocks = [Lifetime(int(rng.integers(0, 5000)), int(s), int(s + rng.integers(0, 20))) for s in starts]
    offsets, total = plan_buffers(blocks)
    sizes = {o: max(b.size for b, p in zip(blocks, offsets, strict=True) if p == o) for o in offsets}
    assert total == sum(align(max(s, 1)) for s in sizes.values()) <= sum(align(max(b.size, 1)) for b in blocks)
    for i, (a, offset) in enumerate(zip(blocks, offsets, strict=True)):
        for b, other in zip(blocks[i + 1 :], offsets[i + 1 :], strict=True):
            assert offset != other or a.end < b.start or b.end < a.start
