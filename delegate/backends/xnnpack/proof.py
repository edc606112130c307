"""The proof that XNNPACK runs a whole model: LiteRT would run what it refuses with slow kernels, without a word."""

from __future__ import annotations

from delegate.backends.xnnpack.interpreted import open_interpreter
from delegate.backends.xnnpack.taken import taken
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
    """Positions of the operators that run inside XNNPACK."""
    interpreter = open_interpreter(blob, 1)
    try:
        interpreter._interpreter.AllocateTensors()
    except (RuntimeError, ValueError):
        return set()
    return taken(interpreter._interpreter, count)
