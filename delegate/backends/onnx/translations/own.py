"""Helpers of the translations that are our own: the exporter calls them with values of onnx_ir and plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def ops() -> Any:
    """The ONNX operators as functions that add nodes to the model that is being exported."""
    from onnxscript import opset18

    return opset18


def scalar(number: float, like: Any) -> Any:
    """A constant without dimensions, of the dtype of another value."""
    import onnx_ir

    return ops().Constant(value=onnx_ir.tensor(number, dtype=like.dtype))


def ints(values: Sequence[int]) -> Any:
    """A constant of sizes, axes or the like."""
    return ops().Constant(value_ints=list(values))
