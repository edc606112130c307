"""Real architectures, lowered to XNNPACK: almost all in one partition, eager's numbers, also from a file."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree

import delegate
from tests.support import zoo
from tests.support.lowering import relative_error
from tests.support.sampling import only

QUICK = ("mobilenet_v3_small", "vit_tiny", "bert_mini")
WHOLE = {  # nothing of them stays on portable kernels
    "mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet50", "efficientnet_b0", "convnext_tiny", "vit_tiny",
}  # fmt: skip
LOOKUPS = {"aten.embedding.default"}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", only(QUICK, zoo.ZOO))
def test_lowered_saved_and_loaded(name, tmp_path):
    module, inputs = zoo.make(name)
    program = delegate.to_backend(zoo.export(name), "xnnpack")

    partitions = program.report.partitions
    leftover = {n.op for n in program.report.nodes if n.backend == "portable"}
    assert len(partitions) == 1 if name in WHOLE else 1 <= len(partitions) <= 3
    assert leftover <= (set() if name in WHOLE else LOOKUPS)
    assert sum(p.work for p in partitions) > 0.99

    with torch.no_grad():
        expected = module(*inputs)
    actual = program(*inputs)
    assert type(actual) is type(expected)
    leaves = [pytree.tree_leaves(tree) for tree in (actual, expected)]
    for got, wanted in zip(*leaves, strict=True):
        assert relative_error(got, wanted) <= zoo.tolerance(name)

    program.save(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg") as loaded:
        results = pytree.tree_leaves(dict(r) if isinstance(r := loaded(*(x.numpy() for x in inputs)), dict) else r)
        for got, wanted in zip(results, leaves[0], strict=True):
            np.testing.assert_array_equal(got, wanted.numpy())
