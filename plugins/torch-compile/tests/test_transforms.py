"""Derivatives inside compiled functions equal eager in every gradient mode, also if no input requires gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
import torch
from torch.utils._pytree import tree_leaves

from delegate.testing import assert_same
from tests.support.sampling import every

from .compiling import Lowered, compile_on
from .transforms import CASES, energy

_FROM_TORCH_ITSELF = (
    "`torch.jit.script` is deprecated",
    ".*should not be instantiated:DeprecationWarning",
    "Attempted to insert a get_attr Node:UserWarning",
)
pytestmark = [pytest.mark.filterwarnings(f"ignore:{words}") for words in _FROM_TORCH_ITSELF]


def compare(name: str, mode: AbstractContextManager[object], dynamic: bool) -> None:
    """Compare a case with eager on one number of rows, or on two if the sizes are dynamic."""
    torch.manual_seed(0)
    fast = compile_on(CASES[name], dynamic=dynamic)
    for rows in (4, 5) if dynamic else (4,):
        x = torch.randn(rows, 6)
        with mode:
            mine, reference = tree_leaves(fast(x)), tree_leaves(CASES[name](x))
        assert [t.requires_grad for t in mine] == [t.requires_grad for t in reference]
        assert_same([t.detach() for t in mine], [t.detach() for t in reference])


@pytest.mark.parametrize("name", CASES)
def test_without_gradients(name: str, lowered: Lowered) -> None:
    compare(name, torch.no_grad(), dynamic=False)
    assert "xnnpack" in lowered.backends


# Torch cannot decompose torch.cond again if its branches take dynamic sizes; then torch runs the graph, with a warning.
@pytest.mark.parametrize("name", every(4, [name for name in CASES if name != "grad_in_a_branch"]))
def test_dynamic_sizes(name: str, lowered: Lowered) -> None:
    compare(name, torch.no_grad(), dynamic=True)
    assert "xnnpack" in lowered.backends


@pytest.mark.parametrize("name", every(6, CASES))
def test_with_gradients(name: str, lowered: Lowered) -> None:
    compare(name, torch.enable_grad(), dynamic=False)
    assert "xnnpack" in lowered.backends


@pytest.mark.parametrize("name", ["forces", "grad_of_weights", "backward"])
def test_without_graph_breaks(name: str, lowered: Lowered) -> None:
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compare(name, torch.no_grad(), dynamic=False)
    assert len(lowered) == 1
    assert lowered.backends >= {"xnnpack"}


def test_composites_are_preserved_in_vmap(lowered: Lowered) -> None:
    """Language models make their masks by vmap, beside operators that backends run whole."""
    weight = torch.randn(8, 6)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(torch.func.vmap(torch.cos)(x), weight)

    x = torch.randn(4, 6)
    with torch.no_grad():
        assert_same(compile_on(function)(x), function(x))
    assert "aten.linear.default" in {node.op for program in lowered for node in program.report.nodes}


@pytest.mark.extended
def test_after_a_failure(lowered: Lowered) -> None:
    """A function that torch cannot differentiate leaves nothing behind."""
    x = torch.randn(4, 6)
    with torch.no_grad(), pytest.raises(NotImplementedError, match="forward AD"):
        compile_on(torch.func.hessian(energy))(x)
    torch._dynamo.reset()
    for name in ("jvp", "jacfwd", "hessian", "grad"):
        compare(name, torch.no_grad(), dynamic=False)
    assert "xnnpack" in lowered.backends
