"""Partitions that a call gives tensors without elements.

XNNPACK rejects some operators without elements, such as softmax. A partition without any element in its results is not
run at all. But one that has both kinds of results, such as `x.softmax(1), x.sum(0)` of no rows, would fail in the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch.fx import Node

from delegate.backends.aot import Region, RegionFailed
from delegate.backends.guilty import units_of
from delegate.backends.region import shape_without
from delegate.backends.xnnpack.runtime.interpreted import Interpreted, open_interpreter
from delegate.edge.node import tensors

Shape = Callable[[Node], list[int]]


class Compiled(NamedTuple):
    """The model of a region, with the tensors of its inputs and outputs."""

    model: bytes
    inputs: list[int]
    outputs: list[int]


def find_failing_without_elements(
    region: Region, compiled: Compiled, compile_part: Callable[[Region], Compiled]
) -> dict[str, str]:
    """Return the nodes that fail in a call without elements beside results with elements, name -> reason.

    Args:
        region: with the ranges of its sizes.
        compiled: the region.
        compile_part: compiles a part of the region.

    Raises:
        RegionFailed: the region fails, but each of its nodes runs by itself.
    """
    failing: dict[str, str] = {}
    for symbol, known in region.range_constraints.items():
        if known.lower > 0:
            continue
        shape = partial(shape_without, symbol=symbol, ranges=region.range_constraints)
        if all(0 in shape(node) for node in region.outputs) or not (why := _failure(region, compiled, shape)):
            continue
        why = f"XNNPACK fails in a call in which the size {symbol} is 0: {why}"
        parts = [(unit, region.part(unit)) for unit in units_of(region) if any(map(tensors, unit))]
        nodes = [node.name for unit, part in parts if _failure(part, compile_part(part), shape) for node in unit]
        if not nodes:
            raise RegionFailed(why)
        failing.update(dict.fromkeys(nodes, why))
    return failing


def _failure(region: Region, compiled: Compiled, shape: Shape) -> str:
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
