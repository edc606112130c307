"""Operators of `torch.library` from export to a process without torch: kernels by hand, by plugin, and torch's own."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.library import custom_op

import delegate
from delegate import DType, KernelTable
from delegate.errors import DialectError, KernelError, LoweringError
from tests.support.lowering import assert_same, compiled
from tests.support.plugins import Site
from tests.support.processes import AHEAD_OF_TIME, run


@custom_op("delegate_test::mix", mutates_args=())
def mix(
    parts: list[torch.Tensor], scales: list[float], bias: torch.Tensor | None = None, mode: str = "sum"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists, optional tensors, text, several results."""
    total = sum(p * s for p, s in zip(parts, scales, strict=True))
    total = total if bias is None else total + bias
    return (total if mode == "sum" else -total), torch.stack(parts).amax(0)


@mix.register_fake
def _(parts, scales, bias=None, mode="sum"):
    return torch.empty_like(parts[0]), torch.empty_like(parts[0])


@custom_op("delegate_test::decay_", mutates_args=("state",))
def decay_(state: torch.Tensor, factor: float) -> None:
    """Writes to its argument and gives nothing."""
    state.mul_(factor)


@custom_op("delegate_test::push", mutates_args=("queue", "count"))
def push(queue: torch.Tensor, count: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
    """Writes to two arguments and gives a result."""
    oldest = queue[0].clone()
    queue.copy_(torch.cat([queue[1:], item[None]]))
    count.add_(1)
    return oldest


@push.register_fake
def _(queue, count, item):
    return torch.empty_like(item)


@custom_op("delegate_test::fade", mutates_args=("state",))
def fade(state: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """Writes to an argument that may be missing."""
    if state is not None:
        state.mul_(0.5)
    return x * 2


@fade.register_fake
def _(state, x):
    return torch.empty_like(x)


@custom_op("delegate_test::scale_all", mutates_args=("parts",))
def scale_all(parts: list[torch.Tensor], factor: float) -> None:
    """Writes to a list, which programs cannot express."""
    for part in parts:
        part.mul_(factor)


# The kernels, as a user would write them, in a module that knows nothing of torch.
KERNELS = """
import sys

import numpy as np
from delegate import KernelTable

TABLE = KernelTable("custom")

@TABLE.kernel("delegate_test::mix")
def mix(parts, scales, bias, mode, *, out):
    total, largest = out
    np.copyto(total, sum(p * np.float32(s) for p, s in zip(parts, scales)) + (0 if bias is None else bias))
    if mode != "sum":
        np.negative(total, out=total)
    np.max(parts, axis=0, out=largest)

@TABLE.kernel("delegate_test.decay_.default")
def decay(state, factor, *, out):
    np.multiply(state, np.float32(factor), out=out)

@TABLE.kernel("delegate_test::push")
def push(queue, count, item, *, out):
    oldest, new_queue, new_count = out
    np.copyto(oldest, queue[0])
    np.copyto(new_queue, np.concatenate([queue[1:], item[None]]))
    np.add(count, 1, out=new_count)
"""


def table() -> KernelTable:
    namespace: dict[str, object] = {}
    exec(KERNELS, namespace)
    return namespace["TABLE"]


class Pure(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total, largest = mix([x, y + 1], [0.5, 2.0], None, "negated")
        return (*mix([total, largest, x], [1.0, 1.0, 1.0], y), total)


class Writing(nn.Module):
    """Writes to a whole tensor, to a view of one, and to states."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.arange(8.0).reshape(4, 2))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = x * 1
        decay_(hidden, 0.5)
        decay_(hidden[1:], 2.0)
        oldest = push(self.queue, self.count, hidden[0] + y[0])
        return hidden, oldest, self.queue + 0, self.count + 0


X, Y = torch.tensor([[1.0, -2.0], [3.0, 0.25]]), torch.tensor([[4.0, 1.0], [0.0, -1.0]])


@pytest.mark.parametrize("kernels", ["by hand", "aten"])
@pytest.mark.parametrize("module", [Pure, Writing])
def test_like_eager(module, kernels):
    program = compiled(module(), (X, Y), kernels=[table()] if kernels == "by hand" else "aten")
    eager = module()
    for turn in range(3):  # states go on from call to call
        assert_same(program(X + turn, Y), eager(X + turn, Y), tolerance=0)


RUN = """
import sys

import numpy as np
import delegate
x, y = np.load(sys.argv[2]), np.load(sys.argv[3])
with delegate.load(sys.argv[1]) as program:
    print([r.tolist() for r in program(x, y)])
"""


@pytest.mark.parametrize("module", [Pure, Writing])
def test_a_plugins_kernels_without_torch(site: Site, tmp_path, module):
    site.module("custom_kernels", KERNELS)
    site.distribution("custom-dist", "1.0", {"custom": "custom_kernels:TABLE"}, "delegate.kernels")
    compiled(module(), (X, Y)).save(tmp_path / "model.dlg")
    np.save(tmp_path / "x.npy", X.numpy())
    np.save(tmp_path / "y.npy", Y.numpy())
    files = [tmp_path / name for name in ("model.dlg", "x.npy", "y.npy")]
    done = run(RUN, *files, absent=AHEAD_OF_TIME, path=str(site.root))
    assert (done.returncode, done.stdout) == (0, f"{[r.tolist() for r in module()(X, Y)]}\n"), done.stderr
    elsewhere = run(RUN, *files)
    assert "KernelError: no kernel of delegate_test." in elsewhere.stderr
    assert "kernels=[...]" in elsewhere.stderr


def test_no_kernel_says_how_to_give_one(tmp_path):
    with pytest.raises(LoweringError) as caught:
        compiled(Pure(), (X, Y))
    assert "no kernel supports delegate_test.mix.default for float32" in str(caught.value)
    assert "test_custom_operators.py" in str(caught.value)
    assert "@table.kernel('delegate_test.mix.default')" in str(caught.value)
    program = compiled(Pure(), (X, Y), kernels="aten")
    note = "kernel library 'aten' is needed wherever the program runs: it has delegate_test.mix.default"
    assert note in program.report.notes
    program.save(tmp_path / "model.dlg")
    with pytest.raises(KernelError, match=r"no kernel of delegate_test\.mix\.default.*kernels=\[\.\.\.\]"):
        delegate.load(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg", kernels=[table()]) as program:
        assert [r.tolist() for r in program(X.numpy(), Y.numpy())] == [r.tolist() for r in Pure()(X, Y)]


class Fading(nn.Module):
    """With and without the argument that it writes to."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = x * 3
        return fade(hidden, y), fade(None, x), hidden


def test_what_is_written_may_be_missing():
    own = KernelTable("own")

    @own.kernel("delegate_test::fade")
    def kernel(state, x, *, out):
        result = out if state is None else out[0]
        np.multiply(x, 2, out=result)
        if state is not None:
            np.multiply(state, 0.5, out=out[1])

    for kernels in ([own], ["aten"]):
        assert_same(compiled(Fading(), (X, Y), kernels=kernels)(X, Y), Fading()(X, Y), tolerance=0)


def test_lists_that_are_written_are_refused():
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = x + 1, x + 2
            scale_all([first, second], 2.0)
            return first + second

    with pytest.raises(LoweringError, match=r"delegate_test\.scale_all\.default writes to a list of tensors"):
        compiled(Net(), (X,), kernels="aten")


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch copies its own deprecated specs
def test_a_program_that_was_decomposed_before():
    exported = torch.export.export(Writing(), (X, Y)).run_decompositions()
    with pytest.raises(DialectError, match="do not call it before delegate"):
        delegate.to_backend(exported, [], kernels="aten")


class Relu(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(x), torch.relu(y), torch.relu(x.t())


def test_overrides_by_dtype_and_layout():
    """Kernels of the user's own go before the portable ones, for the dtypes and layouts that they take."""
    own, calls = KernelTable("own"), []

    @own.kernel("aten::relu", dtypes={DType.float32}, contiguous=True)
    def relu(x, *, out):
        assert x.flags.c_contiguous
        calls.append(x.shape)
        np.maximum(x, 0, out=out)

    wide = X.expand(3, 2, 2).contiguous()[:, :, 0]  # 3 rows, of which a view is transposed
    inputs = wide, Y.double()
    program = compiled(Relu(), inputs, kernels=[own])
    assert_same(program(*inputs), Relu()(*inputs), tolerance=0)
    assert calls == [(3, 2)]  # not the float64, not the transposed one

    calls.clear()
    program = compiled(Relu(), inputs, kernels=[own, "aten"])
    assert_same(program(*inputs), Relu()(*inputs), tolerance=0)
    assert calls == [(3, 2)]


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (lambda x, *, out: x + 1, "the kernel returned a ndarray; it must fill `out`"),
        (lambda x, *, out: 1 / 0, "the kernel failed: ZeroDivisionError"),
        (lambda x, *, out: sys.exit(3), "the kernel failed: SystemExit: 3"),
        (lambda x: None, "the kernel failed: TypeError"),
        (lambda x, *, out: np.tanh(x, out=out), ""),
    ],
)
def test_kernels_that_do_wrong(kernel, words):
    table = KernelTable("wrong")
    table.kernel("aten.tanh.default", dtypes={DType.float32})(kernel)
    given = torch.ones(2)
    program = delegate.to_backend(torch.export.export(nn.Tanh(), (given,)), kernels=[table], backends=[])
    if not words:
        assert_same(program(given), torch.tanh(given))
        return
    with pytest.raises(KernelError) as caught:
        program(given)
    assert words in str(caught.value)
    assert "(method forward, tanh, at " in str(caught.value)
