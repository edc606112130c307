"""Modules with their inputs: cases of a backend's author, awkward cases and common cases that test every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional as F

from delegate.edge.torch_private import pytree


@dataclass(frozen=True)
class Case:
    """A module that a backend runs.

    Args:
        module: the module, in eval mode.
        args: example inputs.
        dynamic_shapes: the argument of `torch.export.export`.
        others: inputs of other sizes, if sizes are dynamic.
        tolerance: the largest absolute error, relative to the largest absolute value; None for the test class's
            tolerance.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    dynamic_shapes: Any = None
    others: tuple[tuple[Any, ...], ...] = ()
    tolerance: float | None = None

    def export(self) -> ExportedProgram:
        """Return the exported module, which all tests of the case share."""
        return self._exported

    @cached_property
    def _exported(self) -> ExportedProgram:
        return torch.export.export(self.module, self.args, dynamic_shapes=self.dynamic_shapes)

    def with_dynamic_batch(self) -> Case | None:
        """Return the case with a dynamic first dimension of its inputs, at several sizes; None if the module fixes it.

        A size of 1 becomes 2, since torch fixes it otherwise.
        """
        args = pytree.tree_map_only(Tensor, lambda x: _of_rows(x, max(x.shape[0], 2)) if x.dim() else x, self.args)
        shapes = pytree.tree_map(lambda x: {0: Dim.AUTO} if isinstance(x, Tensor) and x.dim() else None, args)
        case = replace(self, args=args, dynamic_shapes=shapes)
        try:
            exported = case.export()
        except Exception:  # the export raises many errors, and any module may reject a batch of 2
            return None
        if not exported.range_constraints:
            return None
        others = tuple(pytree.tree_map_only(Tensor, partial(_times, by), args) for by in (3, 1))
        return replace(case, others=others)


def _of_rows(x: Tensor, count: int) -> Tensor:
    """Return a tensor with so many rows, which are the rows of x in turn."""
    return x[torch.arange(count) % x.shape[0]] if x.shape[0] else x


def _times(by: int, x: Tensor) -> Tensor:
    """Return a tensor with so many times the rows."""
    return _of_rows(x, x.shape[0] * by) if x.dim() else x


class _Second(torch.nn.Module):
    def forward(self, unused: Tensor, x: Tensor) -> Tensor:
        return torch.relu(x + 1)


def _quantize(x: Tensor) -> Tensor:
    """Round values to int8 and back, between operators on floats."""
    parameters = 0.05, 3, -128, 127, torch.int8
    integers = torch.ops.quantized_decomposed.quantize_per_tensor.default(torch.relu(x), *parameters)
    result: Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor.default(integers, *parameters) * 2
    return result


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def _case(function: Callable[[Any], Any], x: Tensor, *others: Tensor) -> Case:
    dynamic = {"x": {0: Dim("n", min=0, max=64)}} if others else None
    return Case(_Module(function), (x,), dynamic, tuple((other,) for other in others))


def floats(*shape: int) -> Tensor:
    """Return different numbers of both signs, the same on every machine."""
    count = int(torch.Size(shape).numel())
    return torch.linspace(-2, 3, count).reshape(shape) if count else torch.empty(shape)


SIZES = (4, 1, 0, 9)  # of a dynamic dimension; torch specializes as if no size were 0 or 1
WEIGHT, KERNEL = floats(3, 5), floats(2, 3, 3, 3)
AWKWARD: Mapping[str, Case] = {
    "numbers of no dimension": _case(lambda x: (torch.relu(x + 1), x * x), torch.tensor(1.5)),
    "nothing in a dimension": _case(lambda x: (torch.relu(x + 1), x.sum(), x @ torch.ones(3, 2)), floats(0, 3)),
    "six dimensions": _case(lambda x: torch.relu(x + x.permute(5, 4, 3, 2, 1, 0)), floats(2, 1, 3, 3, 1, 2)),
    "float64": _case(lambda x: torch.tanh(x * 2 + x), floats(2, 3).double()),
    "float16": _case(lambda x: torch.relu(x * 2 + x), floats(2, 3).half()),
    "bfloat16": _case(lambda x: torch.relu(x * 2 + x), floats(2, 3).bfloat16()),
    "int64 beyond 32 bits": _case(lambda x: (x + 2**40, x * 3, torch.maximum(x, -x)), torch.tensor([-7, 0, 2**33])),
    "int8 that wraps": _case(lambda x: (x + x, x * x, -x), torch.tensor([-128, -100, 3, 127], dtype=torch.int8)),
    "booleans": _case(lambda x: (x > 0, (x > 0) & (x < 1), (x > 0).any()), floats(2, 3)),
    "complex numbers": _case(lambda x: (x * x).abs() + x.real, torch.complex(floats(4), floats(4).flip(0))),
    "infinities and NaN": _case(
        lambda x: (x + 1, x * 2, torch.maximum(x, x.neg())),
        torch.tensor([1.0, -1.0, 0.0, 2.0]) / 0,
    ),
    "several results, one unused": _case(lambda x: torch.max(x, 1)[0] + torch.topk(x, 1)[0].squeeze(1), floats(3, 4)),
    "an input given back": _case(lambda x: (x, torch.relu(x)), floats(2, 3)),
    "copies of an input": _case(lambda x: (torch.relu(x.t()), x.clone(), x * 2, x.clone()), floats(2, 3)),
    "copies of booleans": _case(lambda x: (x.logical_not(), x.clone()), floats(2, 3) > 0),
    "copies of a dynamic size": _case(
        lambda x: (torch.relu(x.t()), x.clone(), x.sum(0)), *(floats(n, 3) for n in SIZES)
    ),
    "one result twice": _case(lambda x: [torch.relu(x + 1)] * 2, floats(2, 3)),
    "views as results": _case(lambda x: (torch.relu(x).t(), torch.relu(x)[:, ::2]), floats(4, 6)),
    "a number for a tensor": _case(lambda x: torch.add(x, 1.5, alpha=2) - 3, floats(2, 3)),
    "broadcast": _case(lambda x: x + x[:1] * x[:, :1], floats(3, 3)),
    "an input that is not used": Case(_Second(), (floats(5), floats(2, 3))),
    "quantized values": _case(_quantize, floats(4, 6)),
    "views of a dynamic size": _case(
        lambda x: torch.relu(x.reshape(x.shape[0] * 3) + 1).view(-1, 3).t()[:2], *(floats(n, 3) for n in SIZES)
    ),
    "numbers of a dynamic size": _case(
        lambda x: (x * (x.shape[0] * 0.25), x.clamp(max=x.shape[0] * 0.5), torch.celu(x, (x.shape[0] + 1) / 4)),
        *(floats(n, 3) for n in SIZES),
    ),
    "a dynamic size": _case(lambda x: torch.relu(x + x.sum(0)) * x.shape[0], *(floats(n, 3) for n in SIZES)),
    "layers on a dynamic size": _case(
        lambda x: (torch.softmax(x @ WEIGHT, 1), torch.cat([x, x * 2], 1), x.mean(1), torch.max(x, 1)[0]),
        *(floats(n, 3) for n in SIZES),
    ),
    "images of a dynamic number": _case(
        lambda x: torch.max_pool2d(torch.relu(torch.conv2d(x, KERNEL)), 2).flatten(1),
        *(floats(n, 3, 6, 6) for n in SIZES),
    ),
}


