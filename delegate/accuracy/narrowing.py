"""Which nodes of a partition its error comes from: parts of it are run on its backend, the rest by torch.

The noise of parts adds up, so that the search knows what the bounds would allow without those that make most of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch

from delegate.accuracy.figures import difference
from delegate.accuracy.reference import EagerRegion
from delegate.backends.aot import PreprocessResult, Region
from delegate.backends.bisection import MOST, Unit, part_of, units_of
from delegate.compiled import to_array, to_tensor
from delegate.edge.node import dtype_of
from delegate.report import Accuracy
from delegate.runtime.backend import Delegate

_MARGIN = 0.8  # of what the bounds allow is left to what stays: causes are not quite independent


@dataclass(slots=True)
class Trial:
    """Runs parts of a region on its backend and what is behind them by torch, on inputs that were seen.

    Args:
        region: of the partition.
        inputs: of the region.
        compile: of the backend.
        open: makes a delegate of what was compiled.
    """

    region: Region
    inputs: Sequence[torch.Tensor]
    compile: Callable[[Region], PreprocessResult]
    open: Callable[[PreprocessResult], Delegate]
    _eager: EagerRegion = field(init=False)
    _known: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self._eager = EagerRegion(self.region)
        self._known = self._eager.values(self.inputs)

    def accuracy(self, units: Sequence[Unit]) -> Accuracy | None:
        """How far off these units put the results; None where their backend does not run them on their own."""
        part = part_of(self.region, units)
        try:
            given = self._run(part)
        except Exception:  # a library that takes the whole may turn its parts down, in any way
            return None
        wanted = [self._known[node.name] for node in self.region.outputs]
        return difference(self._eager.continued(self.inputs, self._known, given), wanted)

    def _run(self, part: Region) -> dict[str, torch.Tensor]:
        expected = [self._known[n.name] for n in part.outputs]
        inputs = tuple(to_array(self._known[n.name], n.name) for n in part.inputs)
        outputs = tuple(np.empty_like(to_array(t, ""), order="C") for t in expected)
        delegate = self.open(self.compile(part))
        try:
            delegate.execute(inputs, outputs)
        finally:
            delegate.close()
        made = (to_tensor(a, dtype_of(t.dtype)) for a, t in zip(outputs, expected, strict=True))
        return dict(zip((n.name for n in part.outputs), made, strict=True))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring units, and by what their noise is greater than the bounds allow."""

    units: tuple[Unit, ...]
    excess: float
    is_one: bool = False  # whether it cannot be halved: of one unit, or its backend takes neither half

    @property
    def density(self) -> float:
        """Its noise by unit."""
        return self.excess / len(self.units)


def inaccurate_units(region: Region, excess: float, measure: Callable[[Sequence[Unit]], float | None]) -> list[Unit]:
    """The fewest units that were found without which the rest may keep the bounds; at least one.

    Args:
        region: that does not keep them.
        excess: by what its noise is greater than the bounds allow.
        measure: the same of some of its units; None where it cannot be told.
    """
    whole = tuple(units_of(region))
    stretches = [Stretch(whole, excess, len(whole) == 1)]
    cut = whole[0]
    for _ in range(MOST // 2):
        divisible = [s for s in _heaviest(stretches) if not s.is_one]
        if not divisible:
            break
        chosen = max(divisible, key=lambda s: len(s.units))
        stretches.remove(chosen)
        stretches += _halved(chosen, measure)
        cut = chosen.units[len(chosen.units) // 2]
    found = list(chain.from_iterable(s.units for s in _heaviest(stretches)))
    return found or [cut]  # only together they are inaccurate: a cut between them


def _halved(stretch: Stretch, measure: Callable[[Sequence[Unit]], float | None]) -> list[Stretch]:
    middle = len(stretch.units) // 2
    halves = stretch.units[:middle], stretch.units[middle:]
    first, second = map(measure, halves)
    if first is None and second is None:
        return [Stretch(stretch.units, stretch.excess, True)]
    first = _rest(stretch.excess, second) if first is None else first
    second = _rest(stretch.excess, first) if second is None else second
    return [Stretch(units, excess, len(units) == 1) for units, excess in zip(halves, (first, second), strict=True)]


def _rest(whole: float, part: float | None) -> float:
    """The noise of what was not measured."""
    assert part is not None
    return max(whole - part, 0.0) if math.isfinite(whole) else whole


def _heaviest(stretches: Sequence[Stretch]) -> list[Stretch]:
    """The stretches that have to go so that the noise of the rest fits, those with the most noise by unit first."""
    moved = sorted(stretches, key=lambda s: s.density)
    kept = 0.0
    stay: list[Stretch] = []
    for stretch in moved:
        if kept + stretch.excess <= _MARGIN:
            kept += stretch.excess
            stay.append(stretch)
    return [s for s in stretches if s not in stay]
