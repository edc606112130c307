"""Operators between quantized values, with generated scales, zero points, sizes and windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tests.support.qdq import Coded, Parameters, Weights, drawn, fitted

Draw = Callable[[torch.Generator], Any]


def r(*shape: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator) * 2


@dataclass(frozen=True, slots=True)
class Op:
    """An operator.

    Args:
        shapes: of its activations.
        make: gives the function of them, with what the generator draws.
        same: the result has the parameters of the first input.
        steps: how far off the result may be.
        symmetric: inputs whose zero point is 0.
        floats: XNNPACK has it in floats alone; None where that depends on the parameters.
    """

    shapes: Sequence[tuple[int, ...]]
    make: Draw
    same: bool = False
    steps: int = 1
    symmetric: tuple[int, ...] = ()
    floats: bool | None = False


def plain(function: Callable[..., Any]) -> Draw:
    return lambda generator: function


def conv(
    shape: tuple[int, ...],
    axis: int | None = 0,
    bias: bool = True,
    act: Any = lambda x: x,
    f: Any = F.conv2d,
    **options: Any,
) -> Draw:
    def make(g: torch.Generator) -> Any:
        outputs = shape[1] * options.get("groups", 1) if "transpose" in f.__name__ else shape[0]
        weight, b = r(*shape, generator=g), r(outputs, generator=g) if bias else None
        return Weights(lambda x, w, b: f(x, w, b, **options), weight, axis, b, act=act)

    return make


def linear(outputs: int, inputs: int, axis: int | None = 0, bias: bool = True, act: Any = lambda x: x) -> Draw:
    return lambda g: Weights(
        F.linear, r(outputs, inputs, generator=g), axis, r(outputs, generator=g) if bias else None, act=act
    )


IMAGE = (2, 8, 9, 7)
OPS: dict[str, Op] = {
    "conv": Op([IMAGE], conv((6, 8, 3, 3))),
    "conv per tensor": Op([IMAGE], conv((6, 8, 3, 3), axis=None)),
    "conv without bias": Op([IMAGE], conv((6, 8, 3, 3), bias=False)),
    "conv relu": Op([IMAGE], conv((6, 8, 3, 3), act=F.relu, padding=1)),
    "conv relu6": Op([IMAGE], conv((6, 8, 3, 3), act=F.relu6, padding=(1, 0))),
    "conv hardtanh": Op([IMAGE], conv((6, 8, 3, 3), act=F.hardtanh)),
    "conv clamp": Op([IMAGE], conv((6, 8, 3, 3), act=lambda x: x.clamp(-0.5, 2.5)), floats=None),
    "conv stride dilation": Op([IMAGE], conv((6, 8, 3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 3))),
    "conv groups": Op([IMAGE], conv((6, 4, 3, 3), groups=2, padding=1)),
    "conv 1x1": Op([IMAGE], conv((5, 8, 1, 1))),
    "conv 1d": Op([(2, 8, 11)], conv((6, 8, 3), f=F.conv1d, padding=1)),
    "depthwise": Op([IMAGE], conv((8, 1, 3, 3), groups=8, padding=1)),
    "depthwise stride": Op([IMAGE], conv((8, 1, 3, 3), groups=8, stride=2, padding=1, act=F.relu6)),
    "depthwise twice": Op([IMAGE], conv((16, 1, 3, 3), groups=8, padding=1)),
    "depthwise 7x7": Op([IMAGE], conv((8, 1, 7, 7), groups=8, padding=3)),
    "depthwise per tensor": Op([IMAGE], conv((8, 1, 3, 3), axis=None, groups=8)),
    "transposed": Op([IMAGE], conv((8, 6, 3, 3), axis=1, f=F.conv_transpose2d, stride=2, padding=1)),
    "transposed output_padding": Op(
        [IMAGE], conv((8, 6, 3, 3), axis=1, f=F.conv_transpose2d, stride=2, padding=1, output_padding=1)
    ),
    "transposed per tensor": Op([IMAGE], conv((8, 6, 2, 2), axis=None, f=F.conv_transpose2d, stride=2)),
    "linear": Op([(3, 20)], linear(7, 20)),
    "linear relu": Op([(2, 3, 20)], linear(7, 20, act=F.relu)),
    "linear per tensor": Op([(3, 20)], linear(7, 20, axis=None, bias=False)),
    "linear of a vector": Op([(20,)], linear(7, 20)),
    "add": Op([IMAGE, IMAGE], plain(torch.add)),
    "add relu": Op([IMAGE, IMAGE], plain(lambda x, y: F.relu(x + y))),
    "add broadcast": Op([IMAGE, (8, 1, 1)], plain(torch.add)),
    "add number": Op([IMAGE], plain(lambda x: x + 1.5)),
    "sub": Op([IMAGE, IMAGE], plain(torch.sub)),
    "rsub number": Op([IMAGE], plain(lambda x: 1.0 - x)),
    "mul": Op([IMAGE, IMAGE], plain(torch.mul)),
    "mul broadcast": Op([IMAGE, (2, 8, 1, 1)], plain(torch.mul)),
    "mul number": Op([IMAGE], plain(lambda x: x * 0.37)),
    "mul relu6": Op([IMAGE, IMAGE], plain(lambda x, y: F.relu6(x * y))),
    "div": Op([IMAGE], plain(lambda x: x / 3), floats=True),
    "matmul": Op([(2, 4, 5, 8), (2, 4, 8, 6)], plain(torch.matmul), symmetric=(1,)),
    "matmul turned": Op([(2, 5, 8), (2, 6, 8)], plain(lambda a, b: a @ b.transpose(1, 2)), symmetric=(1,)),
    "matmul about other zeros": Op([(2, 5, 8), (2, 8, 6)], plain(torch.matmul), floats=True),
    "mean": Op([IMAGE], plain(lambda x: x.mean((2, 3)))),
    "mean last": Op([(3, 20)], plain(lambda x: x.mean(-1, keepdim=True))),
    "global pool": Op([IMAGE], plain(lambda x: F.adaptive_avg_pool2d(x, 1))),
    "adaptive pool": Op([(2, 8, 8, 6)], plain(lambda x: F.adaptive_avg_pool2d(x, (4, 3)))),
    "adaptive pool, uneven": Op([IMAGE], plain(lambda x: F.adaptive_avg_pool2d(x, (4, 3))), floats=True),
    "avg pool": Op([IMAGE], plain(lambda x: F.avg_pool2d(x, 2))),
    "avg pool padded": Op([IMAGE], plain(lambda x: F.avg_pool2d(x, 3, 2, 1))),
    "avg pool with gaps": Op([IMAGE], plain(lambda x: F.avg_pool2d(x, 1, 2))),
    "max pool of one element": Op([IMAGE], plain(lambda x: F.max_pool2d(x, 1, 2))),
    "avg pool not padded": Op([IMAGE], plain(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)), floats=True),
    "max pool": Op([IMAGE], plain(lambda x: F.max_pool2d(x, 2)), same=True, steps=0),
    "max pool padded": Op([IMAGE], plain(lambda x: F.max_pool2d(x, 3, 2, 1)), same=True, steps=0),
    "amax": Op([IMAGE], plain(lambda x: x.amax((2, 3))), same=True, steps=0),
    "sigmoid": Op([IMAGE], plain(torch.sigmoid)),
    "tanh": Op([IMAGE], plain(torch.tanh)),
    "silu": Op([IMAGE], plain(F.silu), steps=2),
    "elu": Op([IMAGE], plain(F.elu)),
    "leaky relu": Op([IMAGE], plain(lambda x: F.leaky_relu(x, 0.1))),
    "leaky relu below": Op([IMAGE], plain(lambda x: F.leaky_relu(x, -0.3))),
    "relu": Op([IMAGE], plain(F.relu)),
    "relu6": Op([IMAGE], plain(F.relu6)),
    "hardswish": Op([IMAGE], plain(F.hardswish), floats=True),
    "hardsigmoid": Op([IMAGE], plain(F.hardsigmoid), floats=True),
    "gelu": Op([IMAGE], plain(F.gelu), floats=True),
    "softmax": Op([IMAGE], plain(lambda x: x.softmax(-1)), floats=True),
    "layer norm": Op([IMAGE], plain(lambda x: F.layer_norm(x, (7,))), floats=True),
    "view": Op([IMAGE], plain(lambda x: x.reshape(2, 4, -1)), same=True, steps=0),
    "permute": Op([IMAGE], plain(lambda x: x.permute(0, 2, 3, 1)), same=True, steps=0),
    "slice": Op([IMAGE], plain(lambda x: x[:, 1:5, ::2]), same=True, steps=0),
    "select": Op([IMAGE], plain(lambda x: x[:, 2]), same=True, steps=0),
    "squeeze": Op([(2, 1, 5)], plain(lambda x: x.squeeze(1).unsqueeze(-1)), same=True, steps=0),
    "expand": Op([(2, 1, 5)], plain(lambda x: x.expand(2, 3, 5)), same=True, steps=0),
    "repeat": Op([(2, 3, 5)], plain(lambda x: x.repeat(1, 2, 2)), same=True, steps=0),
    "pad": Op([IMAGE], plain(lambda x: F.pad(x, (1, 2, 0, 1))), same=True, steps=0),
    "pad with a number": Op([IMAGE], plain(lambda x: F.pad(x, (1, 2), value=1.0)), same=True, floats=True),
    "pad reflect": Op([IMAGE], plain(lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect")), same=True, steps=0),
    "nearest": Op([IMAGE], plain(lambda x: F.interpolate(x, scale_factor=2.0)), same=True, steps=0),
    "bilinear": Op([IMAGE], plain(lambda x: F.interpolate(x, (18, 14), mode="bilinear")), same=True),
    "bilinear aligned": Op(
        [IMAGE], plain(lambda x: F.interpolate(x, (12, 11), mode="bilinear", align_corners=True)), same=True
    ),
    "pixel shuffle": Op([IMAGE], plain(lambda x: F.pixel_shuffle(x, 2)), same=True, steps=0),
    "cat": Op([IMAGE, IMAGE, IMAGE], plain(lambda *x: torch.cat(x, 1))),
    "cat last": Op([IMAGE, IMAGE], plain(lambda *x: torch.cat(x, -1))),
    "split": Op([IMAGE], plain(lambda x: torch.cat(x.split(4, 1)[::-1], 2)), same=True, steps=0),
    "chunk": Op([IMAGE], plain(lambda x: x.chunk(2, 1)[1]), same=True, steps=0),
    "copy": Op([IMAGE], plain(lambda x: x), steps=1),
}


def case(name: str, seed: int, dtype: torch.dtype = torch.int8) -> tuple[Coded, list[torch.Tensor], Parameters]:
    """Return a module with q/dq around an operator, its inputs, and the parameters of its result."""
    op = OPS[name]
    g = torch.Generator().manual_seed(seed)
    values = [r(*shape, generator=g) for shape in op.shapes]
    inputs = [fitted([v], dtype) if seed % 2 else drawn(g, dtype=dtype) for v in values]
    middle = 0 if dtype is torch.int8 else 128
    inputs = [Parameters(p.scale, middle, dtype) if i in op.symmetric else p for i, p in enumerate(inputs)]
    function = op.make(g)
    with torch.no_grad():
        floats = function(*(p.through(v) for p, v in zip(inputs, values, strict=True)))
    result = inputs[0] if op.same else fitted([floats], dtype)
    if not op.same and seed % 3 == 2:  # another range than what comes
        result = Parameters(result.scale * 0.6, drawn(g, dtype=dtype).zero_point, dtype)
    return Coded(function, inputs, result), values, result
