"""Blobs of recordings: what damaged and forged ones are rejected for, and delegates that compile for each shape."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from delegate.errors import BackendFailed
from delegate.runtime.backend import BlobFormat, PerShapeDelegate, Run, TensorType
from delegate.runtime.recording import Recording
from delegate.testing import assert_same

FORMAT = BlobFormat("acme", 3)
FUNCTIONS = {"add": np.add, "split": lambda x: (x[:1], x[1:])}
RECORDING = Recording(
    inputs=(("float32", 1),),
    constants=(("float32", (2,)),),
    calls=(
        ("add", ({"value": 0}, {"value": 1})),
        ("add", ({"value": 2}, {"float": "inf"})),
        ("split", ({"value": 2},)),
    ),
    outputs=({"value": 3}, {"value": 4, "result": 1}),
    result_types=(("float32", 1), ("float32", 1)),
)


def test_a_blob_is_unpacked_again() -> None:
    blob = FORMAT.pack(b"content")
    assert bytes(FORMAT.unpack(memoryview(blob))) == b"content"
    assert len(blob) % 64 == len(b"content"), "the content is aligned"


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"", "no blob of acme"),
        (b"nonsense" * 20, "no blob of acme"),
        (BlobFormat("other", 3).pack(b"content"), "of another backend than acme"),
        (BlobFormat("acme", 2).pack(b"content"), "of version 2, not 3: lower the model again"),
        (FORMAT.with_version(FORMAT.pack(b"content"), 4), "of version 4, not 3"),
        (FORMAT.pack(b"content") + b"more", "damaged"),
        (FORMAT.pack(b"content")[:-1], "damaged"),
        (FORMAT.pack(b"content")[:-1] + b"T", "damaged"),
    ],
)
def test_other_blobs_are_rejected(blob: bytes, words: str) -> None:
    with pytest.raises(BackendFailed, match=words):
        FORMAT.unpack(memoryview(blob))


def test_a_recording_is_replayed() -> None:
    recording = Recording.from_bytes(RECORDING.to_bytes(), FUNCTIONS)
    assert recording == RECORDING
    constants = recording.arrays([memoryview(np.float32([1, 2]).tobytes())])
    found = recording.replay(FUNCTIONS, [np.float32([3, 4])], constants)
    assert_same(found, [np.float32([np.inf, np.inf]), np.float32([6])])


def forged(**fields: Any) -> bytes:
    return json.dumps({**json.loads(RECORDING.to_bytes()), **fields}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"[]", b"[" * 100_000,
        forged(calls=[["system", ["rm"]]]),
        forged(calls=[["add", [{"value": 2}, 1]]]),
        forged(calls=[["add", [{"value": -1}, 1]]]),
        forged(calls=[["add", [{"value": True}, 1]]]),
        forged(calls=[["add", [{"value": 0, "result": -1}, 1]]]),
        forged(calls=[["add", [[[{"value": 9}]], 1]]]),
        forged(calls=[["add", [{"float": "much"}]]]),
        forged(calls=3),
        forged(outputs=[1]),
        forged(outputs=[{"value": 0}]),
        forged(inputs=[["float33", 1]]),
    ],
)  # fmt: skip
def test_forged_recordings_are_rejected(content: bytes) -> None:
    with pytest.raises(BackendFailed, match="the blob is no recording"):
        Recording.from_bytes(content, FUNCTIONS)


def test_other_tensors_and_constants_are_rejected() -> None:
    right, wide = TensorType((4,), np.dtype(np.float32)), TensorType((4,), np.dtype(np.float64))
    RECORDING.require_types([right], [right, right])
    for inputs, outputs in (([wide], [right, right]), ([right], [right]), ([TensorType((1, 4), right.dtype)], [right])):
        with pytest.raises(BackendFailed, match="than its program"):
            RECORDING.require_types(inputs, outputs)
    for data in ([], [memoryview(b"1234")]):
        with pytest.raises(BackendFailed, match="other constants"):
            RECORDING.arrays(data)


class Doubler(PerShapeDelegate):
    most_shapes = 2

    def __init__(self) -> None:
        super().__init__()
        self.compiled: list[tuple[int, ...]] = []

    def compile(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Run:
        self.compiled.append(inputs[0].shape)
        return lambda inputs, outputs: np.multiply(inputs[0], 2, out=outputs[0])


def test_each_shape_is_compiled_when_it_is_prepared_or_was_evicted() -> None:
    delegate = Doubler()
    for size in (1, 2, 3):
        types = [TensorType((size,), np.dtype(np.float32))]
        delegate.prepare(types, types)
    assert delegate.compiled == [(1,), (2,), (3,)]
    for size in (3, 2, 1):
        result = np.empty(size, np.float32)
        delegate.execute([np.ones(size, np.float32)], [result])
        assert_same(result, np.full(size, 2, np.float32))
    assert delegate.compiled == [(1,), (2,), (3,), (1,)], "only the evicted shape is compiled in a call"
