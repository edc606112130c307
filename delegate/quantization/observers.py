"""Observers of ranges, which fit small values and exclude outliers, and torchao's specifications of integer types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e import (
    FusedMovingAvgObsFakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
)
from torchao.quantization.pt2e._affine_quantization import AffineQuantizedMinMaxObserver
from torchao.quantization.pt2e.quantizer import FixedQParamsQuantizationSpec, QuantizationSpec
from torchao.quantization.quant_primitives import MappingType

from delegate.backend.quantizable import IntegerType, exact_scales
from delegate.errors import InputError

LEAST_SCALE = 2.0**-60  # the smallest scale that kernels of backends get
_ZERO_SCALE = 2.0**-12  # the scale of tensors that are 0 everywhere
_OUTLIER_FACTOR = 4.0  # rare values beyond this multiple of the range of all others are outliers
_MIN_TOTAL = 1000  # the smallest number of values of which one may be an outlier
_BIN_BITS = 14  # of a float32 without its sign: the exponent and 6 bits of the fraction
_DROPPED_BITS = 31 - _BIN_BITS


@dataclass(frozen=True)
class Outliers:
    """The values that a range excludes.

    Args:
        count: the largest number of excluded values.
        total: the number of all values except zeros.
        largest: the absolute value of the largest outlier.
        range: the least and the greatest of the other values.
    """

    count: int
    total: int
    largest: float
    range: tuple[float, float]


class NotFinite(InputError):
    """An activation with NaN or infinity, which has no range.

    Args:
        observer: the observer of the activation.
    """

    def __init__(self, observer: Module) -> None:
        super().__init__("an activation has NaN or infinity", remedy="calibrate on other data, or keep it in float")
        self.observer = observer


class _FittingScale:
    """A mixin of observers whose scales are no larger than their values need.

    Args:
        smallest: the least scale of a channel, as a share of the largest scale of all channels.
    """

    def __init__(self, *, smallest: float = 0.0, **options: Any) -> None:
        super().__init__(eps=LEAST_SCALE, **options)  # type: ignore[call-arg]
        self._smallest = smallest

    def _calculate_qparams(self, min_val: torch.Tensor, max_val: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale, zero_point = super()._calculate_qparams(min_val, max_val)  # type: ignore[misc]
        empty = ((min_val == 0) & (max_val == 0)).reshape(scale.shape)
        largest = torch.full((), _ZERO_SCALE) if empty.all() else scale.max()
        return torch.where(empty, largest, scale.clamp(min=float(largest) * self._smallest)), zero_point


class FittingPerGroup(AffineQuantizedMinMaxObserver):  # type: ignore[misc]
    """The range of each group of a channel's inputs; scales are exact in bfloat16."""

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        scales, zero_points = super().calculate_qparams()
        return exact_scales(scales), zero_points


class _CountedSizes:
    """A mixin of observers that count nonzero values by size."""

    counts: torch.Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        counts = torch.zeros(2 << _BIN_BITS, dtype=torch.int64)
        self.register_buffer("counts", counts)  # type: ignore[attr-defined]

    def count(self, x: torch.Tensor) -> None:
        """Count the values of a tensor; raises NotFinite."""
        values = x.detach().reshape(-1).float()
        if not values.isfinite().all():
            raise NotFinite(self)  # type: ignore[arg-type]
        bits = values[values != 0].view(torch.int32)
        sizes = (bits & 0x7FFFFFFF) >> _DROPPED_BITS
        self.counts += torch.bincount(_bins(sizes, bits < 0), minlength=len(self.counts))

    def vanishing(self, scale: float) -> float:
        """Return the share of the nonzero values that become 0 in a scale."""
        size = int(torch.tensor(scale / 2).view(torch.int32)) >> _DROPPED_BITS
        middle = 1 << _BIN_BITS
        return float(self.counts[middle - size : middle + size].sum()) / max(int(self.counts.sum()), 1)


class FittingMinMax(_CountedSizes, _FittingScale, MinMaxObserver):  # type: ignore[misc]
    """The range of all values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count(x)
        super().forward(x)
        return x


class FittingPerChannel(_FittingScale, PerChannelMinMaxObserver):  # type: ignore[misc]
    """The range of each channel."""


class FittingHistogram(_CountedSizes, _FittingScale, HistogramObserver):  # type: ignore[misc]
    """The range of the least square error, without outliers.

    With the square error alone, one value of 1000 among thousands of 1 stays in the range, and the others become 0.
    So rare values beyond four times the range of all others are excluded. Zeros do not count: a tensor that is 0
    almost everywhere keeps its range.

    Args:
        outliers: the share of the values that may be excluded at each end.
    """

    min_val: torch.Tensor
    max_val: torch.Tensor

    def __init__(self, *, outliers: float, **options: Any) -> None:
        super().__init__(**options)
        self._share = outliers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count(x)
        super().forward(x)
        outliers = self.outliers()
        return (
            x if outliers is None else x.clamp(*outliers.range)
        )  # later observers then see no outlier, as in integers

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        outliers = self.outliers()
        if outliers is not None:
            return self._calculate_qparams(*map(torch.tensor, outliers.range))
        parameters: tuple[torch.Tensor, torch.Tensor] = super().calculate_qparams()
        return parameters

    def _non_linear_param_search(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Search on values scaled to 1: torchao cubes them, which underflows at 1e-13 and overflows at 1e13."""
        ends = self.min_val, self.max_val
        size = torch.stack(ends).abs().max()
        if not size:
            return ends
        self.min_val, self.max_val = (end / size for end in ends)
        try:
            low, high = super()._non_linear_param_search()
        finally:
            self.min_val, self.max_val = ends
        return low * size, high * size

    def outliers(self) -> Outliers | None:
        """Return the outliers that the range excludes; None if there are none."""
        total = int(self.counts.sum())
        count = max(int(self._share * total), int(self._share > 0 and total >= _MIN_TOTAL))
        if not count:
            return None
        up_to = self.counts.cumsum(0)
        first, last = (int((up_to > n).nonzero()[0]) for n in (count, total - count - 1))
        low, high = _ends(first)[0], _ends(last)[1]
        far = _OUTLIER_FACTOR * max(-low, high)
        least, greatest = float(self.min_val), float(self.max_val)
        if max(-least, greatest) <= far or far <= 0:
            return None
        ends = (low if least < -far else min(least, 0.0), high if greatest > far else max(greatest, 0.0))
        return Outliers(count, total, max(-least, greatest), ends)


def _bins(sizes: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Return the number of each value's bin; bins are in the order of their values."""
    middle = 1 << _BIN_BITS
    return torch.where(negative, middle - 1 - sizes, middle + sizes)


def _ends(number: int) -> tuple[float, float]:
    """Return the least and the greatest value of a bin."""
    size = number - (1 << _BIN_BITS)
    negative = size < 0
    size = -1 - size if negative else size
    low, high = torch.tensor([size, size + 1], dtype=torch.int32).mul(1 << _DROPPED_BITS).view(torch.float32).tolist()
    return (-high, -low) if negative else (low, high)


_MIN_RANGE = 255 * 2.0**-12  # of activations in training, whose fake quantization has a floor of its own
_MIN_SCALE = float(torch.finfo(torch.float32).eps)  # of weights in training, and of groups
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
        constructor = FittingPerGroup.with_args(
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
