"""A value in the model: a TFLite tensor and the order of its dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.fx import Node

from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.layout import Order, Size
from delegate.backends.xnnpack.aot.quantized import Integers
from delegate.edge.node import tensor


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
