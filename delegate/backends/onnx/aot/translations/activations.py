"""Activations, kept whole where ONNX has them whole or where their parts would lose precision."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from delegate.backends.lowering import every, no_nan
from delegate.backends.onnx.aot.translations.row import floating, ints, ops, row, scalar, typed
from delegate.edge.node import arguments
from delegate.verdict import YES, Reason, Verdict, no

_VANISHED = -30.0  # 1 + exp(-30) is 1 in float32; further down float16 units go astray


def _softplus_threshold(node: Node) -> Verdict:
    """The threshold, beyond which torch gives the input itself, is 15 to 88: no float32 distinguishes the two.
    The number beta is at most 1024, and its reciprocal too.
    """
    threshold, beta = arguments(node)["threshold"], arguments(node)["beta"]
    if not 15 <= threshold <= 88:  # torch's exponential overflows beyond
        return no(Reason.ATTRIBUTE, f"threshold={threshold}")
    return YES if 2**-10 <= abs(beta) <= 2**10 else no(Reason.ATTRIBUTE, f"beta={beta}")


def _moderate_alpha(node: Node) -> Verdict:
    """The number alpha is 1/16 to 16: the exponential less 1 loses digits near 0."""
    alpha = arguments(node)["alpha"]
    return YES if 1 / 16 <= alpha <= 16 else no(Reason.ATTRIBUTE, f"alpha={alpha}")


def _plain_elu(node: Node) -> Verdict:
    """Values below 0 are not scaled before the exponential: the exporter would scale all values."""
    scaled = arguments(node)["input_scale"]
    return YES if scaled == 1 else no(Reason.ATTRIBUTE, f"input_scale={scaled}")


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return log(1 + exp(beta x)) / beta, computed so that nothing overflows."""
    op = ops()
    scaled = op.Mul(x, scalar(beta, x))
    decay = op.Max(op.Neg(op.Abs(scaled)), scalar(_VANISHED, x))
    tail = op.Log(op.Add(op.Exp(decay), scalar(1.0, x)))
    return op.Div(op.Add(op.Relu(scaled), tail), scalar(beta, x))


def mish(x: Any) -> Any:
    """Return x tanh(softplus(x))."""
    op = ops()
    return op.Mul(x, op.Tanh(softplus(x)))


def log_sigmoid(x: Any) -> Any:
    """Return -softplus(-x). The exporter's log(sigmoid(x)) is -inf from -104 down."""
    op = ops()
    return op.Neg(softplus(typed(op.Neg(x), x)))


def celu(x: Any, alpha: float = 1.0) -> Any:
    """Return alpha elu(x / alpha)."""
    op = ops()
    return op.Mul(op.Elu(op.Div(x, scalar(alpha, x))), scalar(alpha, x))


def log_softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    """Return x - max - log(sum(exp(x - max))), since hardly any GPU provider has LogSoftmax."""
    op = ops()
    shifted = op.Sub(x, op.ReduceMax(x, ints([dim])))
    return op.Sub(shifted, op.Log(op.ReduceSum(op.Exp(shifted), ints([dim]))))


_SOFTPLUS = ("Mul", "Abs", "Neg", "Max", "Exp", "Add", "Log", "Relu", "Div")
_WHOLE: dict[str, tuple[str, ...]] = {
    "gelu": ("Gelu",),
    "silu": ("Sigmoid", "Mul"),
    "hardswish": ("HardSwish",),
    "hardsigmoid": ("HardSigmoid",),
    "prelu": ("PRelu", "Reshape"),
    "_prelu_kernel": ("PRelu", "Reshape"),
    "glu": ("Split", "Sigmoid", "Mul"),
}

ROWS = (
    row("aten.relu.default", ("Relu",), floating),
    row("aten.leaky_relu.default", ("LeakyRelu",), every(floating, no_nan)),
    row("aten.elu.default", ("Elu", "Mul"), every(floating, _plain_elu)),
    row("aten.celu.default", ("Elu", "Div", "Mul"), every(floating, _moderate_alpha), keep=True, translate=celu),
    row("aten.hardtanh.default", ("Clip",), every(floating, no_nan)),
    *(row(f"aten.{name}.default", onnx, floating, keep=True) for name, onnx in _WHOLE.items()),
    row("aten.softplus.default", _SOFTPLUS, every(floating, _softplus_threshold), keep=True, translate=softplus),
    row("aten.mish.default", (*_SOFTPLUS, "Tanh"), floating, keep=True, translate=mish),
    row("aten.log_sigmoid.default", _SOFTPLUS, floating, keep=True, translate=log_sigmoid),
    row("aten._softmax.default", ("Softmax",), floating),
    row("aten._log_softmax.default", ("ReduceMax", "Sub", "Exp", "ReduceSum", "Log"), floating, translate=log_softmax),
)
