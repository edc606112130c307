"""Elements that are written: at indices, or over a part that is known before the program runs."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from delegate.backend.lowering import Check, every, with_dimensions
from delegate.edge.node import arguments, is_constant, tensor
from delegate.verdict import YES, Reason, Verdict, no
from delegate_onnxruntime.onnx.aot.translations.indexing import (
    Indices,
    integer_indices,
    order_of,
    shape_of,
    split,
    stack_indices,
)
from delegate_onnxruntime.onnx.aot.translations.row import (
    BOOL,
    END,
    INDICES,
    axis_of,
    constant,
    ints,
    ops,
    plain,
    row,
    scalar,
    static,
    take,
)

_SUMS = {"sum": "add", "prod": "mul"}


def reduces_by(*modes: str) -> Check:
    """Return a check that the reduction is one of these."""

    def check(node: Node) -> Verdict:
        mode = arguments(node)["reduce"]
        return YES if mode in modes else no(Reason.ATTRIBUTE, f"reduce={mode}")

    check.__doc__ = f"reduce is {' or '.join(modes)}."
    return check


def _known_part(node: Node) -> Verdict:
    """The part that is overwritten is known before it runs."""
    args, source = arguments(node), node.all_input_nodes[0]
    size = tensor(source).shape[args["dim"]]
    if all(isinstance(n, int) for n in (size, args["start"] or 0, args["end"] or 0, args["step"])):
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"{source.name} is overwritten at positions that depend on the inputs")


def _written(node: Node) -> Verdict:
    """Indices are integers, or one boolean mask for a single number."""
    args = arguments(node)
    masks = [i for i in args["indices"] if i is not None and tensor(i).dtype is torch.bool]
    if not masks:
        return integer_indices(node) and static(node)
    if len(args["indices"]) == 1 and tensor(args["values"]).numel() == 1 and not args["accumulate"]:
        return YES
    return no(Reason.ATTRIBUTE, "a mask with several values")


def _source(index: Any, src: Any, x: Any) -> Any:
    """Return the source, cut to the sizes of the indices."""
    op, sizes = ops(), list(index.shape)
    if isinstance(src, bool | int | float):
        return op.Expand(scalar(src, x), ints(sizes))
    cut = [axis for axis, size in enumerate(sizes) if src.shape[axis] != size]
    return op.Slice(src, ints([0] * len(cut)), ints([sizes[a] for a in cut]), ints(cut)) if cut else src


def scatter(x: Any, dim: int, index: Any, src: Any) -> Any:
    """Write a source at indices along a dimension."""
    return ops().ScatterElements(x, index, _source(index, src, x), axis=axis_of(dim, x))


def combine(x: Any, dim: int, index: Any, src: Any, reduce: str = "sum") -> Any:
    """Add or multiply a source at places in all dimensions, which more providers support than places along one."""
    places = _places(x, axis_of(dim, x), index)
    return ops().ScatterND(x, places, _source(index, src, x), reduction=_SUMS[reduce])


def _places(x: Any, axis: int, index: Any) -> Any:
    """Return the place of each element in all dimensions; in dimension `axis`, the index is the place."""
    op = ops()
    grid = torch.meshgrid(*(torch.arange(n) for n in index.shape), indexing="ij")
    columns = [
        op.Unsqueeze(index, ints([-1])) if i == axis else constant(where[..., None]) for i, where in enumerate(grid)
    ]
    return op.Concat(*columns, axis=-1) if len(columns) > 1 else columns[0]


def index_put(x: Any, indices: Indices, values: Any, accumulate: bool = False) -> Any:
    """Write values at places in several dimensions, or where a mask is true."""
    op, rank = ops(), len(x.shape)
    if indices[0] is not None and indices[0].dtype.name == "BOOL":
        (mask,) = indices
        missing = rank - len(mask.shape)
        wide = op.Unsqueeze(mask, ints(list(range(-missing, 0)))) if missing else mask
        return op.Where(wide, op.Reshape(values, ints([])) if len(values.shape) else values, x)
    chosen, others = split(indices, rank)
    common, order = shape_of(indices), order_of(indices, rank)
    first = [*common, *(x.shape[axis] for axis in others)]
    shape = [first[i] for i in order]
    if list(values.shape) != shape:
        values = op.Expand(values, ints(shape))
    if order != sorted(order):
        values = op.Transpose(values, perm=_inverse(order))
    moved = chosen + others
    plain = moved == sorted(moved)
    target = x if plain else op.Transpose(x, perm=moved)
    written = op.ScatterND(target, stack_indices(x, indices), values, reduction="add" if accumulate else "none")
    return written if plain else op.Transpose(written, perm=_inverse(moved))


def _inverse(order: list[int]) -> list[int]:
    return [order.index(i) for i in range(len(order))]


def slice_scatter(
    x: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Concatenate the elements before the part, the source, and the elements after it; with steps, gather both."""
    op, axis = ops(), axis_of(dim, x)
    size = x.shape[axis]
    first, last, _ = slice(start, end).indices(size)
    if step != 1:
        origin = torch.arange(size)
        origin[first:last:step] = torch.arange(len(range(first, last, step))) + size
        return take(op.Concat(x, src, axis=axis), axis, origin)
    parts = [src]
    if first > 0:
        parts.insert(0, op.Slice(x, ints([0]), ints([first]), ints([axis])))
    if last < size:
        parts.append(op.Slice(x, ints([last]), ints([END]), ints([axis])))
    return op.Concat(*parts, axis=axis)


