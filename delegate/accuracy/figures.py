"""Figures: how far tensors are from those of a reference, over any number of calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from delegate.report import Accuracy

_LOGITS = 2  # dimensions: a row per sample, a column per class


@dataclass(slots=True)
class Difference:
    """What one output differs from its reference by, summed up over calls; see `docs/accuracy.md` for the definitions.

    Elements where both are the same infinity, or both NaN, are as they should be and count for nothing more; where only
    one of them is, or another one, the difference is infinite.
    """

    count: int = 0  # elements
    compared: int = 0  # of them, finite in both
    broken: bool = False  # whether one is not finite where the other is, or another infinity
    total: float = 0.0  # of integers in the reference
    signal: float = 0.0  # sums of squares
    noise: float = 0.0
    peak: float = 0.0  # the greatest size in the reference
    greatest: float = 0.0  # difference
    rows: int = 0
    agreed: int = 0

    def add(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """One more call. Other shapes are wrong results, infinitely far off."""
        if actual.shape != expected.shape:
            self.count += expected.numel()
            self.broken = True
            return
        if _is_logits(expected):
            self._compare_rows(actual, expected)
        got, wanted = _numbers(actual), _numbers(expected)
        self.count += wanted.numel()
        finite = wanted.isfinite() & got.isfinite()
        if not bool(finite.all()):
            self.broken = self.broken or not _same_beyond_numbers(got[~finite], wanted[~finite])
            got, wanted = got[finite], wanted[finite]
        self.compared += wanted.numel()
        if not wanted.numel():
            return
        off = (got - wanted).abs()
        if not expected.is_floating_point() and not expected.is_complex():
            self.total += float(wanted.sum())
        self.signal += float(wanted.square().sum())
        self.noise += float(off.square().sum())
        self.peak = max(self.peak, float(wanted.abs().max()))
        self.greatest = max(self.greatest, float(off.max()))

    def _compare_rows(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Whether the greatest of a row is where the reference has its greatest, or one as great."""
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
        """Of integers the signal is what differs from their mean: a quantized tensor has its zero anywhere."""
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
        """The greatest difference over the greatest size in the reference."""
        error = self.max_error
        if not error or not math.isfinite(error):
            return error
        return error / self.peak if self.peak else math.inf

    @property
    def top1(self) -> float | None:
        """The share of rows whose greatest is the reference's, where the output looks like logits."""
        return self.agreed / self.rows if self.rows else None


@dataclass(slots=True)
class Differences:
    """What the outputs of a partition, or of a method, differ by."""

    outputs: list[Difference] = field(default_factory=list)
    calls: int = 0

    def add(self, actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
        """One more call."""
        if not self.outputs:
            self.outputs = [Difference() for _ in expected]
        for output, got, wanted in zip(self.outputs, actual, expected, strict=True):
            output.add(got, wanted)
        self.calls += 1

    @property
    def empty(self) -> list[int]:
        """The numbers of the outputs that had no elements in any call, so that nothing was compared."""
        return [number for number, output in enumerate(self.outputs) if not output.count and not output.broken]

    @property
    def nowhere_finite(self) -> list[int]:
        """The numbers of the outputs that have no finite element, as in the reference."""
        return [number for number, output in enumerate(self.outputs) if output.is_nowhere_finite]

    def accuracy(self) -> Accuracy | None:
        """The figures of the output that is farthest off, figure by figure; None where nothing was compared.

        An output that is nowhere finite, e.g. a mask, has no figures. They are NaN if there is no other output.
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
    """The figures of one call."""
    found = Differences()
    found.add(actual, expected)
    return found.accuracy()


def _is_logits(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dim() == _LOGITS and tensor.shape[1] > 1


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Its numbers in a row, in the widest type; a complex one is its two parts."""
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return parts.detach().to(torch.float64).flatten()


def _same_beyond_numbers(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether these, one of which is no finite number at each place, are the same infinity or both NaN."""
    return bool(((got == wanted) | (got.isnan() & wanted.isnan())).all())


def _worst(figures: Iterable[float]) -> float:
    """The greatest; one that is undefined is worse than all."""
    found = list(figures)
    return math.nan if any(map(math.isnan, found)) else max(found)
