"""The layers that OpenVINO's CPU plugin executes, with the types that they compute in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

INTEGERS = frozenset({"i8", "u8", "i4", "u4"})


@dataclass(frozen=True, slots=True)
class ExecutedLayer:
    """A layer of a compiled model.

    Args:
        kind: the kind of the layer, e.g. "Convolution".
        precision: the type of its operands, e.g. "u8".
        operators: the names of the model's operators that it computes.
    """

    kind: str
    precision: str
    operators: frozenset[str]


def list_executed_layers(compiled: Any) -> list[ExecutedLayer]:
    """Return the layers of a compiled model, in the order of execution."""
    infos = [op.get_rt_info() for op in compiled.get_runtime_model().get_ordered_ops()]
    texts = ([i[key].astype(str) for key in ("layerType", "runtimePrecision", "originalLayersNames")] for i in infos)
    return [ExecutedLayer(kind, precision, frozenset(names.split(","))) for kind, precision, names in texts]


def notes_on_floats(compiled: Any, quantized: Iterable[str]) -> Iterator[str]:
    """Yield notes on quantized operators that OpenVINO computes in floats.

    Args:
        compiled: the compiled model.
        quantized: the names of operators that read decoded integers.
    """
    names = frozenset(quantized)
    layers = [layer for layer in list_executed_layers(compiled) if layer.operators & names and layer.kind != "Output"]
    for kind, count in sorted(Counter(layer.kind for layer in layers if layer.precision not in INTEGERS).items()):
        yield f"computed in floats, not in integers: {kind}{f' ({count} times)' if count > 1 else ''}"
