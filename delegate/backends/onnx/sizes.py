"""Dynamic sizes without arithmetic: providers leave what computes a shape to the CPU, which sessions must not use.

Reshape can say the same with constants: 0 takes a size over from its input, -1 stands for what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def fix_reshapes(model: Any) -> None:
    """Give every Reshape of an onnx_ir model a constant shape where one can say it, and drop what computed them."""
    import onnx_ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    for node in list(model.graph):
        if node.op_type != "Reshape" or node.inputs[1].const_value is not None:
            continue
        source, target = node.inputs[0].shape, node.outputs[0].shape
        sizes = None if source is None or target is None else _constant(tuple(source), tuple(target))
        if sizes is not None:
            constant = onnx_ir.node("Constant", [], {"value": onnx_ir.tensor(sizes, dtype=onnx_ir.DataType.INT64)})
            model.graph.insert_before(node, constant)
            node.replace_input_with(1, constant.outputs[0])
            node.attributes["allowzero"] = onnx_ir.AttrInt64("allowzero", 0)
    RemoveUnusedNodesPass()(model)


def _constant(source: Sequence[Any], target: Sequence[Any]) -> list[int] | None:
    """The shape `target` in the words of Reshape; None where more than one size would have to be computed, or is 0."""
    made = [size if isinstance(size, int) else 0 if size in source[i : i + 1] else -1 for i, size in enumerate(target)]
    return made if made.count(-1) <= 1 and 0 not in target else None
