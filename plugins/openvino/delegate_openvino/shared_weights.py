"""Copies of constants that operators read in several ways: OpenVINO identifies a packed copy by the original's address.

Equal bytes are stored once in a file, but OpenVINO 2026.4 reuses the packed copy for a product of another shape. It
does so for a transposed convolution of a plain one's weight, too, and both have wrong results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from openvino.passes import ConstantFolding, Manager

from delegate_openvino.weights import constant_over

Array = np.ndarray[Any, np.dtype[Any]]
# The final reader of a constant: operator, position among its inputs, dtype and shape there, attributes.
_Use = tuple[Any, ...]
_SEVERAL: _Use = ()
_READING_IN_PLACE = frozenset({"Gather", "ShapeOf"})


def part_uses(model: Any) -> list[Array]:
    """Copy a constant for each kind of use, and return the copies, which must outlive the model."""
    uses = _uses(model)
    if any(uses[op.get_name()] == _SEVERAL for op in model.get_ops() if not _is_constant(op) and op.get_name() in uses):
        manager = Manager()
        manager.register_pass(ConstantFolding())  # so that each of these uses reads a constant directly
        manager.run_passes(model)
        uses = _uses(model)
    first: dict[int, _Use] = {}
    memory: list[Array] = []
    for constant in filter(_is_constant, model.get_ops()):
        copies: dict[_Use, Any] = {}
        for reader in constant.output(0).get_target_inputs():
            use = _use(reader, uses)
            if use is not None and first.setdefault(constant.data.ctypes.data, use) != use:
                if use not in copies:
                    memory.append(constant.data.copy().reshape(-1).view(np.uint8))
                    copies[use] = constant_over(constant, memory[-1])
                reader.replace_source_output(copies[use].output(0))
    return memory


def _uses(model: Any) -> Mapping[str, _Use | None]:
    """Return the readers of each operator on constants only; None if no reader packs its result."""
    ops, fixed = model.get_ordered_ops(), set[str]()
    for op in ops:
        if _is_constant(op) or (op.inputs() and all(source in fixed for source in _sources(op))):
            fixed.add(op.get_name())
    uses: dict[str, _Use | None] = {}
    for op in reversed(ops):
        if op.get_name() in fixed:
            readers = {_use(reader, uses) for output in op.outputs() for reader in output.get_target_inputs()} - {None}
            uses[op.get_name()] = _SEVERAL if len(readers) > 1 else next(iter(readers), None)
    return uses


def _use(reader: Any, uses: Mapping[str, _Use | None]) -> _Use | None:
    node = reader.get_node()
    kind = node.get_type_name()
    if node.get_name() in uses:
        return uses[node.get_name()]
    if kind in _READING_IN_PLACE:
        return None
    form = f"{reader.get_element_type().to_string()}{reader.get_partial_shape()}"
    return kind, reader.get_index(), form, str(sorted(node.get_attributes().items()))


def _is_constant(op: Any) -> bool:
    return bool(op.get_type_name() == "Constant")


def _sources(op: Any) -> Iterator[str]:
    return (value.get_source_output().get_node().get_name() for value in op.inputs())
