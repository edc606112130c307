"""What XNNPACK packs of a model, as a key: models of the same key may use the same packed weights.

XNNPACK looks for what it packed by the numbers of buffers and a number that says how. So the key holds, for every layer
in turn, all that packing depends on: the operator with its options, the numbers and contents of its constants, what its
integers stand for. Sizes that only activations have are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from delegate.backends.xnnpack.verified import Graph, Layer, Operand, Tensor

_FORM = 1  # of this key


def packing_key(graph: Graph, content: Callable[[tuple[int, int]], bytes], about: Mapping[str, str]) -> str:
    """The key of a model's packed weights.

    Args:
        graph: the model, verified.
        content: gives a digest of the bytes at a place (start, size) of the file.
        about: what packing depends on besides: versions, the machine.
    """
    said = [_FORM, sorted(about.items()), [_layer(layer, content) for layer in graph.layers]]
    return hashlib.sha256(repr(said).encode()).hexdigest()


def _layer(layer: Layer, content: Callable[[tuple[int, int]], bytes]) -> list[Any]:
    operands = [None if x is None else _operand(x, content) for x in (*layer.inputs, *layer.outputs)]
    padding = layer.padding and _tensor(layer.padding, content)
    return [layer.name, sorted(layer.options.items()), operands, padding]


def _operand(operand: Operand, content: Callable[[tuple[int, int]], bytes]) -> list[Any]:
    scales = operand.scales and _tensor(operand.scales, content)
    return [operand.decoded, _tensor(operand.tensor, content), scales]


def _tensor(tensor: Tensor, content: Callable[[tuple[int, int]], bytes]) -> list[Any]:
    said = [tensor.kind, hashlib.sha256(repr((*tensor.numbers, tensor.blocks[1])).encode()).hexdigest()]
    if tensor.is_constant:
        return [*said, tensor.shape, tensor.buffer, content(tensor.place).hex()]
    return [*said, tensor.signature[-1:]]
