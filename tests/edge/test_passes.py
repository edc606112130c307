"""Each pass on small modules: what it removes, what it must leave, and that values stay."""

import pytest
import torch
from torch import nn
from torch.export import Dim

from delegate.edge.export import to_edge
from delegate.edge.node import describe, op_name, tensor
from delegate.edge.passes.folding import fold_batch_norms, fold_constants
from delegate.edge.passes.pipeline import PROGRAM_PASSES, optimize
from delegate.edge.passes.redundancy import remove_unused
from delegate.edge.program import EdgeProgram
from delegate.errors import DialectError
from tests.edge.helpers import assert_as_module, both, edge, ops
from tests.support.functions import Function

X = torch.randn(2, 4, 6, generator=torch.manual_seed(0))


def _calibrated(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        if norm.affine:
            norm.weight.normal_()
            norm.bias.normal_()
    return norm


def _after(layer: nn.Module, channels: int, **options) -> nn.Module:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[options.pop("rank", 4)]
    return nn.Sequential(layer, _calibrated(kind(channels, **options)), nn.ReLU())


FOLDED = {
    "conv": (lambda: _after(nn.Conv2d(4, 6, 3), 6), (2, 4, 8, 8)),
    "no bias": (lambda: _after(nn.Conv2d(4, 6, 3, bias=False), 6), (2, 4, 8, 8)),
    "groups": (lambda: _after(nn.Conv2d(4, 8, 3, groups=2), 8), (2, 4, 8, 8)),
    "no affine": (lambda: _after(nn.Conv2d(4, 6, 1, bias=False), 6, affine=False), (2, 4, 8, 8)),
    "transposed": (lambda: _after(nn.ConvTranspose2d(4, 6, 3, stride=2), 6), (2, 4, 5, 5)),
    "transposed groups": (lambda: _after(nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), 6), (2, 4, 5, 5)),
    "conv1d": (lambda: _after(nn.Conv1d(4, 6, 3), 6, rank=3), (2, 4, 9)),
    "conv3d": (lambda: _after(nn.Conv3d(4, 6, 2), 6, rank=5), (1, 4, 4, 4, 4)),
    "linear": (lambda: _after(nn.Linear(4, 6), 6, rank=2), (3, 4)),
}


@pytest.mark.parametrize("preserve_ops", [frozenset(), frozenset({"aten.linear.default", "aten.conv2d.default"})])
@pytest.mark.parametrize("case", FOLDED)
def test_batch_norm_folds(case, preserve_ops):
    torch.manual_seed(0)
    build, shape = FOLDED[case]
    _, before, after = both(build().eval(), (torch.randn(shape),), preserve_ops=preserve_ops)
    assert before["_native_batch_norm_legit_no_training"] == 1
    assert sum(after.values()) == 2, after  # the layer and relu


class TwoUsers(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), _calibrated(nn.BatchNorm2d(3))

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class SharedConv(TwoUsers):
    """The same convolution twice: each use may get weights of its own, the bare use keeps the old ones."""

    def forward(self, x):
        return self.norm(self.conv(x)) + self.conv(x * 2)


class LinearBeforeChannels(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), _calibrated(nn.BatchNorm1d(4))

    def forward(self, x):
        return self.norm(self.linear(x))


class MovingStatistics(TwoUsers):
    def forward(self, x):
        self.norm.running_mean.add_(1)
        return self.norm(self.conv(x))


@pytest.mark.parametrize(
    ("module", "shape", "left"),
    [
        (TwoUsers, (1, 3, 4, 4), 1),
        (SharedConv, (1, 3, 4, 4), 0),
        (LinearBeforeChannels, (2, 4, 4), 1),
    ],
)
def test_batch_norm_folds_only_where_it_may(module, shape, left):
    torch.manual_seed(0)
    _, _, after = both(module(), (torch.randn(shape),))
    assert after["_native_batch_norm_legit_no_training"] == left


def test_batch_norm_with_a_state_for_statistics_stays():
    x = torch.randn(1, 3, 4, 4)
    program = fold_batch_norms(edge(MovingStatistics(), (x,)))
    assert ops(program)["_native_batch_norm_legit_no_training"] == 1


def test_folded_weights_keep_their_names():
    program = optimize(edge(FOLDED["conv"][0](), (torch.randn(2, 4, 8, 8),)))
    assert sorted(program.constant_names.values()) == ["0.bias", "0.weight"]


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(6.0))
        self.register_buffer("state", torch.zeros(6))

    def forward(self, x):
        mask = torch.zeros(4, 6)
        mask[1:3, :].fill_(1)
        mask[2].mul_(-1)
        return x * (self.table.cos() + mask) + torch.arange(6) + self.table.exp().sum()


