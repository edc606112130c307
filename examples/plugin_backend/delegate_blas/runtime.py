"""The runtime part: it runs blobs by SciPy's BLAS, and must never import torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.linalg.blas import sgemm

from delegate.errors import BackendFailed
from delegate.runtime.backend import BackendRuntime, Delegate, TensorType

VERSION = 1  # of the blob, as `aot.py` writes it
ARGUMENTS = {"linear": (2, 3), "relu": (1, 1)}  # the least and the most of each function


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return x @ weight.T + bias.

    BLAS stores matrices by column. So it gets the transposes, which share the memory, and fills the transposed result.
    """
    rows = np.ascontiguousarray(x).reshape(-1, weight.shape[1])
    result = np.zeros((len(rows), weight.shape[0]), np.float32)
    if bias is not None:
        result += bias
    if rows.size and result.size:
        sgemm(1.0, weight.T, rows.T, beta=1.0, c=result.T, trans_a=True, overwrite_c=True)
    return result.reshape(*x.shape[:-1], weight.shape[0])


FUNCTIONS: Mapping[str, Any] = {"linear": linear, "relu": lambda x: np.maximum(x, np.float32(0))}


class BlasDelegate(Delegate):
    """A delegate that runs the rows of a blob.

    Args:
        blob: the checked rows.
        constants: arrays of the constants.
    """

    thread_safe = True  # a call changes no state

    def __init__(self, blob: Mapping[str, Any], constants: Sequence[Any]) -> None:
        self._inputs, self._rows, self._outputs = blob["inputs"], blob["rows"], blob["outputs"]
        self._constants = constants

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        """Compare the program's tensors with the blob, because a program file may be forged."""
        fits = (len(inputs), len(outputs)) == (self._inputs, len(self._outputs))
        if not fits or any(t.dtype != np.float32 for t in (*inputs, *outputs)):
            raise BackendFailed("the blob has other inputs or outputs than its program")

    def execute(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute all rows, and fill the outputs."""
        values = [*inputs, *self._constants]
        for name, *operands in self._rows:
            values.append(FUNCTIONS[name](*(None if o is None else values[o] for o in operands)))
        for output, i in zip(outputs, self._outputs, strict=True):
            output[...] = values[i]


class BlasRuntime(BackendRuntime):
    """The runtime part, which opens blobs."""

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        """Return the delegate of a blob without constants."""
        return self.init_with_data(blob, (), compile_specs)

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        """Return the delegate of a blob and its constants; raise BackendFailed for a damaged or outdated blob."""
        try:
            read = json.loads(bytes(blob))
            version = read["version"]
        except (ValueError, LookupError, TypeError) as error:
            raise BackendFailed(f"the blob is damaged: {error}") from error
        if version != VERSION:
            raise BackendFailed(f"the blob is of version {version}, not {VERSION}", remedy="lower the model again")
        if not _is_sound(read, [len(part) for part in data]):
            raise BackendFailed("the blob is damaged")
        arrays = [np.frombuffer(d, np.float32).reshape(s) for d, s in zip(data, read["constants"], strict=True)]
        return BlasDelegate(read, arrays)


def _is_sound(blob: Mapping[str, Any], sizes: Sequence[int]) -> bool:
    """Return true if every row names a function, and values that exist before it."""
    try:
        known = blob["inputs"] + len(blob["constants"])
        for i, (name, *operands) in enumerate(blob["rows"]):
            least, most = ARGUMENTS[name]
            present = [o for o in operands if o is not None]
            if not (least <= len(present) and len(operands) <= most):
                return False
            if not all(type(o) is int and 0 <= o < known + i for o in present):
                return False
        outputs = all(type(n) is int and 0 <= n < known + len(blob["rows"]) for n in blob["outputs"])
        return outputs and [4 * math.prod(shape) for shape in blob["constants"]] == sizes
    except (LookupError, TypeError, ValueError):
        return False
