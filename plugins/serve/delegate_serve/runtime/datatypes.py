"""The tensor types of the open inference protocol, and tensors as JSON.

The names are defined in https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md,
and BF16 of Triton. The protocol has no complex numbers.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import orjson

from delegate.kernels.half_precision import from_bfloat16, to_bfloat16
from delegate.program.dtypes import DType
from delegate.runtime.backend import Array
from delegate_serve.runtime.errors import RequestError

NAMES = {
    DType.bool: "BOOL",
    DType.uint8: "UINT8",
    DType.uint16: "UINT16",
    DType.uint32: "UINT32",
    DType.uint64: "UINT64",
    DType.int8: "INT8",
    DType.int16: "INT16",
    DType.int32: "INT32",
    DType.int64: "INT64",
    DType.float16: "FP16",
    DType.bfloat16: "BF16",
    DType.float32: "FP32",
    DType.float64: "FP64",
}
_PART = 1 << 16  # elements that the JSON writer gets at once, since no other thread runs meanwhile
_FLOATS = frozenset({DType.float16, DType.bfloat16, DType.float32, DType.float64})


def from_json(data: Any, dtype: DType, shape: Sequence[int], where: str) -> Array:
    """Return the numbers of a JSON array, flat or nested, as a flat array of this type.

    Args:
        data: what the JSON parser returned.
        dtype: the type of the array; bfloat16 as its bits in uint16.
        shape: the shape that nested arrays have, and whose product is the number of elements.
        where: the tensor, for messages.

    Raises:
        RequestError: the data has other elements, or another number of them, or a number does not fit the type.
    """
    numbers = _flat(data, shape, where)
    kinds = set(map(type, numbers))
    expected = {bool} if dtype is DType.bool else {int, float} if dtype in _FLOATS else {int}
    if not kinds <= expected:
        found = ", ".join(sorted(kind.__name__ for kind in kinds - expected))
        raise RequestError(400, f"{where} has elements that are no {NAMES[dtype]}: {found}")
    try:
        if dtype not in _FLOATS:
            return np.array(numbers, dtype.numpy)
        wide = np.array(numbers, np.float64)
        with np.errstate(over="ignore"):
            narrow = wide.astype(np.float32 if dtype is DType.bfloat16 else dtype.numpy)
    except OverflowError as error:
        raise RequestError(400, f"{where} has a number that is out of the range of {NAMES[dtype]}") from error
    if dtype is DType.bfloat16:
        narrow = to_bfloat16(narrow)
    finite = np.isfinite(from_bfloat16(narrow) if dtype is DType.bfloat16 else narrow)
    if not (finite == np.isfinite(wide)).all():
        raise RequestError(400, f"{where} has a number that is out of the range of {NAMES[dtype]}")
    return narrow


def _flat(data: Any, shape: Sequence[int], where: str) -> list[Any]:
    """Return the elements of a flat or nested list with this shape."""
    size = math.prod(shape)
    if not isinstance(data, list):
        raise RequestError(400, f"the data of {where} is no array")
    if len(data) == size and not (len(shape) > 1 and any(isinstance(part, list) for part in data)):
        return data
    parts = [data]
    for length in shape:
        if not all(isinstance(part, list) and len(part) == length for part in parts):
            raise RequestError(400, f"the data of {where} has not the shape {list(shape)}, which has {size} elements")
        parts = list(chain.from_iterable(parts))
    return parts


def to_json(array: Array, dtype: DType, where: str) -> Array | orjson.Fragment:
    """Return a flat array that the JSON writer accepts, or its JSON if it is large.

    Args:
        array: an output; bfloat16 as its bits in uint16.
        dtype: its type.
        where: the tensor, for messages.

    Raises:
        RequestError: JSON has no number for an element.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype is DType.bfloat16:
        flat = from_bfloat16(flat)
    if dtype in _FLOATS and not np.isfinite(flat).all():
        raise RequestError(422, f"{where} has NaN or infinity, which JSON does not have: request it with binary_data")
    if flat.size <= _PART:
        return flat
    parts = (flat[start : start + _PART] for start in range(0, flat.size, _PART))
    return orjson.Fragment(b"[%b]" % b",".join(dumps(part)[1:-1] for part in parts))


def loads(text: bytes | memoryview, what: str) -> Any:
    """Return the value of a JSON text; raise RequestError if it is invalid."""
    is_enabled = gc.isenabled()
    gc.disable()  # many small lists would start many collections. No other thread runs meanwhile.
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RequestError(400, f"{what} is not valid JSON: {error}") from error
    finally:
        if is_enabled:
            gc.enable()


def dumps(value: Any) -> bytes:
    """Return a value as JSON, NumPy arrays as nested arrays."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
