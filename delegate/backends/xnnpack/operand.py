"""A value in the model: a TFLite tensor, and the order that its dimensions lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import Node

from delegate.backends.xnnpack import layout
from delegate.backends.xnnpack.layout import Order, Size
from delegate.backends.xnnpack.quantized import Integers
from delegate.edge.node import tensor


@dataclass(frozen=True, slots=True)
class Operand:
    """A value in the model; truth values, which come over the border alone, are 0 and 1 in float32.

    Args:
        index: of its TFLite tensor.
        shape: its logical sizes; torch.SymInt for dynamic ones.
        order: physical axis i of the TFLite tensor holds logical dimension order[i].
        type: how its int8 numbers stand for reals; None for float32.
    """

    index: int
    shape: tuple[Size, ...]
    order: Order
    type: Integers | None = None

    @property
    def sizes(self) -> tuple[Size, ...]:
        """Sizes of the TFLite tensor: in memory order."""
        return layout.physical(self.shape, self.order)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def axis(self, dim: int) -> int:
        """The physical axis that holds a logical dimension; negative dimensions count from the end."""
        return self.order.index(dim % len(self.order))


def shape_of(node: Node) -> tuple[Size, ...]:
    """Logical sizes of the one tensor that a node gives."""
    return tuple(tensor(node).shape)


def example(size: Size) -> int:
    """A size as a number: of a dynamic one, that of the example inputs, or 1 where torch kept none."""
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return 1 if hint is None else int(hint)


def signature(sizes: Sequence[Size]) -> list[int] | None:
    """TFLite's shape signature: -1 for dynamic sizes; None where all are static."""
    found = [s if isinstance(s, int) else -1 for s in sizes]
    return found if -1 in found else None
