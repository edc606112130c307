"""How integers stand for reals in a model: the parameters of activations, and constants in their small form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

LOW, HIGH = -128, 127
SCALES = (2.0**-60, 2.0**60)  # the smallest and the largest that kernels are given


@dataclass(frozen=True, slots=True)
class Integers:
    """Parameters of an int8 activation: real = scale * (integer - zero_point).

    What programs hold in uint8 lies in int8 here, with a zero point that is lower by 128: the same reals.
    """

    scale: float
    zero_point: int

    @property
    def least(self) -> float:
        """The smallest real."""
        return self.scale * (LOW - self.zero_point)

    @property
    def largest(self) -> float:
        """The largest real."""
        return self.scale * (HIGH - self.zero_point)


SIGMOID = Integers(1 / 256, LOW)  # 0 to 1


@dataclass(frozen=True)
class Coded:
    """A constant in its small form, as far as lowerings rearrange it like an array.

    Args:
        values: int8 (4 bits lie in int8 here), int32 or float16, in logical order.
        scale: float32 of the same rank, of size 1 where it does not change; along an axis of blocks one per block.
            None for float16.
        zero_point: like scale; None where all are 0.
        bits: that one value needs.
    """

    values: Array
    scale: Array | None
    zero_point: Array | None = None
    bits: int = 8

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, as an array has them."""
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.values.ndim

    @property
    def T(self) -> Coded:  # noqa: N802 - as of an array
        """Its transpose."""
        return self.transpose(*reversed(range(self.ndim)))

    def transpose(self, *axes: int | Sequence[int]) -> Coded:
        """As `numpy.ndarray.transpose`."""
        return self._each(lambda a: a.transpose(*axes))

    def __getitem__(self, items: Any) -> Coded:
        """A part, or with new axes: slices, None and Ellipsis at the end; never a part of the scales' own axis."""
        listed = list(items) if isinstance(items, tuple) else [items]

        def taken(array: Array) -> Array:
            axes = iter(range(array.ndim))
            own = [None if i is None else _kept(i, array.shape[next(axes)]) for i in listed]
            return np.asarray(array[tuple(own)])

        return self._each(taken)

    def _each(self, change: Any) -> Coded:
        scale, zero_point = (None if a is None else change(a) for a in (self.scale, self.zero_point))
        return replace(self, values=change(self.values), scale=scale, zero_point=zero_point)

    @property
    def axis(self) -> int | None:
        """The axis along which the scale changes; None where there is but one scale."""
        if self.scale is None:
            return None
        wide = [i for i, size in enumerate(self.scale.shape) if size != 1]
        return wide[-1] if wide else None

    @property
    def block(self) -> int:
        """Of a matrix with a scale for each row and each so many values of it: how many these are; else 0."""
        if self.scale is None or self.ndim != 2 or self.scale.shape[0] != self.shape[0]:
            return 0
        count = self.scale.shape[1]
        return self.shape[1] // count if 1 < count < self.shape[1] else 0

    @property
    def is_plain(self) -> bool:
        """Whether there is one scale for all, or one for each place on one axis."""
        if self.scale is None:
            return True
        wide = [i for i, size in enumerate(self.scale.shape) if size != 1]
        return not wide or (len(wide) == 1 and self.scale.shape[wide[0]] == self.shape[wide[0]])

    @property
    def scales(self) -> Array:
        """All of them, flat."""
        assert self.scale is not None
        return self.scale.reshape(-1)

    @property
    def in_runs(self) -> bool:
        """Whether each scale is that of so many values one behind the other, and zero points, if any, are integers."""
        if self.scale is None or self.values.size % self.scale.size:
            return False
        shared = [
            axis for axis, sizes in enumerate(zip(self.scale.shape, self.shape, strict=True)) if len({*sizes}) > 1
        ]
        last = all(own == 1 for own in self.scale.shape[shared[0] + 1 :]) if shared else True
        return last and (self.zero_point is None or not np.any(self.zero_point % 1))

    @property
    def symmetric(self) -> bool:
        """Whether all zero points are 0."""
        return self.zero_point is None or not self.zero_point.any()

    def decoded(self) -> Array:
        """The reals, float32."""
        values = self.values.astype(np.float32)
        if self.scale is None:
            return values
        wide = [self._spread(a) for a in (self.scale, self.zero_point) if a is not None]
        return np.asarray((values - wide[1] if len(wide) == 2 else values) * wide[0], np.float32)

    def _spread(self, parameters: Array) -> Array:
        """Parameters of blocks, one per value."""
        for axis, (own, size) in enumerate(zip(parameters.shape, self.shape, strict=True)):
            if own not in (1, size):
                parameters = parameters.repeat(size // own, axis)
        return parameters.astype(np.float32)


def _kept(item: Any, size: int) -> Any:
    """What an index of the values is in parameters that are the same all along an axis."""
    if size > 1:
        return item
    return slice(None) if isinstance(item, slice) else 0


def exact(array: Array) -> Coded | None:
    """A float32 constant of one value, such as a scalar, as int8: exact but for rounding. None for any other."""
    value = float(array.flat[0]) if array.size else 0.0
    fits = value == 0 or SCALES[0] <= abs(value) / HIGH <= SCALES[1]
    if not array.size or not fits or not np.all(array == value):
        return None
    scale = abs(value) / HIGH if value else 1.0
    code = int(np.sign(value)) * HIGH
    ones = (1,) * array.ndim
    return Coded(np.full(array.shape, code, np.int8), np.full(ones, scale, np.float32))
