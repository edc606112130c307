"""The runtime part: it runs blobs, and must never import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from delegate.runtime.backend import Array, BlobFormat, Delegate, TensorType
from delegate.runtime.recording import Recording, RecordingRuntime

FORMAT = BlobFormat("acme", version=1)
FUNCTIONS: Mapping[str, Any] = {
    **{
        name: getattr(np, name)
        for name in ("add", "subtract", "multiply", "maximum", "minimum", "negative", "absolute")
    },
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "cast": lambda x, dtype: x.astype(dtype),
}


class AcmeDelegate(Delegate):
    """A delegate that replays recorded calls.

    Args:
        recording: the checked calls.
        constants: arrays of the constants.
    """

    thread_safe = True  # a call changes no state

    def __init__(self, recording: Recording, constants: Sequence[Array]) -> None:
        self._recording, self._constants = recording, constants

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        """Compare the program's tensors with the blob, because a program file may be forged."""
        self._recording.require_types(inputs, outputs)

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute all calls, and fill the outputs."""
        with np.errstate(all="ignore"):
            results = self._recording.replay(FUNCTIONS, inputs, self._constants)
        for output, result in zip(outputs, results, strict=True):
            output[...] = result


class AcmeRuntime(RecordingRuntime):
    """The runtime part, which opens blobs."""

    blob_format = FORMAT
    functions = FUNCTIONS

    def create(self, recording: Recording, constants: Sequence[Array], compile_specs: Mapping[str, Any]) -> Delegate:
        """Return the delegate of a checked blob."""
        return AcmeDelegate(recording, constants)
