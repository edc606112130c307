"""Which token comes next: the likeliest, or one drawn from the likely ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from delegate.errors import InputError

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Sampler:
    """Picks tokens by their logits; the same seed picks the same.

    Args:
        temperature: logits are divided by it; 0: the likeliest token.
        top_k: how many of the likeliest tokens are drawn from; 0: all.
        top_p: drawn from are the fewest of the likeliest whose probabilities add up to that.
        seed: None: other tokens every time.

    Raises:
        InputError: a number is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    _random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, fits, range_ in (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("seed", self.seed is None or self.seed >= 0, "0 or more"),
        ):
            if not fits:
                raise InputError(f"{name} is {getattr(self, name)}", remedy=f"it must be {range_}")
        self._random = np.random.default_rng(self.seed)

    def pick(self, logits: Array) -> int:
        """A token, by its logits (vocabulary)."""
        if self.temperature == 0:
            return int(logits.argmax())
        tokens = np.arange(len(logits))
        if 0 < self.top_k < len(logits):
            tokens = np.argpartition(logits, -self.top_k)[-self.top_k :]
        with np.errstate(over="ignore"):  # what is minus infinity then has no chance
            scaled = (logits[tokens].astype(np.float64) - logits.max()) / self.temperature
        chances = np.exp(scaled)
        chances /= chances.sum()
        if self.top_p < 1:
            order = np.argsort(-chances, kind="stable")
            kept = order[: int(np.searchsorted(np.cumsum(chances[order]), self.top_p)) + 1]
            tokens, chances = tokens[kept], chances[kept] / chances[kept].sum()
        return int(self._random.choice(tokens, p=chances))