class WithState(Table):
    def forward(self, x):
        self.state.add_(self.table.cos())
        return x + self.state.sin() + self.table.sin()


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.rand(6) + torch.rand(6)


class Large(nn.Module):
    def forward(self, x):
        return x + torch.zeros(1000, 1, 6).expand(1000, 4, 6)[: x.shape[0]]


def test_constants_fold():
    program, _, after = both(Table(), (X,))
    assert after == {"mul": 1, "add": 2}
    assert len(program.constants) == 3


def test_states_do_not_fold():
    program = optimize(edge(WithState(), (X,)))
    count = ops(program)
    assert count["sin"] == 1  # of the state; that of the table is folded
    assert count["cos"] == 0
    assert_as_module(WithState(), program, (X,))


def test_random_numbers_neither_fold_nor_merge():
    assert ops(optimize(edge(Noise(), (X,))))["rand"] == 2


def test_large_results_are_left():
    program = fold_constants(edge(Large(), (X,)), limit=1000, growth=2)
    assert sum(c.nbytes for c in program.constants.values()) <= 1000
    assert_as_module(Large(), program, (X,))


def nothing(x):
    y = x.clone().contiguous().view(2, 4, 6).reshape(2, 4, 6).expand(2, 4, 6).to(torch.float32).detach()
    y = nn.functional.dropout(y[:, 0:4], 0.3, training=False) * 1
    return torch.cat([y.permute(0, 1, 2).squeeze(1)]) / 1 + x


def writes(x):
    y, z = x * 2, x * 3
    y[:, 1:3] = x[:, :2]
    z[:, 1:3] = x[0, 0]
    z.copy_(z.exp())
    return y, z + 1, (x * 4).copy_(x)


def writes_that_convert(x):
    return (x.int() + 1).copy_(x)


def casts(x):
    return x.to(torch.float64) * 1, x.int() / 1


def copies_of_inputs(x):
    return x.clone(), x


def pairs(x):
    y = x.transpose(1, 2).transpose(1, 2) + x.unsqueeze(1).squeeze(1)
    return y.view(8, 6).view(2, 24).view(2, 4, 6) + y


def permutes(x):
    return x.permute(1, 2, 0).permute(1, 2, 0).relu()


def twice(x):
    return (x.exp() + 1) * (x.exp() + 1.0) + x.exp().sum(-1, keepdim=True)


def ones_of_different_type(x):
    y = x.int()
    return y * 1, y * 1.0, y * True


def _product(x, offset):
    left, right = (x[0] * 9).to(torch.int8), (x[1].T * 9).to(torch.int8)
    found = torch._int_mm((left.to(torch.int32) + offset).to(torch.uint8), right)
    return found.sub_(right.sum(0, keepdim=True, dtype=torch.int32) * 128)


def unsigned_product(x):
    """As torchao writes it on CPUs with VNNI."""
    return _product(x, 128)


def shifted_product(x):
    return _product(x, 127)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (nothing, {"add": 1}),
        (
            writes,
            {"mul": 2, "slice": 1, "select": 2, "expand": 1, "slice_scatter": 2, "exp": 1, "clone": 1, "add": 1},
        ),
        (writes_that_convert, {"_to_copy": 1, "add": 1, "copy": 1}),
        (casts, {"_to_copy": 2, "div": 1}),
        (copies_of_inputs, {"clone": 1}),
        (pairs, {"add": 2}),
        (permutes, {"permute": 1, "relu": 1}),
        (twice, {"exp": 1, "add": 3, "mul": 1, "sum": 1}),
        (ones_of_different_type, {"_to_copy": 1, "mul": 1}),
        (unsigned_product, {"select": 2, "mul": 2, "_to_copy": 2, "permute": 1, "_int_mm": 1}),
        (
            shifted_product,
            {"select": 2, "mul": 3, "_to_copy": 4, "permute": 1, "add": 1, "_int_mm": 1, "sum": 1, "sub": 1},
        ),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_rewrites(function, expected):
    _, _, after = both(Function(function), (X,))
    assert {k: v for k, v in after.items() if k != "getitem"} == expected


def test_dynamic_views_cancel():
    def function(x):
        return x.flatten(1).view(x.shape[0], 4, 6).exp().exp()

    program, _, after = both(Function(function), (X,), dynamic_shapes=(({0: Dim("n", max=64)},),))
    assert after == {"exp": 2}
    assert_as_module(Function(function), program, (torch.randn(9, 4, 6),))


