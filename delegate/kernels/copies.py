"""Tensors made from numbers, and copies of tensors, of views, with one part replaced, and into other dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from delegate.errors import KernelError
from delegate.kernels import views
from delegate.kernels.half_precision import Array
from delegate.kernels.table import ANY, COMPLEX, REAL, TABLE
from delegate.program.dtypes import DType
from delegate.program.raw import check_room, repeated, same_shape

# Where torch may mix element types, the table converts bfloat16, whose arrays are raw bits.
CONVERTIBLE = ANY - {DType.bfloat16}


@TABLE.kernel("aten.clone.default", "aten.lift_fresh_copy.default", dtypes=ANY)
def clone(x: Array, *_memory_format: None, out: Array) -> None:
    np.copyto(out, x)


@TABLE.kernel("aten.copy.default", dtypes=CONVERTIBLE, in_place=True)
def copy(x: Array, source: Array, non_blocking: bool, *, out: Array) -> None:
    """Copy the source in the shape and dtype of `x`."""
    np.copyto(out, source, casting="unsafe")


def copy_of_view(view: Callable[..., Any], x: Array, *args: Any, out: Any) -> None:
    """Make a view of x and copy it."""
    value = view(x, *args)
    if value is None:
        value = view(np.ascontiguousarray(x), *args)
    parts = (value,) if isinstance(value, np.ndarray) else value
    for result, part in zip(out if isinstance(out, tuple) else (out,), parts, strict=True):
        np.copyto(result, part)


def scatter_into_view(view: Callable[..., Any], x: Array, source: Array, *args: Any, out: Array) -> None:
    """Copy `x` with the part in a view replaced by the source."""
    np.copyto(out, x)
    part = view(out, *args)
    if part.shape != source.shape:
        raise KernelError(
            f"a source of shape {list(source.shape)} does not fit a part of shape {list(part.shape)}",
            remedy="pass sizes that make both shapes equal",
        )
    if not part.flags.writeable:  # NumPy gives diagonals read-only
        part.flags.writeable = True
    np.copyto(part, source)


@TABLE.kernel("aten.flip.default", dtypes=ANY)
def flip(x: Array, dims: Sequence[int], *, out: Array) -> None:
    np.copyto(out, np.flip(x, tuple(dims) if x.ndim else ()))  # torch accepts dimension 0 of a 0-d tensor


@TABLE.kernel("aten.roll.default", dtypes=ANY, whole=True)
def roll(x: Array, shifts: Sequence[int], dims: Sequence[int], *, out: Array) -> None:
    """Roll elements along dims, or the flattened elements if there are none."""
    if dims:
        np.copyto(out, np.roll(x, tuple(shifts), tuple(dims)))
    else:
        np.copyto(out, np.roll(x, shifts[0]))


@TABLE.kernel("aten.repeat.default", dtypes=ANY)
def repeat(x: Array, repeats: Sequence[int], *, out: Array) -> None:
    """Repeat the tensor `repeats` times along every dimension; missing leading dimensions are 1."""
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    times = (1,) * (len(shape) - len(repeats)) + tuple(repeats)
    tiles = [n for pair in zip(times, shape, strict=True) for n in pair]
    ones = [n for size in shape for n in (1, size)]
    out.reshape(tiles, copy=False)[...] = x.reshape(ones)


@TABLE.kernel("aten.repeat_interleave.Tensor", dtypes={DType.int32, DType.int64})
def repeat_interleave_positions(repeats: Array, output_size: int | None, *, out: Array) -> None:
    """Repeat each position i of `repeats` `repeats[i]` times."""
    np.copyto(out, repeated(np.arange(len(repeats)), repeats, 0, out.size))


@TABLE.kernel("aten.cat.default", dtypes=CONVERTIBLE)
def cat(tensors: Sequence[Array], dim: int, *, out: Array) -> None:
    """Concatenate; tensors of shape (0,) fit everywhere, as in torch."""
    parts = [t for t in tensors if t.shape != (0,)]
    if not parts:
        same_shape(*tensors, out) if tensors else same_shape(np.empty(0), out)
    else:
        np.concatenate(parts, axis=dim, out=out, casting="unsafe")


def _triangle(x: Array, diagonal: int) -> Array:
    return np.tri(x.shape[-2], x.shape[-1], diagonal, dtype=bool)


@TABLE.kernel("aten.tril.default", dtypes=ANY, whole=True)
def tril(x: Array, diagonal: int, *, out: Array) -> None:
    """Zero the elements above the diagonal; x (..., rows, columns)."""
    out.fill(0)
    np.copyto(out, x, where=_triangle(x, diagonal))


@TABLE.kernel("aten.triu.default", dtypes=ANY, whole=True)
def triu(x: Array, diagonal: int, *, out: Array) -> None:
    """Zero the elements below the diagonal; x (..., rows, columns)."""
    np.copyto(out, x)
    np.copyto(out, 0, where=_triangle(x, diagonal - 1), casting="unsafe")


@TABLE.kernel("aten.complex.default", dtypes=COMPLEX | {DType.float32, DType.float64})
def complex_(real: Array, imag: Array, *, out: Array) -> None:
    out.real, out.imag = real, imag


@TABLE.kernel("aten.polar.default", dtypes=COMPLEX | {DType.float32, DType.float64})
def polar(length: Array, angle: Array, *, out: Array) -> None:
    np.multiply(length, np.cos(angle), out=out.real)
    np.multiply(length, np.sin(angle), out=out.imag)


# The functional form of a view is a copy of the view; that of a write through a view is a scatter into it.
_COPIES: dict[str, Callable[..., Any]] = {
    "as_strided_copy.default": views.as_strided,
    "detach_copy.default": views.alias,
    "narrow_copy.default": views.narrow,
    "permute_copy.default": views.permute,
    "_reshape_copy.default": views.view,
    "select_copy.int": views.select,
    "slice_copy.Tensor": views.slice_tensor,
    "split_copy.Tensor": views.split,
    "unbind_copy.int": views.unbind,
    "view_copy.default": views.view,
    "view_copy.dtype": views.view_dtype,
}
_SCATTERS: dict[str, Callable[..., Any]] = {
    "as_strided_scatter.default": views.as_strided,
    "diagonal_scatter.default": views.diagonal,
    "select_scatter.default": views.select,
    "slice_scatter.default": views.slice_tensor,
}
for _op, _view in _COPIES.items():
    TABLE.kernel(f"aten.{_op}", dtypes=ANY)(partial(copy_of_view, _view))
for _op, _view in _SCATTERS.items():
    TABLE.kernel(f"aten.{_op}", dtypes=ANY, in_place=True)(partial(scatter_into_view, _view))


@TABLE.kernel("aten._to_copy.default", "prims.convert_element_type.default", dtypes=ANY - {DType.bfloat16})
def convert(x: Array, *_: Any, out: Array) -> None:
    """Copy into out's dtype as C casts do.

    Floats become integers towards zero, integers wrap, and complex numbers lose their imaginary part. float64 is
    rounded to float32 before float16, as in torch.
    """
    if x.dtype.kind == "c" and out.dtype.kind not in "cb":
        x = x.real
    if x.dtype == np.float64 and out.dtype == np.float16:
        x = x.astype(np.float32)
    np.copyto(out, x, casting="unsafe")


Number = int | float


@TABLE.kernel("aten.full.default", "aten.full_like.default", "aten.fill.Scalar", dtypes=CONVERTIBLE)
def full(_shape: Any, value: Any, *_options: Any, out: Array) -> None:
    """Fill with a number, which torch converts so that integers truncate a fraction."""
    np.copyto(out, np.asarray(value), casting="unsafe")


@TABLE.kernel("aten.scalar_tensor.default", dtypes=CONVERTIBLE)
def scalar_tensor(value: Any, *_options: Any, out: Array) -> None:
    full(None, value, out=out)


@TABLE.kernel("aten.arange.start_step", dtypes=REAL)
def arange(start: Number, end: Number, step: Number, *_options: Any, out: Array) -> None:
    """Write start + step * i; in integers for integers."""
    if out.dtype.kind in "iu":
        start, step = int(start), int(step)
    np.copyto(out, np.arange(out.size) * step + start, casting="unsafe")


@TABLE.kernel("aten.tril_indices.default", dtypes={DType.int32, DType.int64})
def tril_indices(rows: int, columns: int, offset: int, *_options: Any, out: Array) -> None:
    check_room((rows, columns), out.dtype, out)
    out[...] = np.tril_indices(rows, offset, columns)


@TABLE.kernel("aten.triu_indices.default", dtypes={DType.int32, DType.int64})
def triu_indices(rows: int, columns: int, offset: int, *_options: Any, out: Array) -> None:
    check_room((rows, columns), out.dtype, out)
    out[...] = np.triu_indices(rows, offset, columns)


@TABLE.kernel(
    "aten.empty.memory_format", "aten.empty_strided.default", "aten.empty_permuted.default",
    "aten.new_empty_strided.default",
    dtypes=ANY,
)  # fmt: skip
def empty(*_args: Any, out: Array) -> None:
    """Fill with zeros what torch leaves uninitialized, so that every run gives the same result."""
    out.fill(0)
