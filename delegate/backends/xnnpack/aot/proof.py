"""The proof that XNNPACK runs a whole model. LiteRT silently runs rejected operators with slow kernels."""

from __future__ import annotations

from delegate.backends.xnnpack.aot.tflite import Model
from delegate.backends.xnnpack.runtime.interpreted import covered_operators, open_interpreter

_WHY = "LiteRT's XNNPACK does not take {} here"


def find_rejected(model: Model, blob: bytes, inputs: list[int], outputs: list[int]) -> dict[str, str]:
    """Return the nodes whose operators XNNPACK rejects, name -> reason; empty if there are none.

    Args:
        model: the builder of `blob`.
        blob: the model.
        inputs, outputs: its tensors.
    """
    count = len(model.origins)
    covered = _find_covered(blob, count)
    if len(covered) == count:
        return {}
    names = model.operators
    if not covered:  # XNNPACK rejected the model as a whole, or it is one operator: test each operator separately
        covered = {i for i in range(count) if _find_covered(model.single(i), 1)}
    reasons = {model.origins[i]: _WHY.format(names[i]) for i in range(count) if i not in covered}
    return reasons or dict.fromkeys(model.origins, "LiteRT's XNNPACK does not take this partition as a whole")


def _find_covered(blob: bytes, count: int) -> set[int]:
    """Return the positions of the operators that run inside XNNPACK."""
    interpreter = open_interpreter(blob, 1)
    try:
        interpreter._interpreter.AllocateTensors()
    except (RuntimeError, ValueError):
        return set()
    return covered_operators(interpreter._interpreter, count)
