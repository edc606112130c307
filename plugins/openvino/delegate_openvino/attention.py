"""Attention: rows that see nothing, and operators after it that OpenVINO must not fuse into its kernel."""

from __future__ import annotations

from typing import Any

import openvino
import torch
from openvino import opset13 as opset
from torch.fx import Graph, Node


def zero_where_nothing_is_seen(graph: Graph, attended: Node, mask: Node) -> Node:
    """Set rows that are masked completely to zero, as torch does; OpenVINO's results are NaN.

    Args:
        graph: The graph to which the nodes are appended.
        attended: The result of attention [..., length, head size].
        mask: Its mask of booleans, or floats to add [..., length, keys].

    Returns:
        The corrected result.
    """
    aten = torch.ops.aten
    value = mask.meta["val"]
    seen = mask if value.dtype is torch.bool else graph.call_function(aten.gt.Scalar, (mask, float("-inf")))
    some = graph.call_function(aten.any.dim, (seen, -1, True))
    none = graph.call_function(aten.logical_not.default, (some,))
    masked = graph.call_function(aten.masked_fill.Scalar, (attended, none, 0.0))
    rows = value[..., :1]
    for node, result in (
        (seen, value.bool()),
        (some, rows.bool()),
        (none, rows.bool()),
        (masked, attended.meta["val"]),
    ):
        node.meta.setdefault("val", result)
    return masked


def keep_gates_apart(model: openvino.Model) -> None:
    """Split the head size of operators after attention that have an operand of one element for each row.

    OpenVINO 2026.4 fuses elementwise operators after attention (softmax between two products) into its kernel for CPUs.
    If an operand such as a gate has one element for each row, results are wrong or NaN for head sizes that are several
    blocks of columns (24 columns with AVX2, 64 with AVX-512), if the length is dynamic or exceeds one block of 32 rows.
    Operators on another shape are not fused, and a view costs nothing. Blocks are even, so odd head sizes are right.
    """
    weights, attended = set[str](), set[str]()  # names of operators with attention's weights, and with its results
    for op in model.get_ordered_ops():
        kind, name = op.get_type_name(), op.get_name()
        sources = {value.get_node().get_name() for value in op.input_values()}
        if kind == "ScaledDotProductAttention" or (kind == "MatMul" and sources & weights):
            attended.add(name)
        elif kind == "Softmax" or sources & weights:
            weights.add(name)
        elif sources & attended and kind != "MatMul":  # views and transposes between may be removed later
            if any(map(_has_an_element_for_each_row, op.input_values())) and _can_split(op):
                _split_last_dimension(op)
            else:
                attended.add(name)


def _has_an_element_for_each_row(value: Any) -> bool:
    shape = value.get_partial_shape()
    return len(shape) > 1 and shape[-1] == 1 and shape[-2] != 1


def _can_split(op: Any) -> bool:
    """Return True for an operator with broadcasting whose last dimension is even, and is that of each operand, or 1."""
    if "auto_broadcast" not in op.get_attributes():
        return False
    size = op.get_output_partial_shape(0)[-1]
    shapes = [value.get_partial_shape() for value in op.input_values()]
    return bool(size.is_static and size.get_length() % 2 == 0) and all(
        len(shape) == 0 or shape[-1] in (size, 1) for shape in shapes
    )


def _split_last_dimension(op: Any) -> None:
    """Compute an elementwise operator on [..., 2, size / 2] in place of [..., size]."""
    size = op.get_output_partial_shape(0)[-1].get_length()
    targets = op.output(0).get_target_inputs()
    for port in op.inputs():
        value = port.get_source_output()
        shape = value.get_partial_shape()
        if len(shape) == 0:
            continue
        halves = [1, 1] if shape[-1] == 1 else [2, size // 2]
        port.replace_source_output(_view(value, [0] * (len(shape) - 1) + halves))
    op.validate_and_infer_types()
    rank = len(op.get_output_partial_shape(0))
    whole = _view(op.output(0), [0] * (rank - 2) + [size])
    for target in targets:
        target.replace_source_output(whole)


def _view(value: Any, sizes: list[int]) -> Any:
    """Return a value in another shape, in which 0 stands for the size that it has there."""
    return opset.reshape(value, opset.constant(sizes), special_zero=True).output(0)
