"""A row of the translations, the checks that rows of several families share, and helpers of translations.

The exporter calls translations with values of onnx_ir and plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from delegate.backend.lowering import Check, Lowering
from delegate.edge.node import arguments, is_static, tensors
from delegate.verdict import YES, Reason, Verdict, no

BOOL = frozenset({torch.bool})
INDICES = frozenset({torch.int64, torch.int32})


@dataclass(frozen=True, slots=True)
class Translation:
    """A translation of an operator: every ONNX operator that the exporter may use for it.

    A provider that runs all of these ONNX operators runs the operator.

    Args:
        onnx: names from the providers' tables, e.g. "Pad", "Pad(edge)".
        also: further dtypes of its tensors, which these ONNX operators need not support, such as a mask's.
        between: ONNX operators on intermediate values; their dtypes do not limit the dtypes of its own tensors.
        translate: function that adds the ONNX nodes, in place of the exporter's own.
    """

    onnx: tuple[str, ...]
    also: frozenset[torch.dtype] = frozenset()
    between: tuple[str, ...] = ()
    translate: Callable[..., Any] | None = None

    @property
    def needs(self) -> Set[str]:
        """Return all the ONNX operators."""
        return {*self.onnx, *self.between}


Row = Lowering[Translation]


def row(
    op: str,
    onnx: tuple[str, ...],
    check: Check,
    keep: bool = False,
    *,
    also: frozenset[torch.dtype] = frozenset(),
    between: tuple[str, ...] = (),
    translate: Callable[..., Any] | None = None,
) -> Row:
    """Return a row for any provider; see `Lowering` and `Translation`. The check accepts nodes that it translates."""
    return Lowering(op, check, Translation(onnx, also, between, translate), keep)


def floating(node: Node) -> Verdict:
    """The result is floating point."""
    if all(t.dtype.is_floating_point for t in tensors(node)):
        return YES
    return no(Reason.DTYPE, "torch and ONNX divide and round integers differently")


def floating_inputs(node: Node) -> Verdict:
    """The operands are floating point."""
    for source in node.all_input_nodes:
        if not all(t.dtype.is_floating_point for t in tensors(source)):
            return no(Reason.DTYPE, f"{source.name} is not floating point")
    return YES


def same_dtypes(node: Node) -> Verdict:
    """All operands have one dtype.

    The exporter casts what torch promotes by rules of its own; only equal dtypes are sure.
    """
    dtypes = {t.dtype for source in node.all_input_nodes for t in tensors(source)}
    if len(dtypes) <= 1:
        return YES
    names = ", ".join(sorted(str(d).removeprefix("torch.") for d in dtypes))
    return no(Reason.DTYPE, f"the operands have different dtypes: {names}")


def keeps_dtype(node: Node) -> Verdict:
    """A number among the operands does not change the dtype."""
    dtype = tensors(node)[0].dtype
    for source in node.all_input_nodes:
        if any(t.dtype is not dtype for t in tensors(source)):
            return no(Reason.DTYPE, f"{source.name} becomes {str(dtype).removeprefix('torch.')}")
    return YES


def numbers(node: Node) -> Verdict:
    """The operands are numbers, not booleans."""
    for source in node.all_input_nodes:
        if any(t.dtype is torch.bool for t in tensors(source)):
            return no(Reason.DTYPE, f"{source.name} is bool")
    return YES


def truths(node: Node) -> Verdict:
    """The operands are booleans."""
    for source in node.all_input_nodes:
        if any(t.dtype is not torch.bool for t in tensors(source)):
            return no(Reason.DTYPE, f"{source.name} is not bool")
    return YES


def static(node: Node) -> Verdict:
    """All sizes are known before it runs."""
    for other in (node, *node.all_input_nodes):
        if not is_static(other):
            return no(Reason.DYNAMIC_SHAPE, f"{other.name} has sizes that depend on the inputs")
    return YES


def plain(**required: object) -> Check:
    """Return a check that arguments have these values."""

    def check(node: Node) -> Verdict:
        args = arguments(node)
        for name, value in required.items():
            if args[name] != value:
                return no(Reason.ATTRIBUTE, f"{name}={args[name]}")
        return YES

    check.__doc__ = ", ".join(f"{name}={value}" for name, value in required.items()) + "."
    return check


END = 2**31 - 1  # where a slice ends that has no end


def ops() -> Any:
    """Return ONNX's operators as functions that add nodes to the exported model."""
    from onnxscript import opset18

    return opset18


def scalar(number: float, like: Any) -> Any:
    """Return a constant without dimensions, in the dtype of `like`; `set_dtype` sets the dtype of new values."""
    import onnx_ir

    assert like.dtype is not None, "a number of the dtype of a value that has none"
    result = ops().Constant(value=onnx_ir.tensor(number, dtype=like.dtype))
    result.dtype = like.dtype
    return result


def operand(argument: Any, like: Any) -> Any:
    """Return an argument as a value; a number becomes a constant."""
    return scalar(argument, like) if isinstance(argument, bool | int | float) else argument


def set_dtype(result: Any, like: Any) -> Any:
    """Give a new value the dtype of another one, because the exporter infers dtypes only later."""
    result.dtype = like.dtype
    return result


def ints(values: Sequence[int]) -> Any:
    """Return a constant of sizes, axes or other integers."""
    return ops().Constant(value_ints=list(values))


def constant(values: torch.Tensor, like: Any = None) -> Any:
    """Return a constant tensor; floats become float16 if `like` is float16."""
    import onnx_ir

    if like is not None and like.dtype.name == "FLOAT16":
        values = values.half()
    return ops().Constant(value=onnx_ir.tensor(values.contiguous().numpy()))


def cast(x: Any, dtype: str) -> Any:
    """Cast a value to an element type by its ONNX name, e.g. "FLOAT"."""
    import onnx_ir

    return ops().Cast(x, to=onnx_ir.DataType[dtype])


def cast_like(x: Any, other: Any) -> Any:
    """Cast a value to the element type of another one."""
    return ops().Cast(x, to=other.dtype)


def is_bool(x: Any) -> bool:
    """Return true if a value holds booleans."""
    return bool(x.dtype.name == "BOOL")


def is_integer(x: Any) -> bool:
    """Return true if a value holds integers."""
    return bool(x.dtype.name.removeprefix("U").startswith("INT"))


def axis_of(dim: int, x: Any) -> int:
    """Return a dimension counted from the front."""
    return dim % max(len(x.shape), 1)


def multiply_by_weights(x: Any, axis: int, weights: torch.Tensor, shape: Sequence[Any], like: Any) -> Any:
    """Return the product of constant weights (new size, old size) with one dimension; the others stay.

    Args:
        shape: The shape of x, whose sizes behind the first are known.
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


def take(x: Any, axis: int, places: torch.Tensor) -> Any:
    """Return the elements at constant places of a dimension; the dimensions of `places` replace it."""
    return ops().Gather(x, constant(places), axis=axis)


def set_shape(x: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """Set the shape and the dtype of an intermediate result, and return it."""
    import onnx_ir

    x.shape, x.dtype = onnx_ir.Shape(shape), dtype
    return x
