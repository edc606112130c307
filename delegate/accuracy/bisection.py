"""Find the nodes of a partition that cause an error.

A bisection runs parts of a partition on its backend, and the rest in torch. The noise of the parts adds up. So the
search can estimate the error of the partition without its noisiest parts.
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
from delegate.report_rows import Accuracy
from delegate.runtime.backend import Delegate

_MARGIN = 0.8  # share of the allowed noise that the remaining units may have, since causes are not quite independent


@dataclass(slots=True)
class RegionTrial:
    """A runner of parts of a region on its backend, and of the nodes after them in torch, on recorded inputs.

    Args:
        region: the region of the partition.
        inputs: the recorded inputs of the region.
        compile: compiles a region for the backend.
        open: makes a delegate of a compiled region.
        known: the results of the region's nodes in torch, by name.
    """

    region: Region
    inputs: Sequence[torch.Tensor]
    compile: Callable[[Region], PreprocessResult]
    open: Callable[[PreprocessResult], Delegate]
    _eager: EagerRegion = field(init=False)
    known: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self._eager = EagerRegion(self.region)
        self.known = self._eager.values(self.inputs)

    def accuracy(self, units: Sequence[Unit]) -> Accuracy | None:
        """Return the error of the results if these units run on the backend; None if it cannot run them separately."""
        part_results = self.results(units)
        if part_results is None:
            return None
        expected = [self.known[node.name] for node in self.region.outputs]
        return difference(self._eager.continued(self.inputs, self.known, part_results), expected)

    def results(self, units: Sequence[Unit]) -> dict[str, torch.Tensor] | None:
        """Return the results of these units on the backend, by node; None if it cannot run them separately."""
        try:
            return self.run(part_of(self.region, units))
        except Exception:  # a library that accepts the region may reject a part of it with any error
            return None

    def run(self, part: Region) -> dict[str, torch.Tensor]:
        """Run a part on its backend, on the values that torch computes for its inputs.

        Returns:
            the outputs of the part, by node.

        Raises:
            RegionRefused, RegionFailed: the library rejects the part.
            BackendError: the library fails at the call. A library may raise other exceptions.
        """
        expected = [self.known[n.name] for n in part.outputs]
        inputs = tuple(to_array(self.known[n.name], n.name) for n in part.inputs)
        outputs = tuple(np.empty_like(to_array(t, ""), order="C") for t in expected)
        delegate = self.open(self.compile(part))
        try:
            delegate.execute(inputs, outputs)
        finally:
            delegate.close()
        results = (to_tensor(a, dtype_of(t.dtype)) for a, t in zip(outputs, expected, strict=True))
        return dict(zip((n.name for n in part.outputs), results, strict=True))


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Neighbouring units, and their noise over the noise that the bounds allow."""

    units: tuple[Unit, ...]
    excess: float
    is_one: bool = False  # it cannot be split: it has one unit, or the backend runs neither half

    @property
    def density(self) -> float:
        """The noise per unit."""
        return self.excess / len(self.units)


def bisect_inaccurate(region: Region, excess: float, measure: Callable[[Sequence[Unit]], float | None]) -> list[Unit]:
    """Return the fewest units to remove from a region so that it may meet the bounds; at least one.

    Args:
        region: the region that misses the bounds.
        excess: its noise over the noise that the bounds allow.
        measure: returns the excess of some of its units; None if it cannot be measured.
    """
    all_units = tuple(units_of(region))
    ranges = [UnitRange(all_units, excess, len(all_units) == 1)]
    cut = all_units[0]
    for _ in range(MOST // 2):
        divisible = [s for s in _heaviest(ranges) if not s.is_one]
        if not divisible:
            break
        chosen = max(divisible, key=lambda s: len(s.units))
        ranges.remove(chosen)
        ranges += _halved(chosen, measure)
        cut = chosen.units[len(chosen.units) // 2]
    heaviest = list(chain.from_iterable(s.units for s in _heaviest(ranges)))
    return heaviest or [cut]  # both halves are accurate, and the whole is not: cut between them


def _halved(parent: UnitRange, measure: Callable[[Sequence[Unit]], float | None]) -> list[UnitRange]:
    middle = len(parent.units) // 2
    halves = parent.units[:middle], parent.units[middle:]
    first, second = map(measure, halves)
    if first is None and second is None:
        return [UnitRange(parent.units, parent.excess, True)]
    first = _rest(parent.excess, second) if first is None else first
    second = _rest(parent.excess, first) if second is None else second
    return [UnitRange(units, excess, len(units) == 1) for units, excess in zip(halves, (first, second), strict=True)]


def _rest(whole: float, part: float | None) -> float:
    """Return the excess of the half that was not measured."""
    assert part is not None
    return max(whole - part, 0.0) if math.isfinite(whole) else whole


def _heaviest(ranges: Sequence[UnitRange]) -> list[UnitRange]:
    """Return the ranges to remove so that the noise of the rest is allowed; the noisiest per unit go first."""
    by_density = sorted(ranges, key=lambda s: s.density)
    noise = 0.0
    stay: list[UnitRange] = []
    for candidate in by_density:
        if noise + candidate.excess <= _MARGIN:
            noise += candidate.excess
            stay.append(candidate)
    return [s for s in ranges if s not in stay]
