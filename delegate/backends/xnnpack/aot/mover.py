"""Operators of the model that move values: other orders, shapes, parts and ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from delegate.backends.xnnpack.aot import layout
from delegate.backends.xnnpack.aot.emitter import Emitter
from delegate.backends.xnnpack.aot.layout import Order, Size
from delegate.backends.xnnpack.aot.operand import Operand, signature


class Mover(Emitter):
    """A model under construction whose values can be moved; no value is moved twice."""

    def __init__(self) -> None:
        super().__init__()
        self._reordered: dict[tuple[int, Order], Operand] = {}

    def reorder(self, x: Operand, order: Order) -> Operand:
        """Return a value in another order: a TRANSPOSE, emitted once, or a RESHAPE if only sizes of 1 move."""
        if x.order == order:
            return x
        key = (x.index, layout.transposition(x.order, order))
        if key not in self._reordered:
            unknown = sum(type(s) is not int for s in x.shape)  # a RESHAPE infers one at most
            if unknown <= 1 and layout.same_memory(x.shape, x.order, order):
                y = self.view(x, x.shape, order)
            else:
                perm = self.numbers(key[1])
                y = self.emit("TRANSPOSE", [x, perm], x.shape, order, "TransposeOptions")
            self._reordered[key] = y
            self._reordered[(y.index, layout.transposition(order, x.order))] = x
        reordered = self._reordered[key]
        return replace(x, index=reordered.index, order=order)

    def reshape(self, x: Operand, shape: Sequence[Size]) -> Operand:
        """Reshape as `torch.reshape` does, in the same memory order if possible, else through row-major."""
        shape = tuple(shape)
        order = layout.reshape(x.shape, shape, x.order)
        if order is None:
            x = self.reorder(x, layout.row_major(x.rank))
            order = layout.row_major(len(shape))
        return self.view(x, shape, order)

    def view(self, x: Operand, shape: tuple[Size, ...], order: Order) -> Operand:
        """View the same memory as a tensor of another shape and order: a RESHAPE, or no operator.

        The caller ensures that the memory is the same, element by element; see `layout.reshape`.
        """
        sizes = layout.physical(shape, order)
        if len(sizes) == x.rank and all(map(layout.equal, sizes, x.sizes)):
            return replace(x, shape=shape, order=order)
        new = signature(sizes) or list(sizes)
        return self.emit(
            "RESHAPE", [x, self.numbers(new)], shape, order, "ReshapeOptions", newShape=np.array(new, np.int32)
        )

    def slice(self, x: Operand, ranges: Mapping[int, tuple[int, int | None]], shape: Sequence[Size]) -> Operand:
        """Slice a value of at most 5 dimensions, in its order.

        Args:
            x: the value.
            ranges: dimension -> (start, end); start may count from the end, end None is the end itself.
            shape: sizes of the result.
        """
        begin, end, mask = [0] * x.rank, [0] * x.rank, 0
        for axis, dim in enumerate(x.order):
            begin[axis], stop = ranges.get(dim, (0, None))
            end[axis] = stop or 0
            mask |= (stop is None) << axis
        corners = [self.numbers(v) for v in (begin, end, [1] * x.rank)]
        return self.emit("STRIDED_SLICE", [x, *corners], shape, x.order, "StridedSliceOptions", endMask=mask)

    def expand_rank(self, x: Operand, rank: int, order: Order) -> Operand:
        """Add leading sizes of 1 to a value, so that it broadcasts to `rank` dimensions in `order`."""
        missing = rank - x.rank
        own = tuple(d - missing for d in order if d >= missing)
        x = self.reorder(x, own)
        if order[:missing] == tuple(range(missing)):
            return x  # TFLite broadcasts from the right, too
        return self.view(x, (1,) * missing + x.shape, order)
