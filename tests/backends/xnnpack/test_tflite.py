"""The writer of TFLite models, and the proof that XNNPACK runs them completely."""

import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from torch import nn

from delegate.backend.aot import RegionRefused
from delegate.backend.lowering import Lowering, LoweringTable
from delegate.backends.xnnpack.aot.backend import XnnpackBackend, XnnpackOptions, find_rejected
from delegate.backends.xnnpack.aot.tflite import Model
from delegate.verdict import YES
from tests.backends.xnnpack.harness import export, lower, region_of
from tests.support.functions import Function


def chain(*names):
    """Return a model that applies a chain of operators of one operand."""
    model = Model()
    x = first = model.tensor((2, 3))
    for position, name in enumerate(names):
        y = model.tensor((2, 3))
        model.operator(name, [x], [y], {}, f"node_{position}")
        x = y
    return model, [first], [x]


def test_same_calls_give_same_bytes():
    def build():
        torch.manual_seed(0)
        return lower(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), (torch.randn(1, 3, 8, 8),)).result.blob

    assert build() == build()


def test_constants_are_stored_once_and_aligned():
    model = Model()
    a = np.arange(1000, dtype=np.float32)
    first = model.constant(a)
    assert model.constant(a.copy()) == first
    other_shape = model.constant(a.reshape(10, 100))
    assert other_shape != first
    x, y = model.tensor((1000,)), model.tensor((1000,))
    model.operator("ADD", [x, first], [y], {"table": "AddOptions"}, "add")
    blob = model.finish([x], [y])
    assert blob.count(a.tobytes()) == 1
    assert blob.find(a.tobytes()) % 16 == 0
    read = schema.ModelT.InitFromPackedBuf(blob)
    tensors = read.subgraphs[0].tensors
    assert tensors[first].buffer == tensors[other_shape].buffer


def test_large_constants_are_not_copied_into_lists():
    model = Model()
    big = np.zeros((1024, 1024, 8), np.float32)
    index = model.constant(big)
    assert len(model.finish([index], [index])) < big.nbytes + 4096


@pytest.mark.parametrize("names", [("NEG",), ("NEG", "ABS"), ("EXP", "LOG", "SQRT")], ids=str)
def test_completely_supported_models(names):
    model, inputs, outputs = chain(*names)
    assert find_rejected(model, model.finish(inputs, outputs)) == {}


@pytest.mark.parametrize(
    ("names", "culprits"),
    [
        (("SIGN",), ["node_0"]),
        (("SIGN", "ABS"), ["node_0"]),
        (("ABS", "SIGN"), ["node_1"]),
        (("NEG", "SIGN", "ABS", "SIGN"), ["node_1", "node_3"]),
    ],
    ids=str,
)
def test_culprits_are_named(names, culprits):
    model, inputs, outputs = chain(*names)
    reasons = find_rejected(model, model.finish(inputs, outputs))
    assert sorted(reasons) == culprits
    assert all("SIGN" in why for why in reasons.values())


def test_preprocess_raises_with_the_node_of_the_graph():
    class Wrong(XnnpackBackend):
        table = LoweringTable()

    for row in XnnpackBackend.table:
        Wrong.table.add(row)
    Wrong.table.add(
        Lowering(
            "aten.sign.default", lambda node: YES, lambda b, n: b.set(n, b.emit("SIGN", [b.operand(n.args[0])], (3,)))
        )
    )
    region = region_of(export(Function(lambda x: torch.sign(x * 2) + 1), (torch.randn(3),)))
    with pytest.raises(RegionRefused) as caught:
        Wrong(XnnpackOptions()).preprocess(region)
    assert set(caught.value.reasons) == {"sign"}
