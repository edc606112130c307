"""Profiles: every instruction that runs is counted under its name, and watching changes no answer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from delegate.compile import to_backend
from delegate.errors import InputError
from delegate.events.kinds import Kind
from delegate.kernels.table import KernelTable
from delegate.report import Report
from delegate.runtime.profile import Durations, Profile, Timing
from tests.support.lowering import compiled, relative_error

CUMSUM = {"aten.cumsum.default": 1}  # XNNPACK has none


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, a: torch.Tensor) -> Any:
        hidden = torch.cumsum(self.linear(a), 0)
        self.total.add_(hidden.sum(0))
        return hidden.t().reshape(-1), self.total * 1


def x(rows: int) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize("backends", [[], ["xnnpack"]], ids=["portable", "xnnpack"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_every_instruction_is_counted(backends, dynamic):
    rows = {0: Dim("rows", min=1, max=16)}
    torch.manual_seed(0)
    module = Net().eval()
    portable = CUMSUM | ({"aten.view.default": 1} if dynamic else {}) if backends else None
    shapes = (rows,) if dynamic else None
    program = compiled(module, (x(3),), backends=backends, dynamic_shapes=shapes, portable=portable).loaded
    calls = [3, 5, 3] if dynamic else [3, 3, 3]

    def call(count: int) -> None:
        for got, wanted in zip(program(x(count).numpy()), module(x(count)), strict=True):
            assert relative_error(got, wanted) < 1e-5

    call(3)
    with program.profile() as profile:
        for count in calls:
            call(count)
    call(3)
    found = {(t.method, t.name, t.what): t.count for t in profile.timings}
    assert set(found.values()) == {3}
    assert ("forward", "cumsum", "aten.cumsum.default") in found
    assert any("partition xnnpack_0" in what for _, _, what in found) == bool(backends)
    assert all(t.nanoseconds > 0 for t in profile.timings)
    table = str(profile.table()).splitlines()
    titles = "method value what runs total us share warm-ups warm-up us mean us median us least us module source"
    assert table[0].split() == titles.split()
    assert len(table) == 1 + len(profile.timings)
    assert "test_profile.py" in str(profile.table())


def test_a_profile_without_runs_states_that():
    header, row = str(Profile().table()).splitlines()
    assert header.split()[:3] == ["method", "value", "what"]
    assert row == "nothing ran"


def test_warm_up_runs_are_apart():
    timing = Timing("forward", "y", "aten.add.Tensor")
    assert (timing.count, timing.per_run, timing.median, timing.minimum) == (0, 0, 0, 0)
    timing.add(9000, is_warm_up=True)
    assert (timing.count, timing.warm_up.total, timing.per_run) == (1, 9000, 9000)
    timing.add(100)
    timing.add(300)
    assert (timing.count, timing.nanoseconds, timing.warm_up.total, timing.per_run) == (3, 9400, 9000, 200)
    timing.add(110)
    assert (timing.median, timing.minimum, timing.warm_up.minimum) == (110, 100, 9000)


def test_durations_of_many_runs_have_bounded_memory():
    durations = Durations()
    for i in range(20_000):
        durations.add(1000 + i % 100)
    assert (durations.count, durations.minimum, durations.mean) == (20_000, 1000, 1049.5)
    assert durations.median == pytest.approx(1049.5, abs=5)
    assert len(durations._last) == 1024


def test_the_share_of_portable_kernels():
    """The mean of later runs counts, for each run; control flow is its instructions."""
    profile = Profile()
    rows: list[tuple[str, str, Kind, list[int]]] = [
        ("a", "x", "kernel", [9000, 10, 30]),
        ("a", "y", "partition", [50, 60, 60]),
        ("a", "z", "copy", [0, 20, 20]),
        ("a", "w", "control flow", [10**9]),
        ("b", "x", "partition", [5]),
        ("c", "x", "kernel", [0]),
    ]
    for method, name, kind, runs in rows:
        timing = Timing(method, name, name, kind=kind)
        for number, spent in enumerate(runs):
            timing.add(spent, is_warm_up=number == 0)
        profile._timings[f"{method}/{name}"] = timing
    assert profile.portable_shares() == {"a": pytest.approx(20 / (20 + 60 + 20)), "b": 0.0}


def test_the_report_has_the_measured_share_once_a_profile_ended():
    module = Net().eval()
    program = compiled(module, (x(3),), backends=["xnnpack"], portable=CUMSUM)
    portable = {n.name for n in program.report.nodes if n.backend == "portable"}
    assert portable
    assert "estimated" in program.report.summary
    program(x(3))
    assert not program.report.portable_shares
    with program.profile() as profile:
        for _ in range(3):
            program(x(3))
        assert not program.report.portable_shares
    assert {t.kind for t in profile.timings} == {"kernel", "partition"}
    spent = {kind: sum(t.per_run for t in profile.timings if t.kind == kind) for kind in ("kernel", "partition")}
    share = spent["kernel"] / sum(spent.values())
    assert program.report.portable_shares == program.loaded.report.portable_shares == {"forward": pytest.approx(share)}
    assert re.search(rf"; {len(portable)} nodes? portable, [<\d.]+% of the time, measured$", program.report.summary)
    assert "estimated" not in str(program.report)
    assert Report.from_json(program.report.to_json()) == program.report
    with program.context().profile():  # of another context, in which nothing ran
        pass
    assert program.report.portable_shares == {"forward": pytest.approx(share)}


def test_the_share_is_that_of_the_last_profile_of_any_context():
    program = compiled(Net().eval(), (x(3),), backends=["xnnpack"], portable=CUMSUM).loaded
    for context in (program, program.context(), program):
        with context.profile() as profile:
            context(x(3).numpy())
        assert program.report.portable_shares == profile.portable_shares()


def test_control_flow_holds_its_blocks():
    class Loop(nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return torch.while_loop(lambda i, b: i < 5, lambda i, b: (i + 1, torch.sin(b)), (torch.tensor(0), a))[1]

    program = compiled(Loop(), (x(3),)).loaded
    with program.profile() as profile:
        program(x(3).numpy())
    counts = {t.what: t.count for t in profile.timings}
    assert (counts["while"], counts["aten.sin.default"]) == (1, 5)
    spent = {t.what: t.nanoseconds for t in profile.timings}
    assert spent["while"] > spent["aten.sin.default"]
    assert program.report.portable_shares == {"forward": 1.0}


def test_a_single_delegate_and_a_failing_call():
    program = compiled(nn.Linear(4, 2).eval(), (x(3),), backends=["xnnpack"]).loaded
    with program.profile() as profile:
        program(x(3).numpy())
        with pytest.raises(InputError):
            program(x(2).numpy())
    assert [(t.what, t.count) for t in profile.timings] == [("partition xnnpack_0", 1)]
    program(x(3).numpy())
    assert profile.timings[0].count == 1  # nobody watches any more


def test_kernels_of_other_libraries_are_named():
    table = KernelTable("mine")

    @table.kernel("aten.cumsum.default")
    def cumsum(x, dim, dtype, *, out):
        np.cumsum(x, dim, out=out)

    program = to_backend(torch.export.export(Net(), (x(2),)), [], kernels=[table])
    with program.profile() as profile:
        program(x(2))
    assert {t.library for t in profile.timings} == {"mine", "portable"}
    assert "aten.cumsum.default (mine)" in str(profile.table())
    assert {row["library"] for row in profile.to_json()} == {"mine", "portable"}
