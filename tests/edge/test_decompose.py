"""Compound operators kept whole expand one by one, with static and dynamic shapes."""

import pytest
import torch
from torch.export import Dim
from torch.nn import functional as F

from delegate.edge.decompose import Decomposer, compound_nodes, core_decompositions, decompose
from delegate.edge.node import op_name, tensor
from delegate.edge.verifier import verify
from delegate.errors import LoweringError
from delegate.testing import assert_same
from tests.edge.helpers import assert_as_module, edge, ops
from tests.support.functions import Function

W, B = torch.randn(5, 8, generator=torch.manual_seed(1)), torch.randn(5, generator=torch.manual_seed(2))

CASES = {
    "scaled_dot_product_attention": (lambda x: F.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True), 4),
    "layer_norm": (lambda x: F.layer_norm(x, (8,), torch.ones(8), None), 3),
    "gelu": (lambda x: F.gelu(x, approximate="tanh"), 3),
    "hardswish": (F.hardswish, 3),
    "linear": (lambda x: F.linear(x, W, B), 3),
    "matmul": (lambda x: torch.matmul(x, W.t()), 3),
    "silu": (F.silu, 3),
    "softmax": (lambda x: x.softmax(-1), 3),
    "unflatten": (lambda x: x.unflatten(-1, (2, 4)), 3),
    "unbind": (lambda x: x.unbind(-1)[3] + x.unbind(-1)[1], 3),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("op", CASES)
def test_expands(op, dynamic):
    function, rank = CASES[op]
    keep = frozenset(f"aten.{op}.{overload}" for overload in ("default", "int"))
    sizes = {4: (2, 3, 6, 8), 3: (2, 6, 8)}[rank]
    shapes = (({0: Dim("n", max=64), rank - 2: Dim("m", min=2, max=64)},),) if dynamic else None
    x = torch.randn(sizes, generator=torch.manual_seed(0))
    program = edge(Function(function), (x,), preserve_ops=keep, dynamic_shapes=shapes)
    whole = [n for n in program.graph.nodes if op_name(n) in keep]
    assert whole, ops(program)
    verify(program, keep)
    program = decompose(program, whole)
    assert not ops(program)[op] or op in ("gelu",)
    verify(program, frozenset())
    assert_as_module(Function(function), program, (x,))
    if dynamic:
        other = [*sizes]
        other[0], other[rank - 2] = 5, 11
        assert_as_module(Function(function), program, (torch.randn(other),))


def test_a_size_that_export_has_fixed_later():
    """The graph reads the size before the split that fixes it."""

    def function(x):
        y = x.reshape(-1).view(x.shape[1], 4).t()
        return torch.cat(torch.split(y, 1, 1)[::-1], 1)

    x = torch.randn(4, 3, generator=torch.manual_seed(0))
    program = edge(Function(function), (x,), dynamic_shapes=(({1: torch.export.Dim.AUTO},),))
    assert_as_module(Function(function), program, (x,))


def test_equal_nodes_are_traced_once_and_equal_values_are_told_apart():
    def function(x):
        q, k, v = (F.hardswish(x + i) for i in range(3))
        y = F.scaled_dot_product_attention(q, k, v)
        return F.scaled_dot_product_attention(y, y, v) + F.scaled_dot_product_attention(q, v, k)

    keep = frozenset({"aten.scaled_dot_product_attention.default", "aten.hardswish.default"})
    x = torch.randn(1, 2, 4, 8)
    program = edge(Function(function), (x,), preserve_ops=keep)
    decomposer = Decomposer()
    nodes = list(compound_nodes(program.graph, decomposer))
    assert len(nodes) == 6
    made = [decomposer.expand([n])[0] for n in nodes]
    assert len(decomposer._traced) == 3  # hardswish; attention on three tensors; attention on (y, y, v)
    assert all(m for m in made)
    assert_as_module(Function(function), program, (x,))


def test_new_nodes_inherit_metadata_and_fake_mode():
    program = edge(Function(CASES["layer_norm"][0]), (torch.randn(2, 6, 8),), preserve_ops={"aten.layer_norm.default"})
    (node,) = (n for n in program.graph.nodes if op_name(n) == "aten.layer_norm.default")
    stack, trace, mode = node.meta["nn_module_stack"], node.meta["stack_trace"], tensor(node).fake_mode
    (made,) = Decomposer().expand([node])
    assert all((m.meta["nn_module_stack"], m.meta["stack_trace"]) == (stack, trace) for m in made)
    assert {tensor(m).fake_mode for m in made if isinstance(m.meta["val"], torch.Tensor)} == {mode}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("how", ["plain", "causal", "mask", "heads", "scale"])
def test_attention_gives_the_sums_that_gradients_need(how, dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 5, 4, dtype=dtype) for heads in ((4, 2, 2) if how == "heads" else (2, 2, 2)))
    given = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": torch.randn(5, 5, dtype=dtype)},
        "scale": {"scale": 0.7},
    }.get(how, {})
    whole = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    parts = core_decompositions()[whole](q, k, v, **given)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-6  # 3.9e-3 is measured: half a step
    for found, wanted in zip(parts, whole(q, k, v, **given), strict=True):
        assert_same(found, wanted, tolerance)


def test_a_decomposition_that_gives_something_else_is_an_error(monkeypatch):
    ep = torch.export.export(Function(F.silu), (torch.ones(3),))
    other = {torch.ops.aten.silu.default: lambda x: x.sum()}
    monkeypatch.setattr(Decomposer, "table", property(lambda own: other))
    with pytest.raises(LoweringError, match=r"returns float32\[\] instead of float32\[3\].*silu"):
        Decomposer().expand([n for n in ep.graph.nodes if "silu" in n.name])


def test_torchs_operators_are_read_again_after_a_registration(monkeypatch):
    reads = []
    read = torch.export.default_decompositions
    monkeypatch.setattr(torch.export, "default_decompositions", lambda: reads.append(1) or read())
    core_decompositions(frozenset({"a name"}))
    core_decompositions(frozenset({"another name"}))
    assert len(reads) <= 1
    library = torch.library.Library("registered_later", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
    assert torch.ops.registered_later.twice.default in core_decompositions(frozenset({"a third name"}))
