"""Ranges of indices among the inputs of a region. Out of range, OpenVINO returns some numbers where torch raises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from delegate.backend.aot import Region
from delegate.edge.node import arguments, op_name, tensor


def index_ranges(region: Region) -> list[dict[str, Any]]:
    """Return what the runtime checks in each call.

    "input" is the number of an input, "size" the number that its indices must be less than, or the input and dimension
    that have it, and "from_end" whether they may be negative.
    """
    numbers = {node: number for number, node in enumerate(region.inputs)}
    sizes = {
        str(size): [number, dim]
        for number, node in enumerate(region.inputs)
        for dim, size in enumerate(tensor(node).shape)
        if not isinstance(size, int)
    }
    return [
        {"input": numbers[index], "size": known, "from_end": from_end}
        for node in region.calls
        for index, size, from_end in _indices(node)
        if index in numbers and (known := size if isinstance(size, int) else sizes.get(str(size))) is not None
    ]


def unknown_sizes(region: Region) -> dict[str, str]:
    """Return the nodes whose indices cannot be checked, since no input has the size: name -> reason, for a refusal."""
    known = {str(size) for node in region.inputs for size in tensor(node).shape}
    return {
        node.name: "its indices are inputs, and no input has the size that they must be less than"
        for node in region.calls
        for index, size, _ in _indices(node)
        if index in region.inputs and not isinstance(size, int) and str(size) not in known
    }


def _indices(node: Node) -> Iterator[tuple[Node, Any, bool]]:
    """Yield each index of a selection, the size that it must be less than, and whether it may count from the end."""
    op, named = op_name(node), arguments(node)
    if op == "aten.embedding.default":
        yield named["indices"], tensor(named["weight"]).shape[0], False
    elif op in ("aten.gather.default", "aten.index_select.default") and (shape := tensor(named["self"]).shape):
        yield named["index"], shape[named["dim"]], False
    elif op == "aten.index.Tensor":
        for index, size in zip(named["indices"], tensor(named["self"]).shape, strict=False):
            if index is not None and tensor(index).dtype is not torch.bool:
                yield index, size, True
