"""Values of a model: its tensors with the order of their dimensions, and integers that represent reals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch.fx import Node

from delegate.backend.qdq import DEQUANTIZE, QUANTIZE, SHIFT, Array, Coded
from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.layout import Order, Size
from delegate.edge.node import arguments, op_name, tensor

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


def integers_of(node: Node) -> Integers | None:
    """Return the parameters of a node that quantizes or decodes int8 or uint8 per tensor; None for another node."""
    if op_name(node) not in (QUANTIZE, DEQUANTIZE):
        return None
    named = arguments(node)
    shift = SHIFT.get(named["dtype"])
    return None if shift is None else Integers(float(np.float32(named["scale"])), int(named["zero_point"]) - shift)


def decoding_parameters(node: Node) -> Integers | None:
    """Return the parameters by which all readers decode a value in integers; None for floats."""
    candidates = {integers_of(user) for user in node.users if op_name(user) == DEQUANTIZE}
    return candidates.pop() if len(candidates) == 1 else None


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
    """A value in the model, where booleans, which are only inputs, are 0 and 1 in float32.

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
    """Return a size as a number: for a dynamic one, its value in the example inputs, or 1 if torch has none."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return 1 if hint is None else int(hint)


def signature(sizes: Sequence[Size]) -> list[int] | None:
    """Return TFLite's shape signature: -1 for dynamic sizes; None if all are static."""
    dims = [s if isinstance(s, int) else -1 for s in sizes]
    return dims if -1 in dims else None