def test_dead_code_takes_unused_constants_along():
    program = edge(Table(), (X,))
    program.graph.output_node().args = ((program.graph.find_nodes(op="placeholder")[-1],),)
    program = remove_unused(program)
    assert not program.constants
    assert not ops(program)


class Branch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda v: v.exp() + v.exp(), lambda v: v.clone().clone() + 1, (x,))


def test_bodies_of_control_flow_are_rewritten():
    program = optimize(edge(Branch(), (X,)))
    bodies = [m for _, m in program.graph_module.named_children()]
    counts = [sum(op_name(n) == "aten.exp.default" for n in m.graph.nodes) for m in bodies]
    assert sorted(counts) == [0, 1]
    assert_as_module(Branch(), program, (X,))
    assert_as_module(Branch(), program, (-X.abs(),))


MERGED = {  # of x (n, 4, m, 6), by a view that joins n or m
    "permute": lambda x, w: x.flatten(0, 1).transpose(1, 2),
    "permute between": lambda x, w: x.flatten(1, 2).permute(2, 1, 0),
    "functions": lambda x, w: (x.flatten(0, 1) / 3).relu() + 1,
    "a number as a tensor": lambda x, w: x.flatten(0, 1) * w[0, 0],
    "softmax": lambda x, w: x.flatten(0, 1).softmax(-1),
    "softmax of what is joined": lambda x, w: x.flatten(0, 1).softmax(0),
    "linear": lambda x, w: x.flatten(0, 2) @ w.t() + torch.nn.functional.linear(x.flatten(0, 2), w),
    "linear of what is joined": lambda x, w: torch.nn.functional.linear(
        x.transpose(1, 2).reshape(-1, 24), w.repeat(1, 4)
    ),
    "product": lambda x, w: torch.bmm(x.flatten(0, 1), x.flatten(0, 1).mT),
    "product of others": lambda x, w: torch.bmm(x.flatten(0, 1), x.transpose(0, 1).flatten(0, 1).mT),
    "split behind a permute": lambda x, w: (
        x.view(-1, 2, x.shape[2], 6).permute(1, 3, 0, 2).unflatten(2, (x.shape[0], 2))
    ),
    "split and kept": lambda x, w: x.view(-1, 4 * x.shape[2], 6).transpose(0, 1).view(4, x.shape[2], x.shape[0], 6),
}


@pytest.mark.parametrize("case", MERGED)
def test_views_that_join_dynamic_sizes_move(case):
    """Values stay for other sizes, whole or in parts."""
    function, w = MERGED[case], torch.randn(5 if "linear" in case else 6, 6, generator=torch.manual_seed(0))
    module = Function(lambda x: function(x, w))
    sizes = (({0: Dim("n", max=64), 2: Dim("m", min=2, max=64)},),)
    for keep in (frozenset(), frozenset({"aten.linear.default"})):
        program = edge(module, (torch.randn(3, 4, 5, 6),), preserve_ops=keep, dynamic_shapes=sizes)
        program = optimize(program)
        for n, m in ((3, 5), (1, 2), (6, 7)):
            assert_as_module(module, program, (torch.randn(n, 4, m, 6),))
    joined = [n for n in program.graph.nodes if op_name(n) == "aten.view.default" and "*" in str(tensor(n).shape)]
    readers = {op_name(user) for view in joined for user in view.users} - {"output", "aten.add.Tensor"}
    stays = {
        "softmax of what is joined": {"aten._softmax.default"},
        "linear": {"aten.mm.default"},
        "product of others": {"aten.permute.default", "aten.bmm.default"},
    }
    assert readers <= stays.get(case, set())


@pytest.mark.parametrize("rewrite", PROGRAM_PASSES, ids=lambda p: p.__name__)
def test_passes_keep_metadata_and_values(rewrite):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 1), _calibrated(nn.BatchNorm2d(4)), nn.Flatten(), nn.Linear(64, 5))
    x = torch.randn(2, 3, 4, 4)
    program = rewrite(edge(module, (x,)))
    assert_as_module(module, program, (x,))
    for node in program.graph.nodes:
        assert node.op == "output" or "val" in node.meta, describe(node)
        assert node.op != "call_function" or node.meta["nn_module_stack"], describe(node)


def test_a_pass_at_fault_is_named(monkeypatch) -> None:
    def spoil(program: EdgeProgram) -> EdgeProgram:
        next(n for n in program.graph.nodes if n.op == "call_function").meta.pop("val")
        return program

    monkeypatch.setenv("DELEGATE_VERIFY_PASSES", "1")
    exported = torch.export.export(torch.nn.ReLU(), (torch.ones(2),))
    with pytest.raises(DialectError, match=r"after spoil"):
        optimize(to_edge(exported), [spoil, remove_unused])
