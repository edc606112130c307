"""The choice of the next token: the most likely one, or a sample of the likely ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from delegate.errors import ExecutionError, InputError

Array = np.ndarray[Any, np.dtype[Any]]


def most_likely(logits: Array, model: str = "the model") -> Array:
    """Return the most likely token of each row of logits (..., vocabulary), as int64 (...).

    Raises:
        ExecutionError: logits are NaN or infinite; minus infinity is a token that cannot follow. `model` is whose.
    """
    best: Array = logits.argmax(-1, keepdims=True)  # the first NaN, if there is one
    highest = np.take_along_axis(logits, best, -1)
    if not np.isfinite(highest).all():
        counts = {"NaN": int(np.isnan(logits).sum()), "infinite": int(np.isposinf(logits).sum())}
        wrong = " and ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "none finite"
        what = f"no token can be chosen by the logits of {model}: {wrong} of {logits.size}"
        remedy = "export the model with other weights, e.g. --weights float32, or for another backend"
        raise ExecutionError(what, remedy=remedy)
    tokens: Array = best[..., 0]
    return tokens


@dataclass
class Sampler:
    """Chooses tokens by their logits; equal seeds choose equal tokens.

    Args:
        temperature: divides the logits; 0 chooses the most likely token.
        top_k: sample from this many of the most likely tokens; 0: from all.
        top_p: sample from the fewest most likely tokens whose probabilities add up to this number.
        seed: The seed of the random numbers; None: different tokens each time.

    Raises:
        InputError: a number is out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    _random: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name, is_valid, range_ in (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("seed", self.seed is None or self.seed >= 0, "0 or more"),
        ):
            if not is_valid:
                raise InputError(f"{name} is {getattr(self, name)}", remedy=f"it must be {range_}")
        self._random = np.random.default_rng(self.seed)

    def pick(self, logits: Array) -> int:
        """Return a token, chosen by its logit (vocabulary).

        Raises:
            ExecutionError: as `most_likely`.
        """
        best = most_likely(logits)
        if self.temperature == 0:
            return int(best)
        tokens = np.arange(len(logits))
        if 0 < self.top_k < len(logits):
            tokens = np.argpartition(logits, -self.top_k)[-self.top_k :]
        with np.errstate(over="ignore"):  # a logit that becomes minus infinity has probability 0
            scaled = (logits[tokens].astype(np.float64) - logits[best]) / self.temperature
        probabilities = np.exp(scaled)
        probabilities /= probabilities.sum()
        if self.top_p < 1:
            order = np.argsort(-probabilities, kind="stable")
            most = order[: int(np.searchsorted(np.cumsum(probabilities[order]), self.top_p)) + 1]
            tokens, probabilities = tokens[most], probabilities[most] / probabilities[most].sum()
        return int(self._random.choice(tokens, p=probabilities))
