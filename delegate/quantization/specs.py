"""torchao's quantization specifications, made from a backend's integer types."""

from __future__ import annotations

from typing import Any

import torch
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e import (
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PlaceholderObserver,
)
from torchao.quantization.pt2e._affine_quantization import AffineQuantizedMinMaxObserver
from torchao.quantization.pt2e.quantizer import FixedQParamsQuantizationSpec, QuantizationSpec
from torchao.quantization.quant_primitives import MappingType

from delegate.backends.quantizable import IntegerType
from delegate.quantization.observers import LEAST_SCALE, FittingHistogram, FittingMinMax, FittingPerChannel

_MIN_RANGE = 255 * 2.0**-12  # of activations in training, whose fake quantization has a floor of its own
_MIN_SCALE = float(torch.finfo(torch.float32).eps)  # of weights in training, and of groups, whose scales are float16
_MIN_RATIO = 2.0**-20  # of a channel's scale to the largest in integers: kernels multiply and divide by both


def activation_spec(
    kind: IntegerType, *, observer: str, outliers: float, dynamic: bool, qat: bool, symmetric: bool = False
) -> Any:
    """Return the specification of activations.

    Args:
        kind: the integer type.
        observer: "histogram" or "minmax"; training uses moving averages.
        outliers: the share of the values that a histogram may exclude.
        dynamic: if parameters are chosen at run time.
        qat: if it is fake quantization for training.
        symmetric: if the zero point is the middle.
    """
    scheme = torch.per_tensor_symmetric if symmetric or kind.symmetric else torch.per_tensor_affine
    constructor: Any
    if dynamic:
        constructor = PlaceholderObserver.with_args(eps=LEAST_SCALE)
    elif qat:
        least = _MIN_RANGE / (kind.high - kind.low)
        constructor = FusedMovingAvgObsFakeQuantize.with_args(observer=MovingAverageMinMaxObserver, eps=least)
    elif observer == "histogram":
        constructor = FittingHistogram.with_args(outliers=outliers)
    else:
        constructor = FittingMinMax.with_args()
    return QuantizationSpec(kind.dtype, constructor, kind.low, kind.high, scheme, is_dynamic=dynamic)


def weight_spec(kind: IntegerType, axis: int, group: int, *, static: bool, qat: bool) -> Any:
    """Return the specification of a layer's weight.

    Args:
        kind: the integer type.
        axis: the dimension of the output channels.
        group: the number of inputs that share a scale; 0 for all inputs of a channel.
        static: if results are integers too, with scales known ahead of time.
        qat: if it is fake quantization for training.
    """
    if group:
        constructor = AffineQuantizedMinMaxObserver.with_args(
            mapping_type=MappingType.SYMMETRIC, target_dtype=kind.dtype, granularity=PerGroup(group),
            quant_min=kind.low, quant_max=kind.high, eps=_MIN_SCALE, scale_dtype=torch.float32,
            zero_point_dtype=torch.int8,
        )  # fmt: skip
        return QuantizationSpec(kind.dtype, constructor, kind.low, kind.high)
    per = kind.per_channel
    scheme = torch.per_channel_symmetric if per else torch.per_tensor_symmetric
    observer: Any
    if qat:
        inner = MovingAveragePerChannelMinMaxObserver if per else MovingAverageMinMaxObserver
        observer = FusedMovingAvgObsFakeQuantize.with_args(observer=inner, eps=_MIN_SCALE)
    else:
        smallest = _MIN_RATIO if static else 0.0
        observer = (FittingPerChannel if per else FittingMinMax).with_args(smallest=smallest)
    return QuantizationSpec(kind.dtype, observer, kind.low, kind.high, scheme, ch_axis=axis if per else None)


def fixed_spec(kind: IntegerType, parameters: tuple[float, int]) -> Any:
    """Return the specification of a result whose parameters the backend sets."""
    scale, zero_point = parameters
    return FixedQParamsQuantizationSpec(kind.dtype, scale, zero_point, kind.low, kind.high, torch.per_tensor_affine)
