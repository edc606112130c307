"""Real architectures in edge dialect, before and after the passes, give what eager gives."""

import pytest
import torch

from delegate.edge.export import to_edge
from delegate.edge.passes.pipeline import optimize
from tests.edge.helpers import assert_as_module
from tests.support import zoo

WHOLE = frozenset(f"aten.{op}.default" for op in ("linear", "layer_norm", "gelu", "scaled_dot_product_attention"))


# What the default run has; swin_t is in the default run of e2e/test_three_backends.py.
CORE = ("mobilenet_v3_small", "vit_tiny", "llama_mini")
QUICK = {*((name, "core") for name in CORE), ("bert_mini", "whole")}
KEPT = {"core": frozenset(), "whole": WHOLE}


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        pytest.param(name, kept, marks=[] if (name, kept) in QUICK else pytest.mark.slow)
        for name in zoo.ZOO
        for kept in KEPT
    ],
)
def test_architecture(name, kept):
    module, inputs = zoo.make(name)
    program = to_edge(zoo.export(name), preserve_ops=KEPT[kept])
    assert_as_module(module, program, inputs)
    before = len(program.graph.nodes)
    program = optimize(program)
    assert len(program.graph.nodes) <= before
    assert_as_module(module, program, inputs, tolerance=zoo.tolerance(name))
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    assert calls
    assert all(n.meta.get("nn_module_stack") for n in calls)


def test_two_calls_make_the_same_model():
    first, second = (zoo.make("mobilenet_v3_small")[0].state_dict() for _ in range(2))
    assert all(torch.equal(first[k], second[k]) for k in first)
