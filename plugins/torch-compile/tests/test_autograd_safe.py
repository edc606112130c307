"""The verifier of autograd-safe ATen knows what torch can differentiate."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from delegate_torch_compile.autograd import AUTOGRAD_SAFE
from torch.export import export

from delegate.errors import DialectError
from tests.support.functions import Function

T = torch.Tensor
X, SQUARE = torch.rand(4, 4), torch.eye(4)


@torch.library.custom_op("delegate_tests::no_formula", mutates_args=())
def no_formula(x: T) -> T:
    return x * 2


no_formula.register_fake(torch.empty_like)


@torch.library.custom_op("delegate_tests::with_formula", mutates_args=())
def with_formula(x: T) -> T:
    return x * 2


with_formula.register_fake(torch.empty_like)
with_formula.register_autograd(lambda _, grad: grad * 2)


SAFE: dict[str, Callable[[T], T]] = {
    "linear": lambda x: torch.nn.functional.linear(x, x),
    "attention": lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "convolution": lambda x: torch.nn.functional.conv1d(x[None], x[None]),
    "norms": lambda x: torch.nn.functional.layer_norm(
        torch.nn.functional.batch_norm(x, None, None, training=True), [4]
    ),
    "a sum": lambda x: x.sum() + x.logsumexp(0),
    "sorted": lambda x: x.sort().values + x.topk(2).values.sum(),
    "picked": lambda x: x[torch.tensor([1, 0, 3, 2])] + x.gather(0, x.argsort(0)),
    "integers": lambda x: x + (x.argmax(0) * 3),
    "no gradients by nature": lambda x: x * (x > 0.5) + torch.zeros_like(x) + x.floor(),
    "eigenvalues": torch.linalg.eigvalsh,
    "writes": lambda x: x.clone().add_(x).relu_(),
    "a custom operator": with_formula,
}
UNSAFE: dict[str, tuple[Callable[[T], T], str]] = {
    "heaviside": (lambda x: torch.heaviside(x, x * 2), "aten.heaviside.default"),
    "igamma": (lambda x: torch.igamma(x, x), "aten.igamma.default"),
    "a custom operator": (lambda x: no_formula(x) + 1, "delegate_tests.no_formula.default"),
}


@pytest.mark.parametrize("function", SAFE.values(), ids=SAFE.keys())
def test_safe(function: Callable[[T], T]) -> None:
    AUTOGRAD_SAFE.check(export(Function(function), (X,)).graph_module)


@pytest.mark.parametrize(("function", "operator"), UNSAFE.values(), ids=UNSAFE.keys())
def test_not_safe(function: Callable[[T], T], operator: str) -> None:
    with pytest.raises(DialectError, match=rf"not autograd-safe ATen: every operator must have a .*{operator}.*detach"):
        AUTOGRAD_SAFE.check(export(Function(function), (X,)).graph_module)


def test_every_node_has_a_value() -> None:
    module = export(Function(torch.relu), (X,)).graph_module
    del module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[0].meta["val"]
    with pytest.raises(DialectError, match="every node must have its value"):
        AUTOGRAD_SAFE.check(module)
