"""The operators of a model that run inside XNNPACK. LiteRT silently runs others with slow kernels."""

from __future__ import annotations

from typing import Any


def covered_operators(wrapper: Any, count: int) -> set[int]:
    """Return the positions of the operators that run inside XNNPACK, from inputs to outputs of its delegate nodes.

    Args:
        wrapper: the object below LiteRT's class of interpreters, with its tensors allocated.
        count: number of operators of the model.
    """
    makers = {int(t): i for i in range(count) for t in wrapper.NodeOutputs(i)}
    covered: set[int] = set()
    for node in range(count, wrapper.NumNodes()):
        if wrapper.NodeName(node) == "DELEGATE":
            covered |= _operators_inside(wrapper, makers, node)
    return covered


def _operators_inside(wrapper: Any, makers: dict[int, int], delegate: int) -> set[int]:
    inputs = {int(t) for t in wrapper.NodeInputs(delegate)}
    stack = [int(t) for t in wrapper.NodeOutputs(delegate)]
    operators: set[int] = set()
    while stack:
        maker = makers.get(stack.pop())
        if maker is not None and maker not in operators:
            operators.add(maker)
            stack += [int(t) for t in wrapper.NodeInputs(maker) if int(t) not in inputs]
    return operators
