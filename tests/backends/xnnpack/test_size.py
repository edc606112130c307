"""Partitions whose constants exceed one TFLite model are cut; a node that exceeds it goes to other backends."""

import pytest
import torch
from torch import nn

import delegate
from delegate.backends.xnnpack.aot import tflite
from delegate.backends.xnnpack.aot.backend import XnnpackBackend
from delegate.testing import assert_same


class Layers(nn.Module):
    """Linear layers, two of which share their weight; a split whose parts are far from it; a branch around all."""

    def __init__(self, count, size, shared=True):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(count)])
        if shared:
            self.layers[1].weight = self.layers[0].weight

    def forward(self, x):
        first, second = x.split(x.shape[-1] // 2, -1)
        y = torch.cat([second, first], -1)
        for layer in self.layers:
            y = layer(y).relu()
        return y + torch.cat([first.exp(), second], -1)


@pytest.mark.parametrize(("most", "partitions"), [(None, 1), (10**9, 1), (4 * 272, 2), (2 * 272, 4), (300, 7)])
def test_partitions_are_cut(monkeypatch, tmp_path, most, partitions):
    monkeypatch.setattr(XnnpackBackend, "most_constants", most)
    module, x = Layers(8, 16).eval(), torch.randn(3, 16)
    program = delegate.to_backend(
        torch.export.export(module, (x,)), config={"backends": ["xnnpack"], "partitioning": {"min_partition_size": 0}}
    )
    assert len(program.report.partitions) == partitions
    assert {n.backend for n in program.report.nodes} == {"xnnpack"}
    with torch.no_grad():
        assert_same(program(x), module(x))
    again = delegate.to_backend(
        torch.export.export(module, (x,)),
        config={"backends": ["xnnpack"], "partitioning": {"min_partition_size": 0}},
        placement=program.plan,
    )
    assert [p.nodes for p in again.report.partitions] == [p.nodes for p in program.report.partitions]


def test_a_node_that_exceeds_the_limit_stays_portable(monkeypatch):
    monkeypatch.setattr(tflite, "_LIMIT", 1000)
    module, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 40), nn.Linear(40, 4)).eval(), torch.randn(3, 8)
    program = delegate.to_backend(torch.export.export(module, (x,)), "xnnpack")
    (left,) = [n for n in program.report.nodes if n.backend == "portable" and "linear" in n.op]
    assert "a TFLite model holds less than 2 GiB" in str(left.verdicts["xnnpack"])
    with torch.no_grad():
        assert_same(program(x), module(x))


@pytest.mark.slow
def test_more_than_2_gib():
    """Nine layers of 256 MiB each."""
    module = Layers(9, 8192, shared=False)
    with torch.no_grad():
        for i, layer in enumerate(module.layers):
            layer.weight.fill_(1 / 8192)
            layer.bias.fill_(i)
    x = torch.ones(1, 8192)
    program = delegate.to_backend(torch.export.export(module.eval(), (x,)), "xnnpack")
    assert len(program.report.partitions) == 2
    with torch.no_grad():
        assert_same(program(x), module(x))
