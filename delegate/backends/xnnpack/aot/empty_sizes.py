"""Partitions that a call gives tensors without elements.

XNNPACK rejects some operators without elements, such as softmax. A partition without any element in its results is not
run at all. But one that has both kinds of results, such as `x.softmax(1), x.sum(0)` of no rows, would fail in the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch.fx import Node

from delegate.backend.aot import Region, RegionFailed
from delegate.backend.region import shape_without
from delegate.backends.xnnpack.runtime.interpreted import Interpreted, open_interpreter

Shape = Callable[[Node], list[int]]


def require_without_elements(region: Region, model: bytes) -> None:
    """Raise RegionFailed if a region fails in a call without elements, in which some results have elements.

    Args:
        region: The region.
        model: The region as a model.
    """
    for symbol, known in region.range_constraints.items():
        shape = partial(shape_without, symbol=symbol, ranges=region.range_constraints)
        is_run = known.lower == 0 and not all(0 in shape(node) for node in region.outputs)
        if not is_run:
            continue
        engine = Interpreted(open_interpreter(model, 1), dynamic=True)
        if why := _find_failure(region, engine, shape):
            raise RegionFailed(f"XNNPACK fails in a call in which the size {symbol} is 0: {why}")


def _find_failure(region: Region, engine: Interpreted, shape: Shape) -> str:
    """Return why XNNPACK cannot run a region on inputs of these shapes, or an empty text; close the engine."""
    try:
        engine.resize([tuple(shape(node)) for node in region.inputs])
        for source in engine.sources:
            source[...] = 0
        engine.run()
        found, expected = [list(x.shape) for x in engine.results], [shape(node) for node in region.outputs]
        return "" if found == expected else f"it returns {found}, not {expected}"
    except (ValueError, RuntimeError) as error:
        return str(error)
    finally:
        engine.close()
