"""Trials of a partition's parts: some of its units run on its backend, and the rest in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from delegate.accuracy.figures import difference
from delegate.accuracy.reference import EagerRegion
from delegate.backend.aot import PreprocessResult, Region
from delegate.backend.guilty import Unit, part_of
from delegate.compiled import to_array, to_tensor
from delegate.edge.node import dtype_of
from delegate.edge.program import META_VALUE
from delegate.report.rows import Accuracy
from delegate.runtime.backend import Delegate


@dataclass(slots=True)
class RegionTrial:
    """A runner for parts of a region on its backend, and for the nodes after them in torch, on recorded inputs.

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
        try:
            part_results = self.run(part_of(self.region, units))
        except Exception:  # a library that accepts the region may reject a part of it with any error
            return None
        expected = [self.known[node.name] for node in self.region.outputs]
        return difference(self._eager.continued(self.inputs, self.known, part_results), expected)

    def read_values(self) -> dict[str, torch.Tensor]:
        """Return all values of the region on the backend, by node; empty if the library rejects so many results."""
        taps = [n for n in self.region.calls if isinstance(n.meta.get(META_VALUE), torch.Tensor)]
        try:
            values = self.run(self.region.with_outputs(taps))
        except Exception:  # a library that accepts the region may reject further results with any error
            return {}
        return dict(zip((n.name for n in self.region.inputs), self.inputs, strict=True)) | values

    def run(self, part: Region) -> dict[str, torch.Tensor]:
        """Run a part on its backend, on the values that torch computes for its inputs.

        Returns:
            the outputs of the part, by node.

        Raises:
            RegionRefused, RegionFailed: the library rejects the part.
            BackendError: the library fails at the call, or raises another exception.
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
