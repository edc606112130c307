"""Partitions that a call gives tensors without elements.

XNNPACK rejects some operators without elements, such as softmax. A partition without any element in its results is not
run at all. But one that has both kinds of results, such as `x.softmax(1), x.sum(0)` of no rows, would fail in the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch.fx import Node

from delegate.backend.aot import Region, RegionFailed
from delegate.backend.region import shape_without
from delegate.backends.xnnpack.runtime.interpreted import Interpreted, open_interpreter

Shape = Callable[[Node], list[int]]


class CompiledPart(NamedTuple):
    """The model of a region, with the tensors of its inputs and outputs."""

    model: bytes
    inputs: list[int]
    outputs: list[int]


def require_without_elements(region: Region, compiled: CompiledPart) -> None:
    """Raise RegionFailed if a region fails in a call without elements, in which some results have elements."""
    for symbol, known in region.range_constraints.items():
        shape = partial(shape_without, symbol=symbol, ranges=region.range_constraints)
        is_run = known.lower == 0 and not all(0 in shape(node) for node in region.outputs)
        if is_run and (why := _failure(region, compiled, shape)):
            raise RegionFailed(f"XNNPACK fails in a call in which the size {symbol} is 0: {why}")


def _failure(region: Region, compiled: CompiledPart, shape: Shape) -> str:
    """Return why XNNPACK does not run a region on inputs of these shapes; an empty text if it does."""
    engine = Interpreted(open_interpreter(compiled.model, 1), compiled.inputs, compiled.outputs, dynamic=True)
    try:
        engine.resize([tuple(shape(node)) for node in region.inputs])
        for source in engine.sources:
            source[...] = 0
        engine.run()
        engine.look()
        found, expected = [list(x.shape) for x in engine.results], [shape(node) for node in region.outputs]
        return "" if found == expected else f"it returns {found}, not {expected}"
    except (ValueError, RuntimeError) as error:
        return str(error)
    finally:
        engine.close()
