"""Plans that are cut into parts have the same nodes in the same places, and compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import delegate
from delegate.costs.estimates import Estimates
from delegate.costs.profile import read_shipped
from delegate.kernels.selection import kernels_of
from delegate.lowering.compiler import Compiler
from delegate.partitioner.plan import Plan
from delegate.partitioner.saved import SavedPlan
from delegate.placement.parts import MOST_PARTS, cut_into_parts
from delegate.registry import default_registry
from delegate.selection import select
from delegate.testing import assert_same
from tests.support import zoo
from tests.support.placing import Block, Looping

COSTS = Estimates(read_shipped())


class Splitting(nn.Module):
    """Several results of one node, which no cut may separate from it, and a softmax that is a pattern elsewhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            left, right = x.split(8, 1)
            x = torch.cat([torch.softmax(left, -1), torch.tanh(right) + left], 1)
        return x


MODELS = {
    "blocks": lambda: (nn.Sequential(*(Block() for _ in range(5))), (torch.randn(4, 16),)),
    "splitting": lambda: (Splitting(), (torch.randn(2, 16),)),
    "looping": lambda: (Looping(), (torch.randn(2, 8),)),
    "bert_mini": lambda: zoo.make("bert_mini"),
    "mobilenet_v3_small": lambda: zoo.make("mobilenet_v3_small"),
}


def planned(exported: torch.export.ExportedProgram) -> Plan:
    registry = default_registry()
    compiler = Compiler(select("xnnpack", None, registry), kernels_of(registry, None), costs=COSTS)
    compiler.add_methods({"forward": exported})
    fork = compiler.fork_for_way("forward", "xnnpack")
    fork.plan()
    return fork.plans[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_cut_plan_is_the_same_plan_in_more_partitions(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    with torch.no_grad():
        exported = torch.export.export(module.eval(), tuple(inputs))
        plan = planned(exported)
        cut = cut_into_parts(plan, COSTS)
        whole = SavedPlan.of([plan])
        assert cut.places() == whole.places()
        assert len(whole.partitions) <= len(cut.partitions) <= MOST_PARTS + len(whole.partitions)
        program = delegate.to_backend(exported, "xnnpack", placement=cut)
        assert program.plan.places() == cut.places()
        assert len(program.plan.partitions) == len(cut.partitions)
        assert_same(program(*inputs), module(*inputs))


def test_cuts_are_where_few_bytes_pass() -> None:
    plan = planned(torch.export.export(nn.Sequential(*(Block() for _ in range(5))).eval(), (torch.randn(4, 16),)))
    parts = cut_into_parts(plan, COSTS, 5).partitions
    assert [part.nodes[-1].partition(":")[2] for part in parts] == ["aten.add.Tensor#0"] * 5
