"""torchao's specifications of what is coded how, of a backend's types of integers."""

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

_RANGE = 255 * 2.0**-12  # least range of activations in training, whose fake quantization has a floor of its own
_LEAST = float(torch.finfo(torch.float32).eps)  # scale of weights in training, and of groups, which lie in float16
_SMALLEST = 2.0**-20  # of a channel's scale in integers, over the largest: kernels multiply by both and divide


def activation_spec(
    kind: IntegerType, *, observer: str, outliers: float, dynamic: bool, qat: bool, symmetric: bool = False
) -> Any:
    """The specification of activations.

    Args:
        kind: of integers.
        observer: "histogram" or "minmax"; training takes moving averages.
        outliers: the share of the values that a histogram may leave out.
        dynamic: parameters are chosen at run time.
        qat: fake quantization for training.
        symmetric: the zero point is the middle.
    """
    scheme = torch.per_tensor_symmetric if symmetric or kind.symmetric else torch.per_tensor_affine
    found: Any
    if dynamic:
        found = PlaceholderObserver.with_args(eps=LEAST_SCALE)
    elif qat:
        least = _RANGE / (kind.high - kind.low)
        found = FusedMovingAvgObsFakeQuantize.with_args(observer=MovingAverageMinMaxObserver, eps=least)
    elif observer == "histogram":
        found = FittingHistogram.with_args(outliers=outliers)
    else:
        found = FittingMinMax.with_args()
    return QuantizationSpec(kind.dtype, found, kind.low, kind.high, scheme, is_dynamic=dynamic)


def weight_spec(kind: IntegerType, axis: int, group: int, *, static: bool, qat: bool) -> Any:
    """The specification of a layer's weight.

    Args:
        kind: of integers.
        axis: of the output channels.
        group: how many inputs share a scale; 0 for all of a channel.
        static: results are integers too, with scales that are known before.
        qat: fake quantization for training.
    """
    if group:
        found = AffineQuantizedMinMaxObserver.with_args(
            mapping_type=MappingType.SYMMETRIC, target_dtype=kind.dtype, granularity=PerGroup(group),
            quant_min=kind.low, quant_max=kind.high, eps=_LEAST, scale_dtype=torch.float32,
            zero_point_dtype=torch.int8,
        )  # fmt: skip
        return QuantizationSpec(kind.dtype, found, kind.low, kind.high)
    per = kind.per_channel
    scheme = torch.per_channel_symmetric if per else torch.per_tensor_symmetric
    observer: Any
    if qat:
        inner = MovingAveragePerChannelMinMaxObserver if per else MovingAverageMinMaxObserver
        observer = FusedMovingAvgObsFakeQuantize.with_args(observer=inner, eps=_LEAST)
    else:
        smallest = _SMALLEST if static else 0.0
        observer = (FittingPerChannel if per else FittingMinMax).with_args(smallest=smallest)
    return QuantizationSpec(kind.dtype, observer, kind.low, kind.high, scheme, ch_axis=axis if per else None)


def fixed_spec(kind: IntegerType, parameters: tuple[float, int]) -> Any:
    """The specification of a result whose parameters the backend sets."""
    scale, zero_point = parameters
    return FixedQParamsQuantizationSpec(kind.dtype, scale, zero_point, kind.low, kind.high, torch.per_tensor_affine)
