"""Names for weights that several nodes read in different ways: providers transpose and pack a weight once per name.

QNN's provider of ONNX Runtime 1.31 reuses the transposed weight of a Conv for a ConvTranspose of the same weight. The
results are wrong. So each kind of use has its own name. The bytes are stored once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_Use = frozenset[tuple[str, int, str]]
_BETWEEN = "DequantizeLinear"  # is done to a weight before it is read


def part_uses(model: Any) -> None:
    """Add an initializer to an onnx_ir model for each further kind of use of a weight."""
    graph = model.graph
    for node in [node for node in graph if node.op_type == _BETWEEN and node.inputs[0].is_initializer()]:
        _part(node.outputs[0], _same_node)
    for value in [v for v in graph.initializers.values() if v.const_value.size > 1]:
        _part(value, _same_initializer)


def _part(value: Any, same: Callable[[Any, str], Any]) -> None:
    """Let the first kind of use read a value, and each other kind the copy that `same` makes, with a name suffix."""
    values: dict[_Use, Any] = {}
    for node, place in list(value.uses()):
        use = _use(node, place)
        if use not in values:
            values[use] = same(value, f"/{len(values)}") if values else value
        node.replace_input_with(place, values[use])


def _use(node: Any, place: int) -> _Use:
    """Return the kind of use of a weight: the operator that reads it, the input, and the attributes."""
    if node.op_type == _BETWEEN and place == 0:
        return frozenset().union(*(_use(*user) for user in node.outputs[0].uses()))
    return frozenset({(node.op_type, place, str(sorted(map(str, node.attributes.values()))))})


def _same_initializer(value: Any, suffix: str) -> Any:
    import onnx_ir

    copied = onnx_ir.Value(name=value.name + suffix, shape=value.shape, type=value.type, const_value=value.const_value)
    value.graph.register_initializer(copied)
    return copied


def _same_node(value: Any, suffix: str) -> Any:
    import onnx_ir

    node = value.producer()
    copied = onnx_ir.Node("", node.op_type, node.inputs, node.attributes.values(), name=node.name + suffix)
    copied.metadata_props.update(node.metadata_props)
    node.graph.insert_after(node, copied)
    (result,) = copied.outputs
    result.name, result.shape, result.type = value.name + suffix, value.shape, value.type
    return result
