"""Inference requests and responses of the open inference protocol, with tensors as JSON or as binary data.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md has the requests.
Binary data is an extension of Triton, which follows the JSON part:
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from delegate.errors import did_you_mean
from delegate.program.dtypes import DType
from delegate.runtime.backend import Array
from delegate_serve.runtime.bodies import Reservation
from delegate_serve.runtime.datatypes import NAMES, dumps, from_json, loads, to_json
from delegate_serve.runtime.errors import RequestError
from delegate_serve.runtime.sessions import Turn
from delegate_serve.runtime.shared_memory import Place, Regions
from delegate_serve.runtime.signature import Signature, Tensor

_MICROSECONDS = 1e6
_SHARED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


class Requested(NamedTuple):
    """A requested output.

    Args:
        tensor: the output.
        is_binary: it is requested as binary data.
        place: The place in shared memory, if the output is requested there.
    """

    tensor: Tensor
    is_binary: bool
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A checked inference request.

    Args:
        id: The client's id, returned with the response; may be empty.
        leaves: the leaves of the arguments.
        outputs: the requested outputs.
        timeout: seconds that the client waits; None: the limit of the server.
        priority: smaller numbers run first; None: the model's priority.
        turn: its place in a session, if it has one.
    """

    id: str
    leaves: list[Any]
    outputs: tuple[Requested, ...]
    timeout: float | None
    priority: int | None
    turn: Turn | None


def decode(body: Array, json_size: int, signature: Signature, regions: Regions, reservation: Reservation) -> Request:
    """Return the request in a body.

    Args:
        body: the bytes: JSON, and then binary data. Tensors are views of it, if they are aligned.
        json_size: bytes of JSON.
        signature: The method's signature.
        regions: The regions of shared memory.
        reservation: The reservation of the request's memory.

    Raises:
        RequestError: the request is invalid, or does not fit the method.
    """
    fields = loads(body.data[:json_size], "the request")
    return check(_mapping(fields, "the request"), body[json_size:], signature, regions, reservation)


def check(
    fields: Mapping[str, Any], data: Array, signature: Signature, regions: Regions, reservation: Reservation
) -> Request:
    """Return the request with these fields of its JSON, and this binary data; raise RequestError as `decode` does."""
    parameters = _mapping(fields.get("parameters", {}), "the parameters of the request")
    data_of = _Data(data, regions, reservation)
    return Request(
        _text(fields.get("id", ""), "the id of the request"),
        _leaves(fields.get("inputs"), data_of, signature),
        _outputs(fields.get("outputs"), parameters.get("binary_data_output", False), signature, regions),
        _timeout(parameters.get("timeout", 0)),
        _priority(parameters.get("priority", 0)),
        _turn(parameters),
    )


def encode(
    request: Request, results: Sequence[Any], model: str, version: str, regions: Regions
) -> tuple[list[bytes | memoryview], int | None]:
    """Return the parts of a response's body, and the size of its JSON if binary data follows.

    Args:
        request: the request.
        results: the leaves of the result.
        model, version: the model.
        regions: The regions of shared memory.

    Raises:
        RequestError: an output has no form in JSON, or does not fit its place in shared memory.
    """
    outputs, parts = [], []
    for tensor, is_binary, place in request.outputs:
        array = results[tensor.leaf]
        row: dict[str, Any] = {"name": tensor.name, "datatype": NAMES[tensor.dtype], "shape": list(array.shape)}
        if place is not None:
            row["parameters"] = store(array, tensor, place, regions)
        elif is_binary:
            parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            row["parameters"] = {"binary_data_size": array.nbytes}
        else:
            row["data"] = to_json(array, tensor.dtype, f"output {tensor.name!r}")
        outputs.append(row)
    response: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": outputs}
    if request.id:
        response["id"] = request.id
    text = dumps(response)
    return [text, *parts], len(text) if parts else None


def store(array: Array, tensor: Tensor, place: Place, regions: Regions) -> dict[str, Any]:
    """Copy an output to shared memory, and return the parameters that describe it; raise RequestError as `encode`."""
    regions.write(place, array, f"output {tensor.name!r}")
    return dict(zip(_SHARED, (place.region, array.nbytes, place.offset), strict=True))


