"""Tables of deviations: every row of every installed backend is complete, and reaches reports and `delegate ops`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from delegate.backend.deviations import Deviation, Handling, deviation_notes, deviations_of
from delegate.plugins import PluginState
from delegate.registry import Registry
from delegate.verdict import Reason
from tests.support.functions import functional_operators

ROOT = Path(__file__).parents[2]
ROW = Deviation(
    "Lib 1.0", ("aten.exp", "aten.div.Tensor_mode"), "inputs over 88", "returns inf", "returns 3e38", Handling.KEPT, "t"
)


def test_rows_are_complete() -> None:
    known = {name for op in map(str, functional_operators()) for name in (op, op.rpartition(".")[0])}
    registry = Registry()
    names = {state.name for state in registry.states() if state.state is PluginState.OK}
    assert "xnnpack" in names
    for name in sorted(names):
        for row in registry.aot(name).deviations:
            path, _, test = row.test.partition("::")
            assert (ROOT / path).is_file(), (name, row)
            assert not test or f"def {test}(" in (ROOT / path).read_text("utf-8"), (name, row)
            assert all((row.library, row.domain, row.behavior, row.torch)), (name, row)
            assert known.issuperset(o for o in row.operators if o.startswith("aten.")), (name, row)


def test_an_overload_is_found_by_its_operator_and_no_other_is() -> None:
    assert deviations_of([ROW], "aten.exp.default") == (ROW,)
    assert deviations_of([ROW], "aten.div.Tensor_mode") == (ROW,)
    assert not deviations_of([ROW], "aten.div.Tensor")
    assert not deviations_of([ROW], "aten.exp2.default")


def test_a_rejection_says_what_differs() -> None:
    verdict = ROW.reject()
    assert verdict.reason is Reason.INACCURATE
    assert verdict.message == "for inputs over 88, Lib 1.0 returns inf, but torch returns 3e38"


def test_notes_name_operators_whose_difference_is_kept() -> None:
    ops = ["aten.exp.default", "aten.add.Tensor", "aten.exp.default"]
    assert list(deviation_notes([ROW], ops)) == ["differs from torch for some inputs (`delegate ops NAME`): exp"]
    assert not list(deviation_notes([ROW], ["aten.div.Tensor"]))
    assert not list(deviation_notes([replace(ROW, is_noted=False)], ops))
