"""Values of a model: its tensors with the order of their dimensions, and integers that represent reals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.fx import Node

from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.layout import Order, Size
from delegate.edge.node import tensor

Array = np.ndarray[Any, np.dtype[Any]]

LOW, HIGH = -128, 127
SCALES = (2.0**-60, 2.0**60)  # the smallest and the largest scale of kernels


@dataclass(frozen=True, slots=True)
class Integers:
    """Parameters of an int8 activation: real = scale * (integer - zero_point).

    uint8 values of a program become int8 with a zero point that is lower by 128, which represents the same reals.
    """

    scale: float
    zero_point: int

    @property
    def least(self) -> float:
        """Return the smallest real."""
        return self.scale * (LOW - self.zero_point)

    @property
    def largest(self) -> float:
        """Return the largest real."""
        return self.scale * (HIGH - self.zero_point)


SIGMOID = Integers(1 / 256, LOW)  # 0 to 1


@dataclass(frozen=True)
class Coded:
    """A constant in integers (or float16) that lowerings rearrange like an array.

    Args:
        values: int8 (4 bits lie in int8 here), int32 or float16, in logical order.
        scale: float32 of the same rank. Its size is 1 along axes where it is constant, and the number of blocks along
            an axis of blocks. None for float16.
        zero_point: like scale; None if all are 0.
        bits: of one value.
    """

    values: Array
    scale: Array | None
    zero_point: Array | None = None
    bits: int = 8

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes, like those of an array."""
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""
        return self.values.ndim

    @property
    def T(self) -> Coded:  # noqa: N802 - as of an array
        """Return the transpose."""
        return self.transpose(*reversed(range(self.ndim)))

    def transpose(self, *axes: int | Sequence[int]) -> Coded:
        """Transpose as `numpy.ndarray.transpose` does."""
        return self._each(lambda a: a.transpose(*axes))

    def __getitem__(self, items: Any) -> Coded:
        """Return a part, or add axes: slices, None and Ellipsis at the end; never a part of the axis of scales."""
        listed = list(items) if isinstance(items, tuple) else [items]

        def take(array: Array) -> Array:
            axes = iter(range(array.ndim))
            own = [None if i is None else _parameter_index(i, array.shape[next(axes)]) for i in listed]
            return np.asarray(array[tuple(own)])

        return self._each(take)

    def _each(self, change: Any) -> Coded:
        scale, zero_point = (None if a is None else change(a) for a in (self.scale, self.zero_point))
        return replace(self, values=change(self.values), scale=scale, zero_point=zero_point)

    @property
    def axis(self) -> int | None:
        """Return the axis along which the scale changes; None if there is only one scale."""
        if self.scale is None:
            return None
        wide = [i for i, size in enumerate(self.scale.shape) if size != 1]
        return wide[-1] if wide else None

    @property
    def block(self) -> int:
        """Return the number of values per scale in a matrix with blocks along its rows; else 0."""
        if self.scale is None or self.ndim != 2 or self.scale.shape[0] != self.shape[0]:
            return 0
        count = self.scale.shape[1]
        return self.shape[1] // count if 1 < count < self.shape[1] else 0

    @property
    def is_plain(self) -> bool:
        """Return true if there is one scale for all values, or one for each place on one axis."""
        if self.scale is None:
            return True
        wide = [i for i, size in enumerate(self.scale.shape) if size != 1]
        return not wide or (len(wide) == 1 and self.scale.shape[wide[0]] == self.shape[wide[0]])

    @property
    def scales(self) -> Array:
        """Return all scales, flat."""
        assert self.scale is not None
        return self.scale.reshape(-1)

    @property
    def in_runs(self) -> bool:
        """Return true if scales apply to runs of equally many consecutive values, and zero points are integers."""
        if self.scale is None or self.values.size % self.scale.size:
            return False
        shared = [
            axis for axis, sizes in enumerate(zip(self.scale.shape, self.shape, strict=True)) if len({*sizes}) > 1
        ]
        last = all(own == 1 for own in self.scale.shape[shared[0] + 1 :]) if shared else True
        return last and (self.zero_point is None or not np.any(self.zero_point % 1))

    @property
    def symmetric(self) -> bool:
        """Return true if all zero points are 0."""
        return self.zero_point is None or not self.zero_point.any()

    def decoded(self) -> Array:
        """Return the reals, float32."""
        values = self.values.astype(np.float32)
        if self.scale is None:
            return values
        wide = [self._spread(a) for a in (self.scale, self.zero_point) if a is not None]
        return np.asarray((values - wide[1] if len(wide) == 2 else values) * wide[0], np.float32)

    def _spread(self, parameters: Array) -> Array:
        """Repeat parameters of blocks, to one per value."""
        for axis, (own, size) in enumerate(zip(parameters.shape, self.shape, strict=True)):
            if own not in (1, size):
                parameters = parameters.repeat(size // own, axis)
        return parameters.astype(np.float32)


def _parameter_index(item: Any, size: int) -> Any:
    """Return the index into parameters for an index into values; parameters may be constant along the axis."""
    if size > 1:
        return item
    return slice(None) if isinstance(item, slice) else 0


def exact(array: Array) -> Coded | None:
    """Return a float32 constant of one value, such as a scalar, as int8, exact except for rounding; else None."""
    value = float(array.flat[0]) if array.size else 0.0
    fits = value == 0 or SCALES[0] <= abs(value) / HIGH <= SCALES[1]
    if not array.size or not fits or not np.all(array == value):
        return None
    scale = abs(value) / HIGH if value else 1.0
    code = int(np.sign(value)) * HIGH
    ones = (1,) * array.ndim
    return Coded(np.full(array.shape, code, np.int8), np.full(ones, scale, np.float32))


@dataclass(frozen=True, slots=True)
class Operand:
    """A value in the model. Truth values, which are only inputs, are 0 and 1 in float32.

    Args:
        index: index of its TFLite tensor.
        shape: its logical sizes; torch.SymInt for dynamic ones.
        order: physical axis i of the TFLite tensor holds logical dimension order[i].
        type: the parameters of its int8 numbers; None for float32.
    """

    index: int
    shape: tuple[Size, ...]
    order: Order
    type: Integers | None = None

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Return the sizes of the TFLite tensor, in memory order."""
        return layout.physical(self.shape, self.order)

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def axis(self, dim: int) -> int:
        """Return the physical axis of a logical dimension; negative dimensions count from the end."""
        return self.order.index(dim % len(self.order))


def shape_of(node: Node) -> tuple[Size, ...]:
    """Return the logical sizes of a node's single result."""
    return tuple(tensor(node).shape)


def example(size: Size) -> int:
    """Return a size as a number: for a dynamic one, that of the example inputs, or 1 if torch has none."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return 1 if hint is None else int(hint)


def signature(sizes: Sequence[Size]) -> list[int] | None:
    """Return TFLite's shape signature: -1 for dynamic sizes; None if all are static."""
    dims = [s if isinstance(s, int) else -1 for s in sizes]
    return dims if -1 in dims else None
