"""ATen mode: torch's own kernels through the table, in calls and in programs, are equal to eager bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.edge.node import dtype_of
from delegate.errors import ConfigError, KernelError
from delegate.kernels.aten.table import TABLE, out_variant, to_torch
from delegate.program.dtypes import DType
from delegate.runtime.steps import ConvertedStep, CopiedViewStep
from tests.support.kernels import garbage, is_list, sample, schema_arguments, tensors_in, to_runtime
from tests.support.kernels import to_torch as back
from tests.support.lowering import assert_same, compiled

aten = torch.ops.aten
X, Y = sample(3, 4), sample(3, 4, seed=1)
IMAGE = sample(2, 3, 8, 8)

CALLS = [
    (aten.add.Tensor, (X, Y), {"alpha": 2}),
    (aten.add.Tensor, (X, 3), {}),
    (aten.add.Tensor, (X.to(torch.bfloat16), Y.to(torch.bfloat16)), {}),
    (aten.mul.Tensor, (X.half(), Y), {}),
    (aten.addmm.default, (sample(5), X, sample(4, 5)), {}),
    (aten.convolution.default, (IMAGE, sample(4, 3, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), {}),
    (aten.native_layer_norm.default, (X, [4], None, None, 1e-5), {}),
    (aten._native_batch_norm_legit_no_training.default, (IMAGE, None, None, sample(3), sample(3).abs(), 0.1, 1e-5), {}),
    (aten.max_pool2d_with_indices.default, (IMAGE, [2, 2], [2, 2]), {}),
    (aten.sum.dim_IntList, (X, [0], True), {"dtype": torch.float64}),
    (aten.max.dim, (X, 1), {}),
    (aten._to_copy.default, (X,), {"dtype": torch.bfloat16}),
    (aten.full.default, ([2, 3], 7), {"dtype": torch.int64}),
    (aten.arange.start_step, (1, 9, 2), {"dtype": torch.int32}),
    (aten.cat.default, ([X, Y], 1), {}),
    (aten.index.Tensor, (X, [None, torch.tensor([0, 2])]), {}),
    (aten.split_copy.Tensor, (X, 2, 1), {}),
    (aten.where.self, (X > 0, X, Y), {}),
    (aten.mul.Tensor, (torch.polar(X, Y), Y), {}),
    (aten.relu.default, (X.t(),), {}),
    (aten.sin.default, (torch.tensor(1.5),), {}),
    # Given `out`, torch conjugates it by a bit that memory does not have.
    (aten._linalg_solve_ex.default, (torch.complex(sample(4, 4), sample(4, 4, seed=1)),) * 2, {"left": False}),
    # Without an `out=` overload: called as it is, the results copied.
    (aten.scaled_dot_product_attention.default, (sample(1, 2, 4, 8),) * 3, {}),
    (aten.lift_fresh_copy.default, (X,), {}),
    (aten.bitwise_and.Tensor, (torch.tensor([1, 2, 3], dtype=torch.uint16), torch.tensor([1], dtype=torch.uint16)), {}),
]


@pytest.mark.parametrize(
    ("op", "args", "kwargs"), CALLS, ids=lambda v: str(v) if isinstance(v, torch._ops.OpOverload) else ""
)
def test_the_same_bits_as_eager(op, args, kwargs):
    expected = op(*args, **kwargs)
    expected = tuple(expected) if isinstance(expected, tuple | list) else (expected,)
    filled = schema_arguments(op, args, kwargs)
    kernel = TABLE.find(str(op), {dtype_of(t.dtype) for t in (*tensors_in(filled), *expected)})
    assert kernel is not None
    outs = tuple(garbage(t) for t in expected)
    converted = [kernel.convert(o) for o in outs]
    arguments = [kernel.convert(to_runtime(a)) for a in filled]
    kernel.function(*arguments, out=converted[0] if len(outs) == 1 and not is_list(op) else tuple(converted))
    for out, reference in zip(outs, expected, strict=True):
        result = back(out, reference.dtype)
        assert result.dtype == reference.dtype
        assert_same(result, reference.resolve_conj().contiguous(), tolerance=0)


def test_every_core_operator_that_is_no_view_has_an_out_variant():
    """Find the variants by schema, so that no list can become outdated."""
    from tests.kernels.core import NUMBER, WITHOUT_KERNEL, core_operators

    without = []
    for name in core_operators():
        namespace, packet, overload = name.split(".")
        op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        is_view = any(a.alias_info is not None for a in op._schema.arguments)
        if not is_view and WITHOUT_KERNEL.get(name) != NUMBER and out_variant(op) is None:
            without.append(name)
    assert without == []


@pytest.mark.parametrize(
    "op",
    [
        "aten.add_.Tensor",  # in place
        "aten.add.out",
        "aten.nonzero.default",  # sizes depend on data
        "aten.sym_size.int",  # gives a number
        "aten.from_file.default",  # opens files
        "aten.no_such_operator.default",
        "no_such_namespace.add.Tensor",
        "load_library.__call__.default",
        "add",
    ],
)
def test_claims_no(op):
    assert TABLE.find(op, {DType.float32}) is None


def test_bits_of_bfloat16_are_not_mixed_with_uint16():
    assert TABLE.find("aten.add.Tensor", {DType.bfloat16, DType.uint16}) is None


def test_read_only_arrays_lie_where_they_lay():
    array = np.arange(6, dtype=np.float32)
    array.flags.writeable = False
    tensor = to_torch(array[2:].reshape(2, 2))
    del array
    assert tensor.tolist() == [[2, 3], [4, 5]]


class Net(nn.Module):
    """Convolution, views of inputs and of results, several results, a constant, lists of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = nn.functional.gelu(self.conv(image) * scale)
        hidden = self.norm(torch.cat([hidden, image], 1)).transpose(1, 2)
        best, where = torch.softmax(self.head(hidden), -1).max(-1)
        return best.flatten(1), where, image[:, 0], nn.functional.scaled_dot_product_attention(image, image, image)


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


