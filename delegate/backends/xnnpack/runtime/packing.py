"""The key of packed weights: models of the same key may use the same packed weights.

XNNPACK identifies packed weights by the numbers of buffers and by a number for the kind of packing. The key contains
all inputs of packing for every layer: the operator with its options, the numbers and contents of its constants, and
their scales. Sizes of activations are not part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from delegate.backends.xnnpack.runtime.verified import Graph, Layer, Operand, Tensor

_VERSION = 1  # of this key


def packing_key(graph: Graph, content: Callable[[tuple[int, int]], bytes], about: Mapping[str, str]) -> str:
    """Return the key of a model's packed weights.

    Args:
        graph: the model, verified.
        content: returns a digest of the bytes at a place (start, size) of the file.
        about: other inputs of packing: versions, the machine.
    """
    parts = [_VERSION, sorted(about.items()), [_layer(layer, content) for layer in graph.layers]]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _layer(layer: Layer, content: Callable[[tuple[int, int]], bytes]) -> list[Any]:
    operands = [None if x is None else _operand(x, content) for x in (*layer.inputs, *layer.outputs)]
    padding = layer.padding and _tensor(layer.padding, content)
    return [layer.name, sorted(layer.options.items()), operands, padding]


def _operand(operand: Operand, content: Callable[[tuple[int, int]], bytes]) -> list[Any]:
    scales = operand.scales and _tensor(operand.scales, content)
    return [operand.decoded, _tensor(operand.tensor, content), scales]


def _tensor(tensor: Tensor, content: Callable[[tuple[int, int]], bytes]) -> list[Any]:
    parts = [tensor.kind, hashlib.sha256(repr((*tensor.numbers, tensor.blocks[1])).encode()).hexdigest()]
    if tensor.is_constant:
        return [*parts, tensor.shape, tensor.buffer, content(tensor.place).hex()]
    return [*parts, tensor.signature[-1:]]
