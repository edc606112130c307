"""Plans as data: saved, compared, applied again; and what is said where one cannot be kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import delegate
from delegate.backend.info import Availability, BackendInfo
from delegate.backends.xnnpack.aot.backend import XnnpackBackend
from delegate.errors import ConfigError, PartitionError
from delegate.registry import default_registry

pytestmark = pytest.mark.usefixtures("vector")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x)) + x
        x = torch.cond(x.sum() > 0, lambda x: torch.tanh(x) * x, lambda x: x - 1, (x,))
        return torch.sin(self.second(torch.cumsum(x, 1)))


X = torch.linspace(-1, 1, 16).reshape(2, 8)


def export() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    with torch.no_grad():
        return torch.export.export(Net().eval(), (X,))


def places(program: delegate.CompiledProgram) -> list[tuple[str, str, str]]:
    return [(n.name, n.backend, n.partition) for n in program.report.nodes]


@pytest.mark.parametrize("backends", [["xnnpack"], ["vector", "xnnpack"], ["xnnpack", "vector"], []], ids=str)
def test_a_plan_that_was_saved_is_kept(backends: list[str], tmp_path: Path) -> None:
    first = delegate.to_backend(export(), backends)
    first.plan.save(tmp_path / "plan.json")
    again = delegate.to_backend(export(), backends[::-1], placement=delegate.SavedPlan.load(tmp_path / "plan.json"))
    assert places(again) == places(first)
    assert again.plan == first.plan == delegate.SavedPlan.load(tmp_path / "plan.json")
    assert torch.equal(again(X), first(X))


def test_differences_name_what_moved() -> None:
    ours = delegate.to_backend(export(), ["vector", "xnnpack"]).plan
    theirs = delegate.to_backend(export(), "xnnpack").plan
    moved = ours.differences(theirs)
    assert "forward: :aten.tanh.default#0: vector -> xnnpack" in moved
    assert any(line.startswith("forward.true_graph_0: ") for line in moved)
    assert ours.differences(ours) == ()
    assert len(theirs.differences(ours)) == len(moved)


def edited(plan: delegate.SavedPlan, old: str, new: str) -> delegate.SavedPlan:
    return delegate.SavedPlan.from_json(plan.to_json().replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            *("first:aten.linear.default#0", "third:aten.linear.default#0"),
            "third:aten.linear.default#0 of forward on xnnpack (forward has no such node)",
        ),
        ('"xnnpack", "nodes"', '"vector", "nodes"', "in its decomposition, aten.addmm.default: vector has no"),
        ('"xnnpack", "nodes"', '"acme", "nodes"', "'acme', which is not among the backends"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_an_error(old: str, new: str, said: str) -> None:
    plan = edited(delegate.to_backend(export(), ["xnnpack"]).plan, old, new)
    with pytest.raises(PartitionError, match="plan") as caught:
        delegate.to_backend(export(), ["xnnpack", "vector"], placement=plan)
    assert said in str(caught.value)


def test_what_is_no_plan_is_named_with_its_file(tmp_path: Path) -> None:
    """Other texts are among the tests of the partitioner."""
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(PartitionError, match=r"the plan cannot be read.*plan\.json"):
        delegate.to_backend(export(), "xnnpack", placement=delegate.SavedPlan.load(tmp_path / "plan.json"))
    with pytest.raises(PartitionError, match="absent"):
        delegate.SavedPlan.load(tmp_path / "absent.json")


class Whole(XnnpackBackend):
    """Wants softmax whole, which changes the graph that is planned for everybody."""

    name = "whole"

    @property
    def preserve_ops(self) -> frozenset[str]:
        return frozenset({*super().preserve_ops, "aten.softmax.int"})


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.mT, -1) @ x


@pytest.mark.parametrize("turned", [False, True])
def test_a_plan_is_kept_though_other_backends_want_other_forms(turned: bool) -> None:
    runtime = "delegate.backends.xnnpack.runtime.delegate:XnnpackRuntime"
    info = BackendInfo(Whole.name, "", f"{__name__}:Whole", runtime, lambda: Availability(True), "")
    default_registry().register(info)
    exported = torch.export.export(Attention(), (torch.ones(2, 8, 8),))
    lists = [["xnnpack"], ["xnnpack", "whole"]]
    made, kept = lists[::-1] if turned else lists
    plans = [delegate.to_backend(exported, names).plan for names in (made, kept)]
    again = delegate.to_backend(exported, ["xnnpack", "whole"], placement=plans[0])
    assert again.plan == plans[0]
    assert "aten.softmax.int" in plans[0].differences(plans[1])[0]


def test_a_plan_of_more_methods_says_which_are_missing() -> None:
    both = delegate.to_backend({"one": export(), "two": export()}, "xnnpack").plan
    with pytest.raises(PartitionError, match=r"there is no graph two"):
        delegate.to_backend({"one": export()}, "xnnpack", placement=both)


def test_what_is_no_plan_at_all() -> None:
    with pytest.raises(ConfigError, match="placement cannot be a list"):
        delegate.to_backend(export(), "xnnpack", placement=["plan.json"])  # type: ignore[arg-type]


def test_the_documented_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(
        r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs" / "reference" / "plans.md").read_text(), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.splitlines()[0] == "forward: 0:aten.linear.default#0: xnnpack -> portable"