class _Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


def _one(module: nn.Module, *shape: int) -> Case:
    """Return the case of a module with one input, with the same weights on every machine."""
    with torch.no_grad():
        for i, weight in enumerate(module.parameters()):
            weight.copy_(torch.linspace(-0.5, 0.5 + i, weight.numel()).reshape(weight.shape))
    return Case(module.eval(), (floats(*shape),))


def _two(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    """Return the case of a function with two inputs."""
    first, second = (floats(*shape) for shape in shapes)
    return Case(_Function(function), (first, second.flip(0)))


SAME = (4, 6), (4, 6)
COMMON: Mapping[str, Case] = {
    "add": _two(lambda x, y: x + y, *SAME),
    "sub, mul": _two(lambda x, y: (x - y) * y, *SAME),
    "div": _two(lambda x, y: x / (y.abs() + 1), *SAME),
    "maximum, minimum": _two(lambda x, y: torch.maximum(x, y) + torch.minimum(x, -y), *SAME),
    "compare, where": _two(lambda x, y: torch.where(x > y, x, y * 2), *SAME),
    "relu": _one(nn.ReLU(), 4, 6),
    "gelu": _one(nn.GELU(), 4, 6),
    "silu, sigmoid": _one(nn.Sequential(nn.SiLU(), nn.Sigmoid()), 4, 6),
    "tanh": _one(nn.Tanh(), 4, 6),
    "hardswish": _one(nn.Hardswish(), 4, 6),
    "softmax": _one(nn.Softmax(-1), 4, 6),
    "softmax of the middle": _one(nn.Softmax(1), 2, 3, 5),
    "exp, log": _two(lambda x, y: torch.exp(x * 8) + torch.log(y.abs() + 1), *SAME),
    "sqrt of negative numbers": _two(lambda x, y: torch.sqrt(x) + torch.rsqrt(y), *SAME),
    "linear": _one(nn.Linear(6, 3), 4, 6),
    "matmul": _two(lambda x, y: x @ y, (2, 4, 6), (2, 6, 3)),
    "conv2d": _one(nn.Conv2d(3, 4, 3, padding=1), 1, 3, 8, 8),
    "conv2d, depthwise": _one(nn.Conv2d(4, 4, 3, stride=2, groups=4), 1, 4, 9, 9),
    "conv2d, batch norm, relu": _one(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), 1, 3, 8, 8),
    "max pool": _one(nn.MaxPool2d(2), 1, 3, 8, 8),
    "average pool": _one(nn.AdaptiveAvgPool2d(1), 1, 3, 8, 8),
    "layer norm": _one(nn.LayerNorm(6), 4, 6),
    "mean, sum": _two(lambda x, y: x.mean(1) + y.sum(1), *SAME),
    "concatenate": _two(lambda x, y: torch.cat([x, y], 1) * 2, *SAME),
    "reshape, permute": _two(
        lambda x, y: x.reshape(-1, 3, 2).permute(2, 0, 1) + y.reshape(-1, 2, 3).permute(1, 0, 2), *SAME
    ),
    "attention": _two(lambda x, y: F.scaled_dot_product_attention(x, y, y), (1, 2, 4, 8), (1, 2, 4, 8)),
}
