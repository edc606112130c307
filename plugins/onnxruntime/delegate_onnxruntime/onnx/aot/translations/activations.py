"""Activations, kept whole where ONNX has them whole or where their parts would lose precision."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from delegate.backend.lowering import every, no_nan
from delegate.edge.node import arguments
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.elementwise import log1p_series
from delegate_onnxruntime.onnx.aot.translations.row import floating, ints, ops, row, scalar, set_dtype

_VANISHED = -30.0  # 1 + exp(-30) is 1 in float16, whose units go astray further down
_SERIES = {"FLOAT16": 0, "FLOAT": 13}  # last exponent of the series of log(1 + e) in a dtype; 0: by Log


def _softplus_threshold(node: Node) -> Verdict:
    """The threshold, beyond which torch gives the input itself, is 15 to 88: no float32 distinguishes the two.
    The number beta is at most 1024, and its reciprocal too.
    """
    threshold, beta = arguments(node)["threshold"], arguments(node)["beta"]
    if not 15 <= threshold <= 88:  # torch's exponential overflows beyond
        return no(Reason.ATTRIBUTE, f"threshold={threshold}")
    return YES if 2**-10 <= abs(beta) <= 2**10 else no(Reason.ATTRIBUTE, f"beta={beta}")


def _plain_elu(node: Node) -> Verdict:
    """Values below 0 are not scaled before the exponential: the exporter would scale all values."""
    scaled = arguments(node)["input_scale"]
    return YES if scaled == 1 else no(Reason.ATTRIBUTE, f"input_scale={scaled}")


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)): the relative error is small for far negative numbers too, and nothing overflows."""
    return ops().Reciprocal(_decay(x))


def silu(x: Any) -> Any:
    """Return x sigmoid(x), by one division."""
    return ops().Div(x, _decay(x))


def glu(x: Any, dim: int = -1) -> Any:
    """Return the first half of a dimension times the sigmoid of the second half."""
    op = ops()
    first, second = op.Split(x, axis=dim, num_outputs=2)
    return op.Div(first, _decay(set_dtype(second, x)))


def _decay(x: Any) -> Any:
    op = ops()
    return op.Add(op.Exp(op.Neg(x)), scalar(1.0, x))


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """Return log(1 + exp(beta x)) / beta, computed so that nothing overflows and small results keep their digits."""
    op = ops()
    scaled = x if beta == 1 else set_dtype(op.Mul(x, scalar(beta, x)), x)
    beyond = op.Relu(x) if beta > 0 else op.Min(x, scalar(0.0, x))
    tail = _log1p_exp(scaled)
    return op.Add(beyond, tail if beta == 1 else op.Mul(tail, scalar(1 / beta, x)))


def _log1p_exp(x: Any) -> Any:
    """Return log(1 + exp(-|x|)), by its series where the dtype has more digits than float16."""
    op, decay = ops(), ops().Neg(ops().Abs(x))
    last = _SERIES[x.dtype.name]
    if not last:
        return op.Log(op.Add(op.Exp(op.Max(decay, scalar(_VANISHED, x))), scalar(1.0, x)))
    return log1p_series(set_dtype(op.Exp(decay), x), last)


def mish(x: Any) -> Any:
    """Return x tanh(softplus(x))."""
    op = ops()
    return op.Mul(x, op.Tanh(softplus(x)))


def log_sigmoid(x: Any) -> Any:
    """Return -softplus(-x), because the exporter's log(sigmoid(x)) is -inf from -104 down."""
    op = ops()
    return op.Neg(softplus(set_dtype(op.Neg(x), x)))


def elu_by_tanh(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """Return ELU, whose Elu of ONNX Runtime's CPU loses the digits of small results."""
    return _elu(x, scale, alpha * scale, 0.5)


def _elu(x: Any, above: float, below: float, half: float) -> Any:
    """Return above x, or below expm1(2 half x) for x < 0: with t = tanh(half x), expm1 is 2 t / (1 - t)."""
    op = ops()
    t = op.Tanh(op.Mul(op.Min(x, scalar(0.0, x)), scalar(half, x)))
    negative = op.Mul(op.Div(t, op.Sub(scalar(1.0, x), t)), scalar(2 * below, x))
    positive = op.Relu(x) if above == 1 else op.Mul(op.Relu(x), scalar(above, x))
    return op.Add(positive, negative)


def log_softmax(x: Any, dim: int, half_to_float: bool = False) -> Any:
    """Return x - max - log(sum(exp(x - max))), since hardly any GPU provider has LogSoftmax."""
    op = ops()
    shifted = op.Sub(x, op.ReduceMax(x, ints([dim])))
    return op.Sub(shifted, op.Log(op.ReduceSum(op.Exp(shifted), ints([dim]))))


_SOFTPLUS = ("Mul", "Abs", "Neg", "Max", "Min", "Exp", "Add", "Log", "Relu", "Div")
_BY_TANH = ("Min", "Mul", "Tanh", "Sub", "Div", "Relu", "Add")
_DECAY = ("Neg", "Exp", "Add")
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
    row("aten.elu.default", _BY_TANH, every(floating, _plain_elu), translate=elu_by_tanh),
    row("aten.hardtanh.default", ("Clip",), every(floating, no_nan)),
    *(row(f"aten.{name}.default", onnx, floating, keep=True) for name, onnx in _WHOLE.items()),
    row("aten.sigmoid.default", ("Sigmoid",), floating),
    row("aten.sigmoid.default", (*_DECAY, "Reciprocal"), floating, translate=sigmoid),
    row("aten.silu.default", (*_DECAY, "Div"), floating, keep=True, translate=silu),
    row("aten.glu.default", ("Split", *_DECAY, "Div"), floating, keep=True, translate=glu),
    row("aten.softplus.default", _SOFTPLUS, every(floating, _softplus_threshold), keep=True, translate=softplus),
    row("aten.mish.default", (*_SOFTPLUS, "Tanh"), floating, keep=True, translate=mish),
    row("aten.log_sigmoid.default", _SOFTPLUS, floating, keep=True, translate=log_sigmoid),
    row("aten._softmax.default", ("Softmax",), floating),
    row("aten._log_softmax.default", ("ReduceMax", "Sub", "Exp", "ReduceSum", "Log"), floating, translate=log_softmax),
)
