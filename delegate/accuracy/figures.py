"""Accuracy figures: the difference between tensors and a reference's, over any number of calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from delegate.report.rows import Accuracy

_LOGITS = 2  # dimensions: a row per sample, a column per class


@dataclass(slots=True)
class Difference:
    """The difference between one output and its reference, over all calls; see docs/reference/accuracy.md.

    Equal infinities, and NaN in both, are correct elements and are not counted further. If only one of the two is not
    finite, or if they are different infinities, the difference is infinite.
    """

    count: int = 0  # elements
    compared: int = 0  # elements that are finite in both
    broken: bool = False  # one is not finite and the other is, or they are different infinities
    total: float = 0.0  # the sum of the reference, if it holds integers
    signal: float = 0.0  # sums of squares
    noise: float = 0.0
    peak: float = 0.0  # the greatest absolute value in the reference
    greatest: float = 0.0  # the greatest absolute difference
    has_nan: bool = False
    has_expected_nan: bool = False  # the reference has
    rows: int = 0
    agreed: int = 0

    def add(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Add a call. A result of another shape is infinitely far off."""
        if actual.shape != expected.shape:
            self.count += expected.numel()
            self.broken = True
            return
        if _is_logits(expected):
            self._compare_rows(actual, expected)
        actual_numbers, expected_numbers = _numbers(actual), _numbers(expected)
        self.count += expected_numbers.numel()
        finite = expected_numbers.isfinite() & actual_numbers.isfinite()
        if not bool(finite.all()):
            self.broken = self.broken or not equal_everywhere(actual_numbers[~finite], expected_numbers[~finite])
            self.has_nan |= bool(actual_numbers.isnan().any())
            self.has_expected_nan |= bool(expected_numbers.isnan().any())
            actual_numbers, expected_numbers = actual_numbers[finite], expected_numbers[finite]
        self.compared += expected_numbers.numel()
        if not expected_numbers.numel():
            return
        off = (actual_numbers - expected_numbers).abs()
        if not expected.is_floating_point() and not expected.is_complex():
            self.total += float(expected_numbers.sum())
        self.signal += float(expected_numbers.square().sum())
        self.noise += float(off.square().sum())
        self.peak = max(self.peak, float(expected_numbers.abs().max()))
        self.greatest = max(self.greatest, float(off.max()))

    def _compare_rows(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Count the rows whose greatest element is at a greatest element of the reference."""
        ordered = ~expected.isnan().any(1)
        chosen = expected.gather(1, actual.argmax(1, keepdim=True)).squeeze(1)
        self.rows += int(ordered.sum())
        self.agreed += int((chosen == expected.amax(1))[ordered].sum())

    @property
    def is_nowhere_finite(self) -> bool:
        """Return if all elements are NaN or infinite, and the same as in the reference."""
        return bool(self.count) and not self.compared and not self.broken

    @property
    def sqnr_db(self) -> float:
        """The signal-to-noise ratio in decibels.

        The signal of integers is the deviation from their mean, since a quantized tensor has an arbitrary zero point.
        """
        if self.broken:
            return -math.inf
        if self.is_nowhere_finite:
            return math.nan
        if not self.noise:
            return math.inf
        signal = self.signal - (self.total**2 / self.compared if self.total else 0.0)
        return 10 * math.log10(signal / self.noise) if signal > 0 else -math.inf

    @property
    def max_error(self) -> float:
        """The greatest difference."""
        if self.broken:
            return math.inf
        return math.nan if self.is_nowhere_finite else self.greatest

    @property
    def relative_error(self) -> float:
        """The greatest difference over the greatest absolute value in the reference."""
        error = self.max_error
        if not error or not math.isfinite(error):
            return error
        return error / self.peak if self.peak else math.inf

    @property
    def top1(self) -> float | None:
        """The share of rows whose greatest element is the reference's; None if the output does not look like logits."""
        return self.agreed / self.rows if self.rows else None


@dataclass(slots=True)
class Differences:
    """The differences in the outputs of a partition or a method."""

    outputs: list[Difference] = field(default_factory=list)
    calls: int = 0

    def add(self, actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
        """Add a call."""
        if not self.outputs:
            self.outputs = [Difference() for _ in expected]
        for output, one_actual, one_expected in zip(self.outputs, actual, expected, strict=True):
            output.add(one_actual, one_expected)
        self.calls += 1

    @property
    def empty(self) -> list[int]:
        """The numbers of the outputs that had no elements in any call."""
        return [number for number, output in enumerate(self.outputs) if not output.count and not output.broken]

    @property
    def nowhere_finite(self) -> list[int]:
        """The numbers of the outputs that have no finite element, as in the reference."""
        return [number for number, output in enumerate(self.outputs) if output.is_nowhere_finite]

    @property
    def has_nan(self) -> bool:
        """Return if an output has NaN."""
        return any(output.has_nan for output in self.outputs)

    @property
    def has_expected_nan(self) -> bool:
        """Return if the reference of an output has NaN."""
        return any(output.has_expected_nan for output in self.outputs)

    def accuracy(self) -> Accuracy | None:
        """Return the worst of each figure over the outputs; None if nothing was compared.

        An output without finite elements, e.g. a mask, is skipped. Without another output, the figures are NaN.
        """
        if not self.outputs:
            return None
        outputs = [o for o in self.outputs if o.count and not o.is_nowhere_finite] or self.outputs
        top1 = [o.top1 for o in outputs if o.top1 is not None]
        return Accuracy(
            sqnr_db=-_worst(-o.sqnr_db for o in outputs),
            max_error=_worst(o.max_error for o in outputs),
            relative_error=_worst(o.relative_error for o in outputs),
            top1=min(top1) if top1 else None,
            calls=self.calls,
        )


def difference(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> Accuracy | None:
    """Return the figures of one call."""
    differences = Differences()
    differences.add(actual, expected)
    return differences.accuracy()


def _is_logits(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dim() == _LOGITS and tensor.shape[1] > 1


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers of a tensor as float64 in one dimension, complex ones as their real and imaginary parts."""
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return parts.detach().to(torch.float64).flatten()


def equal_everywhere(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return if each element equals the other tensor's, or both are NaN; the shapes are equal."""
    return bool(((actual == expected) | (actual.isnan() & expected.isnan())).all())


def _worst(figures: Iterable[float]) -> float:
    """Return the greatest figure; NaN is worse than all."""
    values = list(figures)
    return math.nan if any(map(math.isnan, values)) else max(values)
