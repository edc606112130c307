"""Observers of ranges: torchao's, with scales that fit small values, and with rare values left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torchao.quantization.pt2e import HistogramObserver, MinMaxObserver, PerChannelMinMaxObserver

LEAST_SCALE = 2.0**-60  # that kernels of backends are given
_NO_RANGE = 2.0**-12  # the scale of what is 0 everywhere
_APART = 4.0  # times the range of all others, beyond which rare values are outliers
_FEW = 1000  # values of which one may be an outlier
_KEPT_BITS = 14  # of a float32 without its sign: the exponent and 6 bits of the fraction
_DROPPED_BITS = 31 - _KEPT_BITS


@dataclass(frozen=True)
class Outliers:
    """The values that a range leaves out.

    Args:
        count: how many at the most.
        total: of all values but zeros.
        largest: the size of the largest.
        range: of the others, the least and the greatest.
    """

    count: int
    total: int
    largest: float
    range: tuple[float, float]


class _FittingScale:
    """A mixin: no scale is larger than its values need, but for those of channels that are much smaller than others.

    Args:
        smallest: the least scale of a channel, as a share of the largest scale of all channels.
    """

    def __init__(self, *, smallest: float = 0.0, **options: Any) -> None:
        super().__init__(eps=LEAST_SCALE, **options)  # type: ignore[call-arg]
        self._smallest = smallest

    def _calculate_qparams(self, min_val: torch.Tensor, max_val: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale, zero_point = super()._calculate_qparams(min_val, max_val)  # type: ignore[misc]
        empty = ((min_val == 0) & (max_val == 0)).reshape(scale.shape)
        largest = torch.full((), _NO_RANGE) if empty.all() else scale.max()
        return torch.where(empty, largest, scale.clamp(min=float(largest) * self._smallest)), zero_point


class _CountedSizes:
    """A mixin: counts values by their sizes, zeros apart."""

    counts: torch.Tensor

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        counts = torch.zeros(2 << _KEPT_BITS, dtype=torch.int64)
        self.register_buffer("counts", counts)  # type: ignore[attr-defined]

    def count(self, x: torch.Tensor) -> None:
        """Count the values of a tensor."""
        values = x.detach().reshape(-1).float()
        bits = values[values != 0].view(torch.int32)
        sizes = (bits & 0x7FFFFFFF) >> _DROPPED_BITS
        self.counts += torch.bincount(_place(sizes, bits < 0), minlength=len(self.counts))

    def vanishing(self) -> float:
        """The share of the values, zeros apart, that this range makes zero."""
        scale = float(self.calculate_qparams()[0])  # type: ignore[attr-defined]
        size = int(torch.tensor(scale / 2).view(torch.int32)) >> _DROPPED_BITS
        middle = 1 << _KEPT_BITS
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
    """The range of the least square error, or without outliers if there are some.

    The square error alone keeps one value of 1000 among thousands of 1, which are 0 then. So values that are rare, and
    lie beyond four times the range of all others, are left out. Zeros do not count, so that what is 0 almost everywhere
    keeps its range.

    Args:
        outliers: the share of the values that may be left out at each end.
    """

    min_val: torch.Tensor
    max_val: torch.Tensor

    def __init__(self, *, outliers: float, **options: Any) -> None:
        super().__init__(**options)
        self._share = outliers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count(x)
        super().forward(x)
        found = self.outliers()
        return x if found is None else x.clamp(*found.range)  # as integers will: what follows meets no outlier

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.outliers()
        return (
            super().calculate_qparams() if found is None else self._calculate_qparams(*map(torch.tensor, found.range))
        )

    def _non_linear_param_search(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Search on values of size 1: torchao cubes them, which has no result for those of 1e-13 or 1e13."""
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
        """The values that the range leaves out; None if it has all but what the square error leaves out."""
        total = int(self.counts.sum())
        count = max(int(self._share * total), int(self._share > 0 and total >= _FEW))
        if not count:
            return None
        up_to = self.counts.cumsum(0)
        first, last = (int((up_to > n).nonzero()[0]) for n in (count, total - count - 1))
        low, high = _ends(first)[0], _ends(last)[1]
        far = _APART * max(-low, high)
        least, greatest = float(self.min_val), float(self.max_val)
        if max(-least, greatest) <= far or far <= 0:
            return None
        ends = (low if least < -far else min(least, 0.0), high if greatest > far else max(greatest, 0.0))
        return Outliers(count, total, max(-least, greatest), ends)


def _place(sizes: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Return bins in the order of their values."""
    middle = 1 << _KEPT_BITS
    return torch.where(negative, middle - 1 - sizes, middle + sizes)


def _ends(place: int) -> tuple[float, float]:
    """Return the least and the greatest value of a bin."""
    size = place - (1 << _KEPT_BITS)
    negative = size < 0
    size = -1 - size if negative else size
    near, far = torch.tensor([size, size + 1], dtype=torch.int32).mul(1 << _DROPPED_BITS).view(torch.float32).tolist()
    return (-far, -near) if negative else (near, far)
