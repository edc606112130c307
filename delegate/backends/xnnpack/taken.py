"""Which operators of a model run inside XNNPACK: LiteRT would run others with slow kernels, without a word."""

from __future__ import annotations

from typing import Any


def taken(wrapper: Any, count: int) -> set[int]:
    """Positions of the operators that run inside XNNPACK: those between inputs and outputs of its delegate nodes.

    Args:
        wrapper: the one below LiteRT's class of interpreters, with its tensors allocated.
        count: how many operators the model has.
    """
    makers = {int(t): i for i in range(count) for t in wrapper.NodeOutputs(i)}
    found: set[int] = set()
    for node in range(count, wrapper.NumNodes()):
        if wrapper.NodeName(node) == "DELEGATE":
            found |= _inside(wrapper, makers, node)
    return found


def _inside(wrapper: Any, makers: dict[int, int], delegate: int) -> set[int]:
    given = {int(t) for t in wrapper.NodeInputs(delegate)}
    stack = [int(t) for t in wrapper.NodeOutputs(delegate)]
    found: set[int] = set()
    while stack:
        maker = makers.get(stack.pop())
        if maker is not None and maker not in found:
            found.add(maker)
            stack += [int(t) for t in wrapper.NodeInputs(maker) if int(t) not in given]
    return found
