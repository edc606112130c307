"""Copies of results: the exporter copies equal results by Identity, which providers support for few dtypes.

A Reshape to the value's own shape copies all dtypes of a provider.
"""

from __future__ import annotations

from typing import Any


def replace_identities(model: Any) -> None:
    """Replace every Identity of an onnx_ir model by a Reshape."""
    import onnx_ir

    for node in list(model.graph):
        if node.op_type != "Identity":
            continue
        shape = node.outputs[0].shape or node.inputs[0].shape
        same = onnx_ir.tensor([0] * len(shape or ()), dtype=onnx_ir.DataType.INT64)  # 0: as it is
        constant = onnx_ir.node("Constant", [], {"value": same})
        model.graph.insert_before(node, constant)
        node.op_type = "Reshape"
        node.resize_inputs(2)
        node.replace_input_with(1, constant.outputs[0])
