"""Separate storage of large constants of OpenVINO's IR, so that methods and partitions share them in the file.

An IR is XML, and one file of weights in which each constant has a position. Here, large constants are holes in that
file: untouched pages of zeros when a model is read. Constants over the stored bytes then replace them, without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import openvino

from delegate.program.raw import writable_view

LEAST = 4096  # bytes; smaller constants stay in the file of weights

Hole = tuple[int, int]  # its start in the file of weights, and its number of bytes


def large_constants(graph: bytes) -> list[Hole]:
    """Return the holes of the large constants of an IR, without those that bodies of loops and branches read."""
    root = ElementTree.fromstring(graph)  # of OpenVINO's own making
    layers = root.findall("layers/layer")
    inner = {start for start, _ in _places(set(root.iter("layer")).difference(layers))}
    holes = sorted(hole for hole in set(_places(layers)) if hole[1] >= LEAST and hole[0] not in inner)
    are_disjoint = not any(start + size > after for (start, size), (after, _) in pairwise(holes))
    return holes if are_disjoint else []


def _places(layers: Iterable[ElementTree.Element]) -> Iterator[Hole]:
    for layer in layers:
        data = layer.find("data")
        if layer.get("type") == "Const" and data is not None:
            yield int(data.attrib["offset"]), int(data.attrib["size"])


def without(weights: bytes, holes: Sequence[Hole]) -> bytes:
    """Return a file of weights without its holes."""
    starts = [0, *(start + size for start, size in holes)]
    ends = [*(start for start, _ in holes), len(weights)]
    return b"".join(weights[start:end] for start, end in zip(starts, ends, strict=True))


def with_holes(rest: memoryview, starts: Sequence[int], data: Sequence[memoryview]) -> np.ndarray[Any, Any]:
    """Return the file of weights with zeros in the holes of the data.

    Raises:
        ValueError: the holes overlap, are not in order, or are not within the file.
    """
    whole = np.zeros(rest.nbytes + sum(d.nbytes for d in data), np.uint8)
    at = taken = 0
    for start, hole in zip(starts, data, strict=True):
        whole[at:start] = rest[taken : taken + start - at]
        if start < at:
            raise ValueError("its weights overlap")
        at, taken = start + hole.nbytes, taken + start - at
    whole[at:] = rest[taken:]
    return whole


def fill_holes(model: Any, base: int, starts: Sequence[int], data: Sequence[memoryview]) -> None:
    """Replace the constants in holes by others over the data, which must outlive the model.

    Args:
        model: the model, read from the array of `with_holes`.
        base: the address of that array.
        starts, data: the holes.

    Raises:
        ValueError: a hole has no constant, or a constant of another size.
    """
    places = dict(zip(starts, data, strict=True))
    left = set(places)
    for constant in [op for op in model.get_ops() if op.get_type_name() == "Constant"]:
        start = constant.data.ctypes.data - base
        if start in places:
            own = constant_over(constant, np.frombuffer(places[start], np.uint8))
            constant.output(0).replace(own.output(0))
            left.discard(start)
    if left:
        raise ValueError(f"there is no constant at byte {min(left)} of its weights")


def constant_over(constant: Any, data: np.ndarray[Any, Any]) -> Any:
    """Return a constant with the type and shape of another, over bytes that must outlive it.

    Raises:
        ValueError: the number of bytes differs.
    """
    if data.nbytes != constant.get_byte_size():
        raise ValueError(f"a constant of {constant.get_byte_size()} bytes has {data.nbytes}")
    tensor = openvino.Tensor(writable_view(data), constant.get_output_shape(0), constant.get_element_type())
    return openvino.op.Constant(tensor, shared_memory=True)
