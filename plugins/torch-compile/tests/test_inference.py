"""Inference by torch.compile equals eager, with any Python code around the graphs."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._dynamo
from delegate_torch_compile.backend import compile_graph
from torch import nn

import delegate
from delegate.testing import assert_same
from tests.support.sampling import every

from .compiling import Lowered, compile_on

T = torch.Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(1))
        self.head = nn.Linear(4 * 8 * 8, 5)

    def forward(self, x: T) -> T:
        return self.head(self.layers(x))


def image(batch: int = 2) -> T:
    return torch.randn(batch, 3, 8, 8)


# -- functions: what they do, and how many graphs torch captures -------------------------------------------------------


def breaks(x: T) -> T:
    y = torch.relu(x) * 2
    torch._dynamo.graph_break()
    return y + x.sum()


def branches(x: T) -> T:
    return torch.exp(x) if x.sum() > 0 else torch.tanh(x)


def writes(x: T) -> T:
    x.mul_(2).add_(1)
    return x.relu()


def writes_through_a_view(x: T) -> T:
    x[0].zero_()
    return x + 1


def writes_and_gives(x: T) -> tuple[T, T]:
    y = x.view(-1)
    y.add_(1)
    return x, y


def gives_a_view(x: T) -> T:
    return x.transpose(0, 1)


def gives_its_input(x: T) -> tuple[T, T, int, None]:
    return x, x.clone(), x.shape[0], None


def gives_twice(x: T) -> tuple[T, T]:
    y = x * 3
    return y, y[1:]


def return_strided(x: T) -> T:
    return (x * 2).transpose(0, 1)


def return_nested(x: T) -> dict[str, list[T]]:
    return {"a": [x + 1, x.sum()], "b": [x > 0]}


def in_half(x: T) -> T:
    return x.to(torch.bfloat16) * 2


def integers(x: T) -> T:
    return x.argmax(1) + torch.arange(x.shape[0])


def nothing(x: T) -> T:
    return x


def complex_numbers(x: T) -> T:
    return torch.fft.rfft(x).abs()


def numbers_as_text(x: T) -> T:
    return torch.nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear")[0, 0]


def drops_nothing(x: T) -> T:
    return torch.nn.functional.dropout(x, 0.5, training=False) * 2


FUNCTIONS: list[Callable[[T], object]] = [
    breaks, branches, writes, writes_through_a_view, writes_and_gives, gives_a_view, gives_its_input, gives_twice,
    return_strided, return_nested, in_half, integers, nothing, complex_numbers, numbers_as_text, drops_nothing,
]  # fmt: skip

# Function -> how many nodes of its graphs XNNPACK runs, and how many it refuses for each reason.
ON_XNNPACK: dict[Callable[[T], object], dict[str, int]] = {
    breaks: {"runs": 4},
    branches: {"runs": 3, "operator": 1},
    writes: {"runs": 3},
    writes_through_a_view: {"too_small": 1, "operator": 1, "runs": 2},
    writes_and_gives: {"runs": 2, "border": 1},
    gives_a_view: {"too_small": 1},
    gives_its_input: {"too_small": 1},
    gives_twice: {"runs": 1, "border": 1},
    return_strided: {"runs": 2},
    return_nested: {"runs": 2, "operator": 1},
    in_half: {"inaccurate": 1, "runs": 1},
    integers: {"operator": 1, "dtype": 1},
    nothing: {},
    complex_numbers: {"operator": 1, "dtype": 1},
    numbers_as_text: {"runs": 17},
    drops_nothing: {"runs": 1},
}


def leaves(value: object) -> list[object]:
    return torch.utils._pytree.tree_leaves(value)


def assert_as_eager(actual: object, expected: object) -> None:
    assert_same(actual, expected)
    for left, right in zip(leaves(actual), leaves(expected), strict=True):
        assert not isinstance(right, torch.Tensor) or left.stride() == right.stride()


@pytest.mark.parametrize(
    ("function", "backends"), every(3, FUNCTIONS, ["xnnpack", []]), ids=lambda a: getattr(a, "__name__", str(a))
)
def test_functions(function: Callable[[T], object], backends: object, lowered: Lowered) -> None:
    fast = compile_on(function, backends=backends)
    for seed in range(3):
        torch.manual_seed(seed)
        mine = torch.randn(4, 6)
        theirs = mine.clone()
        actual, expected = fast(mine), function(theirs)
        assert_as_eager(actual, expected)
        assert_as_eager(mine, theirs)
        for left, right in zip(leaves(actual), leaves(expected), strict=True):
            if isinstance(right, torch.Tensor) and right.is_floating_point():  # and what shares memory still does
                left.add_(1)
                right.add_(1)
        assert_as_eager(mine, theirs)
        assert_as_eager(actual, expected)
    if backends:
        assert lowered.answers == ON_XNNPACK[function]


def test_a_network_is_one_partition_with_its_weights_inside(lowered: Lowered) -> None:
    net = Net().eval()
    fast = compile_on(net)
    with torch.no_grad():
        for _ in range(3):
            x = image()
            assert_same(fast(x), net(x))
    (program,) = lowered
    assert lowered.backends == {"xnnpack"}
    assert len(program.report.partitions) == 1
    assert len(program.program.methods[0].inputs) == 1


def test_the_graph_is_that_of_an_export(lowered: Lowered) -> None:
    net = Net().eval()
    with torch.no_grad():
        compile_on(net)(image())
    exported = delegate.to_backend(torch.export.export(net, (image(),)), "xnnpack")
    (program,) = lowered
    assert [n.op for n in program.report.nodes] == [n.op for n in exported.report.nodes]


def test_pins_by_module(lowered: Lowered) -> None:
    net = Net().eval()
    config = {"backends": ["xnnpack"], "partitioning": {"pins": {"head": "portable"}}}
    with torch.no_grad():
        x = image()
        result = compile_on(net, backends=None, config=config)(x)
        assert_same(result, net(x))
    assert {n.op for n in lowered[0].report.nodes if n.backend == "portable"} == {"aten.linear.default"}


CHANGES: dict[str, Callable[[Net], object]] = {
    "in place": lambda net: net.head.weight.mul_(2),
    "a buffer": lambda net: net.layers[1].running_mean.add_(1),
    "replaced": lambda net: setattr(net.head, "bias", nn.Parameter(torch.ones(5))),
    "its data": lambda net: setattr(net.head.bias, "data", torch.ones(5)),
    "loaded": lambda net: net.load_state_dict({k: v * 0.5 for k, v in net.state_dict().items()}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changed_weights_are_compiled_again(change: Callable[[Net], object], lowered: Lowered) -> None:
    net = Net().eval()
    fast = compile_on(net)
    with torch.no_grad():
        for _ in range(6):
            x = image()
            assert_same(fast(x), net(x))
            assert_same(fast(x), net(x))
            change(net)
    assert lowered.backends == {"xnnpack", "portable"}


def test_weights_that_are_no_constants(lowered: Lowered) -> None:
    net = Net().eval()
    fast = compile_on(net, freeze=False)
    with torch.no_grad():
        x = image()
        assert_as_eager(fast(x), net(x))
        net.head.weight.data.zero_()  # which torch does not see
        assert_as_eager(fast(x), net(x))
    assert len(lowered) == 1


def test_training_mode_without_gradients_updates_statistics(lowered: Lowered) -> None:
    net = Net().train()
    other = copy.deepcopy(net)
    fast = compile_on(net)
    with torch.no_grad():
        for _ in range(3):
            x = image()
            assert_same(fast(x), other(x))
    for mine, theirs in zip(net.buffers(), other.buffers(), strict=True):
        assert_same(mine, theirs)
    assert lowered.backends == {"xnnpack", "portable"}


@pytest.mark.parametrize("dynamic", [None, True])
def test_dynamic_sizes(dynamic: bool | None, lowered: Lowered) -> None:
    net = Net().eval()
    fast = compile_on(net, dynamic=dynamic)
    with torch.no_grad():
        for batch in (2, 3, 5, 7, 4, 2):
            x = image(batch)
            assert_same(fast(x), net(x))
    assert 1 <= len(lowered) <= 2  # one of one size, one of any
    assert lowered.backends == ({"xnnpack", "portable"} if dynamic else {"xnnpack"})


def test_sizes_that_are_numbers(lowered: Lowered) -> None:
    fast = compile_on(lambda x, n: (x.repeat(n, 1) * n, x.shape[0] * n), dynamic=True)
    for rows, n in ((2, 3), (4, 5), (3, 2)):
        x = torch.randn(rows, 4)
        result, number = fast(x, n)
        assert_same(result, x.repeat(n, 1) * n)
        assert number == rows * n
    assert lowered.backends == {"portable"}  # XNNPACK takes none of it


def test_several_inputs_that_share_memory(lowered: Lowered) -> None:
    def add(x: T, y: T) -> T:
        x.add_(1)
        return x + y

    fast = compile_on(add)
    for _ in range(2):
        mine, theirs = torch.ones(6), torch.ones(6)
        assert_as_eager(fast(mine[:4], mine[2:]), add(theirs[:4], theirs[2:]))
        assert_as_eager(mine, theirs)
    assert lowered.backends == {"xnnpack", "portable"}


def test_compiling_again_after_a_reset(lowered: Lowered) -> None:
    net = Net().eval()
    x = image()
    for _ in range(3):
        with torch.no_grad():
            assert_same(compile_on(net)(x), net(x))
        torch._dynamo.reset()
    assert lowered.backends == {"xnnpack"}


def test_a_factorization_that_may_fail_runs_in_training(lowered: Lowered) -> None:
    a, b = (torch.eye(3) * 2).requires_grad_(), torch.ones(3, 1)
    assert_same(compile_on(torch.linalg.solve)(a, b), b / 2)
    assert lowered.backends == {"portable"}


def test_torchs_own_option_about_guards(lowered: Lowered) -> None:
    net, x = Net().eval(), image()
    options = {"backends": "xnnpack", "guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    with torch.no_grad():
        result = torch.compile(net, backend=compile_graph, options=options)(x)
        assert_same(result, net(x))
    assert lowered.backends == {"xnnpack"}


def test_an_operator_that_only_torch_runs(lowered: Lowered) -> None:
    @torch.library.custom_op("delegate_tests::without_kernel", mutates_args=())
    def without_kernel(x: T) -> T:
        return x * 3

    without_kernel.register_fake(torch.empty_like)
    x = torch.randn(4, 4)
    with pytest.warns(
        RuntimeWarning, match=r"torch runs a graph that cannot be lowered: .*delegate_tests.without_kernel"
    ):
        result = compile_on(lambda x: without_kernel(x) + 1, kernels="portable")(x)
    assert_same(result, x * 3 + 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"confg": "a.yaml"}, "did you mean 'config'"), ({"backends": "xnnpak"}, "did you mean 'xnnpack'")],
)
def test_wrong_options_are_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=message):
        compile_on(nn.ReLU(), **options)(torch.ones(2))


SCRIPT = """
import torch
from delegate.testing import assert_same

config = {path!r}
model = torch.nn.Linear(4, 2).eval()
compiled = torch.compile(model, backend="delegate", options={{"config": config}})
x = torch.randn(3, 4)
with torch.no_grad():
    assert_same(compiled(x), model(x), 1e-6)
assert "delegate" in torch._dynamo.list_backends()
"""


@pytest.mark.extended
def test_by_name(tmp_path: Path) -> None:
    """Check that torch finds the backend by its entry point."""
    distribution = tmp_path / "entry-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: entry\nVersion: 1.0\n")
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("delegate = ")]
    (distribution / "entry_points.txt").write_text("[torch_dynamo_backends]\n" + line.replace('"', "") + "\n")
    (tmp_path / "c.yaml").write_text("backends: [xnnpack]\n")
    (tmp_path / "script.py").write_text(SCRIPT.format(path=str(tmp_path / "c.yaml")))
    subprocess.run([sys.executable, str(tmp_path / "script.py")], check=True)
