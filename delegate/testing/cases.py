"""Modules with their inputs: cases of a backend's author, and awkward cases that test every backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram


@dataclass(frozen=True)
class Case:
    """A module that a backend runs.

    Args:
        module: the module, in eval mode.
        args: example inputs.
        dynamic_shapes: the argument of `torch.export.export`.
        others: inputs of other sizes, if sizes are dynamic.
        tolerance: the largest absolute error, relative to the largest absolute value; None for that of the test class.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    dynamic_shapes: Any = None
    others: tuple[tuple[Any, ...], ...] = ()
    tolerance: float | None = None

    def export(self) -> ExportedProgram:
        """Export the module."""
        return torch.export.export(self.module, self.args, dynamic_shapes=self.dynamic_shapes)


class _Second(torch.nn.Module):
    def forward(self, unused: Tensor, x: Tensor) -> Tensor:
        return torch.relu(x + 1)


def _quantized(x: Tensor) -> Tensor:
    """Round values to int8 and back, between operators on floats."""
    import torch.ao.quantization.fx._decomposed

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
    "truth values": _case(lambda x: (x > 0, (x > 0) & (x < 1), (x > 0).any()), floats(2, 3)),
    "complex numbers": _case(lambda x: (x * x).abs() + x.real, torch.complex(floats(4), floats(4).flip(0))),
    "infinities and NaN": _case(
        lambda x: (x + 1, x * 2, torch.maximum(x, x.neg())),
        torch.tensor([1.0, -1.0, 0.0, 2.0]) / 0,
    ),
    "several results, one unused": _case(lambda x: torch.max(x, 1)[0] + torch.topk(x, 1)[0].squeeze(1), floats(3, 4)),
    "an input given back": _case(lambda x: (x, torch.relu(x)), floats(2, 3)),
    "copies of an input": _case(lambda x: (torch.relu(x.t()), x.clone(), x * 2, x.clone()), floats(2, 3)),
    "copies of truth values": _case(lambda x: (x.logical_not(), x.clone()), floats(2, 3) > 0),
    "copies of a dynamic size": _case(
        lambda x: (torch.relu(x.t()), x.clone(), x.sum(0)), *(floats(n, 3) for n in SIZES)
    ),
    "one result twice": _case(lambda x: [torch.relu(x + 1)] * 2, floats(2, 3)),
    "views as results": _case(lambda x: (torch.relu(x).t(), torch.relu(x)[:, ::2]), floats(4, 6)),
    "a number for a tensor": _case(lambda x: torch.add(x, 1.5, alpha=2) - 3, floats(2, 3)),
    "broadcast": _case(lambda x: x + x[:1] * x[:, :1], floats(3, 3)),
    "an input that is not used": Case(_Second(), (floats(5), floats(2, 3))),
    "quantized values": _case(_quantized, floats(4, 6)),
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
