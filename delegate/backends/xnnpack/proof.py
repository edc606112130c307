"""The proof that XNNPACK runs a whole model: LiteRT would run what it refuses with slow kernels, without a word."""

from __future__ import annotations

from typing import Any

from delegate.backends.xnnpack.runtime import open_interpreter
from delegate.backends.xnnpack.tflite import Model

_WHY = "LiteRT's XNNPACK does not take {} here"


def refused(model: Model, blob: bytes, inputs: list[int], outputs: list[int]) -> dict[str, str]:
    """Names of the nodes whose operators XNNPACK does not take -> why; empty if it takes all.

    Args:
        model: what `blob` was made of.
        blob: the model.
        inputs, outputs: its tensors.
    """
    count = len(model.origins)
    covered = _covered(blob, count)
    if len(covered) == count:
        return {}
    names = model.operators
    if not covered:  # XNNPACK turned the model down as a whole, or it is one operator: ask for each on its own
        covered = {i for i in range(count) if _covered(model.single(i), 1)}
    reasons = {model.origins[i]: _WHY.format(names[i]) for i in range(count) if i not in covered}
    return reasons or dict.fromkeys(model.origins, "LiteRT's XNNPACK does not take this partition as a whole")


def _covered(blob: bytes, count: int) -> set[int]:
    """Positions of the operators that run inside XNNPACK: those between inputs and outputs of its delegate nodes."""
    interpreter = open_interpreter(blob, 1)
    wrapper = interpreter._interpreter
    try:
        wrapper.AllocateTensors()
    except (RuntimeError, ValueError):
        return set()
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
