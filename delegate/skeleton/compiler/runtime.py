"""The runtime part: it compiles recorded calls for each combination of shapes, and must never import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from delegate.runtime.backend import Array, BlobFormat, Delegate, PerShapeDelegate, Run, TensorType
from delegate.runtime.recording import Recording, RecordingRuntime

FORMAT = BlobFormat("acme", version=1)


def broadcast(x: Array, shape: Sequence[int], dims: Sequence[int]) -> Array:
    """Return x with new dimensions; dimension i of x becomes dimension `dims[i]`."""
    return np.broadcast_to(x[tuple(slice(None) if d in dims else None for d in range(len(shape)))], shape)


# Prim -> its function. NumPy stands for the library, whose functions of this kind build a graph.
PRIMS: Mapping[str, Any] = {
    **{name: getattr(np, name) for name in ("add", "exp", "maximum", "minimum", "sqrt", "tanh", "where", "transpose")},
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "gt": np.greater,
    "lt": np.less,
    "ge": np.greater_equal,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "bitwise_or": np.bitwise_or,
    "sum": lambda x, dims, dtype: np.sum(x, axis=tuple(dims)),
    "amax": lambda x, dims, dtype: np.max(x, axis=tuple(dims)),
    "broadcast_in_dim": broadcast,
}
ATEN: Mapping[str, Any] = {"mm": np.matmul, "bmm": np.matmul, "view": np.reshape}
FUNCTIONS: Mapping[str, Any] = {
    **PRIMS,
    **ATEN,
    "linear": lambda x, weight, bias: x @ weight.T if bias is None else x @ weight.T + bias,
    "linear_relu": lambda x, weight, bias: np.maximum(x @ weight.T + bias, np.float32(0)),
    "cast": lambda x, dtype: x.astype(dtype),
}


class AcmeDelegate(PerShapeDelegate):
    """A delegate that compiles recorded calls, once per combination of shapes.

    Args:
        recording: the checked calls.
        constants: arrays of the constants.
    """

    thread_safe = True  # a call changes no state

    def __init__(self, recording: Recording, constants: Sequence[Array]) -> None:
        super().__init__()
        self._recording, self._constants = recording, constants

    def compile(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Run:
        """Compare the program's tensors with the blob, which may be forged, and compile for their shapes."""
        self._recording.require_types(inputs, outputs)

        def compiled(arrays: Sequence[Array]) -> list[Array]:  # jax.jit(...).lower(...).compile() of a real library
            with np.errstate(all="ignore"):
                return self._recording.replay(FUNCTIONS, arrays, self._constants)

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            for output, result in zip(outputs, compiled(inputs), strict=True):
                output[...] = result

        return run


class AcmeRuntime(RecordingRuntime):
    """The runtime part, which opens blobs."""

    blob_format = FORMAT
    functions = FUNCTIONS

    def create(self, recording: Recording, constants: Sequence[Array], compile_specs: Mapping[str, Any]) -> Delegate:
        """Return the delegate of a checked blob."""
        return AcmeDelegate(recording, constants)