def select_scatter(x: Any, src: Any, dim: int, index: int) -> Any:
    """Replace one place of a dimension by a source."""
    axis = axis_of(dim, x)
    place = index % x.shape[axis]
    return slice_scatter(x, ops().Unsqueeze(src, ints([axis])), axis, place, place + 1)


def _is_known(node: Node) -> Verdict:
    """The place is known before it runs."""
    args, source = arguments(node), node.all_input_nodes[0]
    if isinstance(tensor(source).shape[args["dim"]], int) and isinstance(args["index"], int):
        return YES
    return no(Reason.DYNAMIC_SHAPE, f"{source.name} is overwritten at a position that depends on the inputs")


_AT_PLACES = ("Expand", "Slice", "Concat", "Unsqueeze")
_PART = ("Slice", "Concat", "Gather")


def _sums_stay(node: Node) -> Verdict:
    """The indices of one dimension are not constant: if they are all in order, the exporter drops the sum."""
    args = arguments(node)
    indices = [i for i in args["indices"] if i is not None] if "indices" in args else [args["index"]]
    is_sum = args["accumulate"] if "indices" in args else tensor(node).dim() == 1
    if is_sum and len(indices) == 1 and is_constant(indices[0]):
        return no(Reason.INACCURATE, "values are added at constant indices of one dimension")
    return YES


ROWS = (
    *(
        row(
            f"aten.scatter.{kind}", ("ScatterElements",), every(static, with_dimensions), also=INDICES,
            translate=scatter, between=("Expand", "Slice"),
        )
        for kind in ("src", "value")
    ),
    row(
        "aten.scatter_add.default", ("ScatterND(add)",), every(static, with_dimensions, _sums_stay), also=INDICES,
        translate=combine, between=_AT_PLACES,
    ),
    row(
        "aten.scatter_reduce.two", ("ScatterND(add)", "ScatterND(mul)"),
        every(static, with_dimensions, reduces_by(*_SUMS), plain(include_self=True), _sums_stay),
        also=INDICES, translate=combine, between=_AT_PLACES,
    ),
    row(
        "aten.index_put.default", ("ScatterND", "ScatterND(add)", "Transpose", "Where"), every(_written, _sums_stay),
        also=INDICES | BOOL, translate=index_put,
        between=("Less", "Add", "Expand", "Unsqueeze", "Concat", "Cast", "Reshape"),
    ),
    row("aten.slice_scatter.default", _PART, _known_part, translate=slice_scatter),
    row(
        "aten.select_scatter.default", _PART, _is_known, keep=True, translate=select_scatter, between=("Unsqueeze",)
    ),
)  # fmt: skip