INPUTS = IMAGE, torch.full((4, 1, 1), 0.5)


def assert_as_eager(actual, expected):
    for f, e in zip(actual, expected, strict=True):
        assert_same(f, e)  # the program adds up attention in another order


def test_a_program(net, tmp_path):
    program = compiled(net, INPUTS, kernels=["aten"])
    with torch.no_grad():
        expected = net(*INPUTS)
    assert_as_eager(program(*INPUTS), expected)
    assert_as_eager(program(*INPUTS), expected)  # the second call reuses what the first has bound
    program.save(tmp_path / "net.dlg")
    arrays = [t.numpy() for t in INPUTS]
    with delegate.load(tmp_path / "net.dlg", kernels=["aten", "portable"]) as there:
        assert_as_eager([torch.from_numpy(r.copy()) for r in there(*arrays)], expected)
    with delegate.load(tmp_path / "net.dlg") as portable:  # saved, it runs without torch's kernels
        for f, e in zip(portable(*arrays), expected, strict=True):
            assert_same(f, e)


def test_the_callers_arrays_are_released(net):
    import sys

    program = compiled(net, INPUTS, kernels="aten").loaded
    arrays = [t.numpy().copy() for t in INPUTS]
    before = [sys.getrefcount(a) for a in arrays]
    program(*arrays)
    assert [sys.getrefcount(a) for a in arrays] == before


def test_dynamic_shapes(net):
    rows = torch.export.Dim("rows", min=1, max=8)
    program = compiled(net, INPUTS, kernels="aten", dynamic_shapes={"image": {0: rows}, "scale": None})
    for count in (2, 5, 1, 5):
        image = sample(count, 3, 8, 8)
        with torch.no_grad():
            assert_as_eager(program(image, INPUTS[1]), net(image, INPUTS[1]))


def test_chosen_by_the_configuration(net):
    with torch.no_grad():
        expected = net(*INPUTS)
    program = compiled(net, INPUTS, config={"backends": [], "kernels": ["aten", "portable"]})
    assert_as_eager(program(*INPUTS), expected)
    binding = program.loaded.method("forward")._executor
    assert {type(step) for step in binding.steps} <= {ConvertedStep, CopiedViewStep}
    with pytest.raises(ConfigError, match="kernel libraries are named twice"):
        compiled(net, INPUTS, config={"kernels": ["aten"]}, kernels=["aten"])
    with pytest.raises(KernelError, match="did you mean 'aten'"):
        compiled(net, INPUTS, config={"kernels": ["atn"]})


def test_random_numbers_are_eagers():
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand(4)

    program = compiled(Noise(), (torch.zeros(4),), kernels="aten")
    TABLE.seed(3)
    result = program(torch.zeros(4))
    torch.manual_seed(3)
    assert torch.equal(result, torch.rand(4))


class Stateful(nn.Module):
    """A cache that is written at a position, inside a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(6, 3))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, at, x)
        return torch.cond(x.sum() > 0, lambda c: c.cumsum(0) * 2, lambda c: torch.softmax(c, 0), (self.cache + 0,))


def test_states_and_control_flow():
    inputs = sample(2, 3), torch.tensor([1, 4])
    program = compiled(Stateful(), inputs, kernels="aten")
    eager = Stateful()
    for turn in range(4):
        call_inputs = sample(2, 3, seed=turn) + (3 if turn % 2 else -3), torch.tensor([turn, 5 - turn])
        with torch.no_grad():
            assert_as_eager([program(*call_inputs)], [eager(*call_inputs)])


def test_sizes_that_depend_on_data():
    class Picked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x[x > 0] * 2 - 1)

    program = compiled(Picked(), (X,), kernels="aten")
    for seed in (0, 3, 7):
        x = sample(3, 4, seed=seed)
        assert torch.equal(program(x), Picked()(x))
