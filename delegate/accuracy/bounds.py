"""Bounds on the error of results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from delegate.config import AccuracyPolicy
from delegate.report import Accuracy


@dataclass(frozen=True, slots=True)
class Bounds:
    """The error that a partition, or a method, may have; None means no bound.

    Args:
        sqnr_db: the least signal-to-quantization-noise ratio, in decibels.
        max_error: the greatest absolute difference.
        relative_error: the greatest absolute difference over the greatest absolute value in the reference.
        top1: the least share of rows whose greatest elements agree.
    """

    sqnr_db: float | None = None
    max_error: float | None = None
    relative_error: float | None = None
    top1: float | None = None

    @classmethod
    def of(cls, policy: AccuracyPolicy | None) -> Bounds:
        """Return the bounds of a configuration; no bounds if it has no `verify` section."""
        if policy is None:
            return cls()
        return cls(policy.sqnr_db, policy.max_error, policy.relative_error, policy.top1)

    def __bool__(self) -> bool:
        return any(b is not None for b in (self.sqnr_db, self.max_error, self.relative_error, self.top1))

    def __str__(self) -> str:
        texts = {
            "{:g} dB or more": self.sqnr_db,
            "a max error of {:g} or less": self.max_error,
            "a relative error of {:g} or less": self.relative_error,
            "top-1 of {:g} or more": self.top1,
        }
        return ", ".join(text.format(bound) for text, bound in texts.items() if bound is not None)

    def excess(self, figures: Accuracy | None) -> float:
        """Return the noise over the noise that the bounds allow, as a ratio of powers; up to 1 the bounds hold.

        The ratios of independent causes of noise add up. Undefined figures miss every bound. Figures that were not
        measured meet every bound.
        """
        ratios = [] if figures is None else list(self._ratios(figures))
        return math.inf if any(map(math.isnan, ratios)) else max(ratios, default=0.0)

    def _ratios(self, figures: Accuracy) -> Iterator[float]:
        if self.sqnr_db is not None:
            yield _power((self.sqnr_db - figures.sqnr_db) / 10)
        if self.max_error is not None:
            yield _squared(_ratio(figures.max_error, self.max_error))
        if self.relative_error is not None:
            yield _squared(_ratio(figures.relative_error, self.relative_error))
        if self.top1 is not None and figures.top1 is not None:
            yield _ratio(1 - figures.top1, 1 - self.top1)


# The least SQNR in dB of a precision if no bound is configured. Backends may compute float32 in 16-bit floats.
DEFAULTS: Mapping[str, float] = {
    "float32": 40.0,
    "16-bit floats": 30.0,
    "16-bit integers": 40.0,
    "int8": 20.0,
    "4 bits": 10.0,
    "fewer than 4 bits": 3.0,
}


def _power(exponent: float) -> float:
    try:
        return float(10.0**exponent)
    except OverflowError:
        return math.inf


def _ratio(error: float, bound: float) -> float:
    if not error:
        return 0.0
    return error / bound if bound else math.inf


def _squared(number: float) -> float:
    return number * number  # infinite where it is too large; ** would raise OverflowError
