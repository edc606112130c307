"""The runtime part: it runs blobs, and must never import torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from delegate.errors import BackendFailed
from delegate.runtime.backend import BackendRuntime, Delegate, TensorType

VERSION = 1  # of the blob, as `aot.py` writes it
FUNCTIONS: Mapping[str, Any] = {
    **{
        name: getattr(np, name)
        for name in ("add", "subtract", "multiply", "maximum", "minimum", "negative", "absolute")
    },
    "relu": lambda x: np.maximum(x, np.float32(0)),
}


class AcmeDelegate(Delegate):
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
        with np.errstate(all="ignore"):
            for name, *operands in self._rows:
                arguments = (values[o] if isinstance(o, int) else np.float32(o["number"]) for o in operands)
                values.append(FUNCTIONS[name](*arguments))
        for output, i in zip(outputs, self._outputs, strict=True):
            output[...] = values[i]


class AcmeRuntime(BackendRuntime):
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
        return AcmeDelegate(read, arrays)


def _is_sound(blob: Mapping[str, Any], sizes: Sequence[int]) -> bool:
    """Return true if every row names a function, and values that exist before it."""
    try:
        inputs, constants, rows = blob["inputs"], blob["constants"], blob["rows"]
        known = inputs + len(constants)
        for i, (name, *operands) in enumerate(rows):
            numbers = [o for o in operands if type(o) is int]
            plain = all(type(o["number"]) is float for o in operands if type(o) is not int)
            if name not in FUNCTIONS or not plain or not all(0 <= n < known + i for n in numbers):
                return False
        outputs = all(type(n) is int and 0 <= n < known + len(rows) for n in blob["outputs"])
        return outputs and type(inputs) is int and [4 * math.prod(shape) for shape in constants] == sizes
    except (LookupError, TypeError, ValueError):
        return False
