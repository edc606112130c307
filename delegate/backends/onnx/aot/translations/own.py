"""Helpers of the translations that are our own: the exporter calls them with values of onnx_ir and plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

END = 2**31 - 1  # where a slice ends that has no end


def ops() -> Any:
    """The ONNX operators as functions that add nodes to the model that is being exported."""
    from onnxscript import opset18

    return opset18


def scalar(number: float, like: Any) -> Any:
    """Return a constant without dimensions, in the dtype of `like`; `typed` sets the dtype of new values."""
    import onnx_ir

    assert like.dtype is not None, "a number of the dtype of a value that has none"
    result = ops().Constant(value=onnx_ir.tensor(number, dtype=like.dtype))
    result.dtype = like.dtype
    return result


def operand(argument: Any, like: Any) -> Any:
    """Return an argument as a value; a number becomes a constant."""
    return scalar(argument, like) if isinstance(argument, bool | int | float) else argument


def typed(result: Any, like: Any) -> Any:
    """Set the dtype of a new value to that of another one, because the exporter infers dtypes only later."""
    result.dtype = like.dtype
    return result


def ints(values: Sequence[int]) -> Any:
    """A constant of sizes, axes or the like."""
    return ops().Constant(value_ints=list(values))


def constant(values: torch.Tensor, like: Any = None) -> Any:
    """A constant tensor; of floats, in the dtype of another value."""
    import onnx_ir

    if like is not None and like.dtype.name == "FLOAT16":
        values = values.half()
    return ops().Constant(value=onnx_ir.tensor(values.contiguous().numpy()))


def cast(x: Any, dtype: str) -> Any:
    """A value as another element type, e.g. "FLOAT", in ONNX's words."""
    import onnx_ir

    return ops().Cast(x, to=onnx_ir.DataType[dtype])


def cast_like(x: Any, other: Any) -> Any:
    """A value as the element type of another one."""
    return ops().Cast(x, to=other.dtype)


def is_bool(x: Any) -> bool:
    """Return true if a value holds truth values."""
    return bool(x.dtype.name == "BOOL")


def is_integer(x: Any) -> bool:
    """Return true if a value holds integers."""
    return bool(x.dtype.name.removeprefix("U").startswith("INT"))


def axis_of(dim: int, x: Any) -> int:
    """A dimension counted from the front."""
    return dim % max(len(x.shape), 1)


def weighted(x: Any, axis: int, weights: torch.Tensor, shape: Sequence[Any], like: Any) -> Any:
    """Return the product of constant weights (new size, old size) with one dimension; the others stay.

    Args:
        shape: of x, whose sizes behind the first are known.
        like: a value of the dtype.
    """
    op, rank = ops(), len(shape)
    if rank <= 4 and axis == rank - 1:
        return op.MatMul(x, constant(weights.t(), like))
    if rank <= 4 and axis == rank - 2:
        return op.MatMul(constant(weights, like), x)
    flat = op.Reshape(x, ints([0, -1, shape[axis], math.prod(shape[axis + 1 :])]))  # DSPs multiply up to 4 dimensions
    product = op.MatMul(constant(weights, like), flat)
    return op.Reshape(product, ints([0, *shape[1:axis], len(weights), *shape[axis + 1 :]]))


def taken(x: Any, axis: int, places: torch.Tensor) -> Any:
    """Return the elements at constant places of a dimension; the dimensions of `places` replace it."""
    return ops().Gather(x, constant(places), axis=axis)


def shaped(x: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """The same value: what is known of its shape is noted, where it is only an intermediate result."""
    import onnx_ir

    x.shape, x.dtype = onnx_ir.Shape(shape), dtype
    return x
