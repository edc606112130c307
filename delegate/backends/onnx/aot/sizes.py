"""Dynamic sizes without arithmetic: providers compute shapes on the CPU, which sessions must not use.

A Reshape can often use constants: 0 copies a size of its input, and -1 is the remaining size. In an Expand, 1 is an
unchanged size. Any other shape becomes an input of the model, which the runtime part fills at every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from delegate.backends.onnx.runtime.blob import Shape

_UNCHANGED = {"Reshape": 0, "Expand": 1}  # operator -> the constant of an unchanged size


def fix_shapes(model: Any) -> tuple[Shape, ...]:
    """Replace the computed shapes in an onnx_ir model by constants or by inputs of the model.

    Returns:
        The shapes that are new inputs of the model, after its own inputs, in order.
    """
    import onnx_ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    symbol_sources = _symbol_sources(model)
    added: dict[Shape, Any] = {}
    for node in list(model.graph):
        if node.op_type not in _UNCHANGED or node.inputs[1].const_value is not None:
            continue
        source, target = node.inputs[0].shape, node.outputs[0].shape
        if source is None or target is None:
            continue
        sizes = _constant(node.op_type, tuple(source), tuple(target))
        shape = None if sizes is not None else _shape(node.op_type, tuple(target), symbol_sources)
        if sizes is not None:
            constant = onnx_ir.node("Constant", [], {"value": onnx_ir.tensor(sizes, dtype=onnx_ir.DataType.INT64)})
            model.graph.insert_before(node, constant)
            node.replace_input_with(1, constant.outputs[0])
        elif shape is not None:
            if shape not in added:
                kind, length = onnx_ir.TensorType(onnx_ir.DataType.INT64), onnx_ir.Shape([len(shape)])
                added[shape] = onnx_ir.Value(name=f"shape_{len(added)}", shape=length, type=kind)
                model.graph.inputs.append(added[shape])
            node.replace_input_with(1, added[shape])
        else:
            continue
        if node.op_type == "Reshape":
            node.attributes["allowzero"] = onnx_ir.AttrInt64("allowzero", 0)
    RemoveUnusedNodesPass()(model)
    return tuple(added)


def _symbol_sources(model: Any) -> Mapping[str, tuple[int, int]]:
    """Return, for each symbol, the input and its dimension that have this size."""
    symbol_sources: dict[str, tuple[int, int]] = {}
    for number, value in enumerate(model.graph.inputs):
        for dim, size in enumerate(value.shape):
            if not isinstance(size, int):
                symbol_sources.setdefault(str(size.value), (number, dim))
    return symbol_sources


def _constant(operator: str, source: Sequence[Any], target: Sequence[Any]) -> list[int] | None:
    """Return the shape `target` as numbers; None if several sizes must be computed, or one that may be 0."""
    unchanged, offset = _UNCHANGED[operator], len(source) - len(target) if operator == "Expand" else 0
    before = [source[i + offset] if 0 <= i + offset < len(source) else None for i in range(len(target))]
    sizes = [t if isinstance(t, int) else unchanged if t == b else -1 for t, b in zip(target, before, strict=True)]
    left = 1 if operator == "Reshape" else 0
    return sizes if sizes.count(-1) <= left and 0 not in target else None


def _shape(operator: str, target: Sequence[Any], symbol_sources: Mapping[str, tuple[int, int]]) -> Shape | None:
    """Return the shape `target` as sizes of inputs; None if more than one size of a Reshape must be computed."""
    sizes = [size if isinstance(size, int) else symbol_sources.get(str(size.value), -1) for size in target]
    left = 1 if operator == "Reshape" else 0
    return tuple(sizes) if sizes.count(-1) <= left and 0 not in target else None
