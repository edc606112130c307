"""Real networks by torch.compile: one graph, the partitions of an export, results as in eager."""

from __future__ import annotations

import pytest
import torch
import torch.utils._pytree as pytree

from delegate.testing import assert_same
from tests.support import zoo
from tests.support.sampling import only

from .compiling import Lowered, compile_on

# Beside the networks of the benchmark, others of torchvision.
MORE = (
    "alexnet", "vgg11", "squeezenet1_1", "shufflenet_v2_x0_5", "densenet121", "mnasnet0_5", "regnet_y_400mf",
    "resnext50_32x4d", "efficientnet_v2_s",
)  # fmt: skip
NAMES = (*zoo.ZOO, *MORE)
SLOW = only(("vit_tiny", "bert_mini"), NAMES)


def build(name: str) -> tuple[torch.nn.Module, zoo.Inputs]:
    if name in zoo.ZOO:
        return zoo.make(name)
    torch.manual_seed(0)
    inputs = (torch.randn(1, 3, 96, 96),)
    return zoo.calibrate(zoo._torchvision(name), inputs), inputs


@pytest.mark.parametrize("name", SLOW)
def test_inference(name: str, lowered: Lowered) -> None:
    net, inputs = build(name)
    with zoo.libraries(), torch.no_grad():
        actual, expected = compile_on(net)(*inputs), net(*inputs)
    actual, expected = (pytree.tree_leaves(dict(v) if hasattr(v, "keys") else v) for v in (actual, expected))
    assert_same(actual, expected, zoo.tolerance(name))
    (program,) = lowered
    assert sum(p.work for p in program.report.partitions) > 0.99