class _Data:
    """The binary data of a request, which its inputs take in their order, and the data in shared memory."""

    def __init__(self, data: Array, regions: Regions, reservation: Reservation) -> None:
        self._data, self._used = data, 0
        self.regions, self._reservation = regions, reservation

    def read(self, place: Place, tensor: Tensor, shape: Sequence[int], where: str) -> Array:
        """Return data in shared memory as an array."""
        _require_size(place.size, tensor, shape, where, "in shared memory")
        data = self.regions.read(place, self._reservation, where)
        return _reshape(data.view(tensor.dtype.numpy), shape, where)

    def take(self, size: int, tensor: Tensor, shape: Sequence[int], where: str) -> Array:
        """Return the next bytes as an aligned array."""
        _require_size(size, tensor, shape, where, "of binary data")
        if size > self._data.size - self._used:
            raise RequestError(400, f"{where} has {size} bytes of binary data, but the body ends before")
        data = self._data[self._used : self._used + size]
        self._used += size
        array = _reshape(data.view(tensor.dtype.numpy) if size else np.empty(0, tensor.dtype.numpy), shape, where)
        return array if array.flags.aligned else array.copy().view()  # a program takes only views as bits of bfloat16

    def require_end(self) -> None:
        """Raise RequestError if data is left."""
        if self._used != self._data.size:
            left = self._data.size - self._used
            raise RequestError(400, f"the body has {left} bytes after the data of the last input")


def _require_size(size: int, tensor: Tensor, shape: Sequence[int], where: str, kind: str) -> None:
    expected = math.prod(shape) * tensor.dtype.itemsize
    if size != expected:
        what = f"{where} has {size} bytes {kind}, but {NAMES[tensor.dtype]} of shape {list(shape)} has {expected}"
        raise RequestError(400, what)


def _leaves(inputs: Any, data: _Data, signature: Signature) -> list[Any]:
    """Return the leaves of the arguments."""
    leaves: list[Any] = list(signature.literals)
    seen: set[str] = set()
    for item in _list(inputs, "the inputs of the request"):
        row = _mapping(item, "an input")
        name = _text(row.get("name"), "the name of an input")
        where = f"input {name!r}"
        if name not in signature.inputs:
            _unknown_error(where, name, signature.inputs)
        if name in seen:
            raise RequestError(400, f"{where} is given twice")
        seen.add(name)
        tensor = signature.inputs[name]
        array = _array(row, tensor, data, where)
        if tensor.dtype is DType.bool and "data" not in row and array.view(np.uint8).max(initial=0) > 1:
            raise RequestError(400, f"{where} has bytes that are no BOOL: each must be 0 or 1")
        leaves[tensor.leaf] = int(array[0]) if tensor.is_number else array
    if missing := [name for name in signature.inputs if name not in seen]:
        raise RequestError(400, f"the request has no input {missing[0]!r}")
    data.require_end()
    return leaves


def _array(row: Mapping[str, Any], tensor: Tensor, data: _Data, where: str) -> Array:
    """Return the array of an input; bfloat16 as a view of its bits."""
    if row.get("datatype") != NAMES[tensor.dtype]:
        raise RequestError(400, f"{where} has the datatype {row.get('datatype')!r}, not {NAMES[tensor.dtype]!r}")
    shape = _shape(row.get("shape"), where)
    _require_shape(shape, tensor, where)
    parameters = _parameters(row, ("binary_data_size", *_SHARED), where)
    place = _place(parameters, where, data.regions)
    if place is not None:
        if "data" in row or "binary_data_size" in parameters:
            raise RequestError(400, f"{where} has data both in shared memory and in the request")
        return data.read(place, tensor, shape, where)
    if "binary_data_size" not in parameters:
        if "data" not in row:
            raise RequestError(400, f"{where} has no data")
        return _reshape(from_json(row["data"], tensor.dtype, shape, where), shape, where).view()
    if "data" in row:
        raise RequestError(400, f"{where} has data both as JSON and as binary data")
    size = parameters["binary_data_size"]
    if type(size) is not int or size < 0:
        raise RequestError(400, f"the binary_data_size of {where} is no number of bytes")
    return data.take(size, tensor, shape, where)


