"""Elementwise operators that OpenVINO must not fuse into the kernel of the operator before them.

OpenVINO does not fuse operators on values of different shapes, and a view costs nothing, so views keep them apart.
"""

from __future__ import annotations

from typing import Any

import openvino
from openvino import opset13 as opset

# Operators that OpenVINO removes where they change nothing: views, and conversions that the frontend adds.
_PASSING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "ConvertLike", "ConvertPromoteTypes"})


def keep_apart(model: openvino.Model) -> None:
    """Keep operators apart whose fused kernel is wrong, or cannot be compiled."""
    _keep_gates_apart(model)
    _keep_scales_apart(model)


def _keep_scales_apart(model: openvino.Model) -> None:
    """Normalize groups in another shape if their results meet another computed operand, such as a scale 1 + s.

    In float32, OpenVINO 2026.4 fuses the operators that compute both operands, and its compiler ends the process.
    """
    for op in model.get_ordered_ops():
        if op.get_type_name() == "GroupNormalization" and _meets_computed(op):
            source, result = op.input_value(0), op.output(0)
            targets = result.get_target_inputs()
            rank = len(source.get_partial_shape())
            op.input(0).replace_source_output(_view(source, [0, 0, 0, 1] if rank == 3 else [0, 0, -1]))
            op.validate_and_infer_types()
            whole = opset.reshape(result, opset.shape_of(source), special_zero=False).output(0)
            for target in targets:
                target.replace_source_output(whole)


def _meets_computed(op: Any) -> bool:
    """Return True if an elementwise operator has the result, maybe viewed, beside an operand that is computed too."""
    users = [target.get_node() for result in op.outputs() for target in result.get_target_inputs()]
    if any(user.get_type_name() in _PASSING and _meets_computed(user) for user in users):
        return True
    return any(
        other.get_input_size() > 0
        for user in users
        if "auto_broadcast" in user.get_attributes()
        for other in (value.get_node() for value in user.input_values())
        if other.get_name() != op.get_name()
    )


def _keep_gates_apart(model: openvino.Model) -> None:
    """Split the head size of operators after attention that have an operand of one element for each row.

    OpenVINO 2026.4 fuses elementwise operators after attention (softmax between two products) into its kernel for CPUs.
    If an operand such as a gate has one element for each row, results are wrong or NaN for head sizes that are several
    blocks of columns (24 columns with AVX2, 64 with AVX-512), if the length is dynamic or exceeds one block of 32 rows.
    Blocks are even, so odd head sizes are right.
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
    """Return True for an operator with broadcasting whose last dimension is even, and equal in each operand, or 1."""
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