def _place(parameters: Mapping[str, Any], where: str, regions: Regions) -> Place | None:
    """Return the place of a tensor in shared memory, if its parameters name one."""
    named = next((name for name in _SHARED if name in parameters), None)
    if named is None:
        return None
    if not regions.is_enabled:
        raise RequestError(400, f"the parameter {named!r} of {where} needs the server's option --shared-memory")
    region, size, offset = (parameters.get(name, 0) for name in _SHARED)
    name = _text(region, f"the shared_memory_region of {where}")
    if type(size) is not int or type(offset) is not int or min(size, offset) < 0:
        raise RequestError(400, f"the place of {where} in shared memory is no number of bytes")
    return Place(name, offset, size)


def _shape(shape: Any, where: str) -> list[int]:
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise RequestError(400, f"the shape of {where} is no array of sizes")
    return shape


def _require_shape(shape: Sequence[int], tensor: Tensor, where: str) -> None:
    if len(shape) != len(tensor.shape) or any(
        expected not in (-1, size) for size, expected in zip(shape, tensor.shape, strict=True)
    ):
        what = f"{where} has the shape {list(shape)}, but the model takes {list(tensor.shape)}"
        raise RequestError(400, f"{what}; -1 is any size" if -1 in tensor.shape else what)


def _reshape(array: Array, shape: Sequence[int], where: str) -> Array:
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as error:  # of sizes that no array has
        raise RequestError(400, f"the shape of {where} is too large") from error


def _outputs(rows: Any, binary_by_default: Any, signature: Signature, regions: Regions) -> tuple[Requested, ...]:
    """Return the requested outputs; all, if the request names none."""
    default = truth(binary_by_default, "binary_data_output")
    if rows is None or rows == []:
        return tuple(Requested(tensor, default) for tensor in signature.outputs.values())
    requested: dict[str, Requested] = {}
    for item in _list(rows, "the outputs of the request"):
        row = _mapping(item, "an output")
        name = _text(row.get("name"), "the name of an output")
        where = f"output {name!r}"
        if name not in signature.outputs:
            _unknown_error(where, name, signature.outputs)
        if name in requested:
            raise RequestError(400, f"{where} is requested twice")
        parameters = _parameters(row, ("binary_data", *_SHARED), where)
        is_binary = truth(parameters.get("binary_data", default), f"the binary_data of {where}")
        requested[name] = Requested(signature.outputs[name], is_binary, _place(parameters, where, regions))
    return tuple(requested.values())


def _unknown_error(where: str, name: str, known: Mapping[str, Tensor]) -> NoReturn:
    raise RequestError(400, f"the model has no {where[:100]}: {did_you_mean(name[:100], known)}")


def _parameters(row: Mapping[str, Any], known: Sequence[str], where: str) -> Mapping[str, Any]:
    """Return the parameters of a tensor, which has at most these: others would change its meaning."""
    parameters = _mapping(row.get("parameters", {}), f"the parameters of {where}")
    for name in parameters:
        if name not in known:
            raise RequestError(400, f"the parameter {name[:100]!r} of {where} is not supported")
    return parameters


def _timeout(microseconds: Any) -> float | None:
    if type(microseconds) is not int or microseconds < 0:
        raise RequestError(400, "the timeout is no number of microseconds")
    return microseconds / _MICROSECONDS or None


def _priority(number: Any) -> int | None:
    if type(number) is not int or number < 0:
        raise RequestError(400, "the priority is no number from 0 on")
    return number or None  # 0 is the default in this protocol


def _turn(parameters: Mapping[str, Any]) -> Turn | None:
    session = parameters.get("sequence_id", 0)
    if type(session) not in (int, str):
        raise RequestError(400, "the sequence_id should be a number or a text")
    starts = truth(parameters.get("sequence_start", False), "sequence_start")
    ends = truth(parameters.get("sequence_end", False), "sequence_end")
    return Turn(session, starts, ends) if session else None  # 0 and "" are no session in this protocol


def _mapping(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(400, f"{what} should be a JSON object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise RequestError(400, f"{what} should be a JSON array")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise RequestError(400, f"{what} should be a text")
    return value


def truth(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise RequestError(400, f"{what} should be true or false")
    return value
