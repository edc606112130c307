"""Speculative decoding: a small model guesses some tokens, and the large one looks at all of them in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from delegate.errors import InputError
from delegate.llm.runtime.model import Conversation, Model


class Speculation:
    """A conversation of two models of one vocabulary; its tokens are those that the large one alone would take.

    Args:
        large: exported with guesses.
        small: guesses.

    Attributes:
        calls: of the large model, behind the prompt.

    Raises:
        InputError: the models do not go together.
    """

    def __init__(self, large: Model, small: Model) -> None:
        if not large.about["guesses"]:
            raise InputError("the program processes one token at a time", remedy="export it with --guesses")
        if large.about["vocabulary"] != small.about["vocabulary"]:
            sizes = f"{large.about['vocabulary']} and {small.about['vocabulary']} tokens"
            raise InputError(
                "the models have different vocabularies", where=sizes, remedy="use two models of one family"
            )
        self._guesses, self._ends = int(large.about["guesses"]), set(large.about["ends"])
        self._large, self._small = large.conversation(), small.conversation()
        self.calls = 0

    def generate(self, prompt: Sequence[int], count: int) -> Iterator[int]:
        """The likeliest tokens, one after the other, until one ends the answer or a context is full."""
        token = int(self._large.feed(prompt).argmax())
        behind = list(prompt)  # what the small model has not seen yet
        given = 0
        while given < count and token not in self._ends:
            yield token
            given += 1
            behind.append(token)
            room = min(self._large.room - 1, self._small.room - len(behind) + 1, self._guesses)
            if given == count or room < 0:
                return
            accepted, token, behind = self._round(token, behind, room)
            for guess in accepted[: count - given]:
                if guess in self._ends:
                    return
                yield guess
                given += 1

    def _round(self, token: int, behind: list[int], count: int) -> tuple[list[int], int, list[int]]:
        """The guesses that were right, the token behind them, and what the small model has not seen of them."""
        self.calls += 1
        if count == 0:
            return [], int(self._large.feed([token]).argmax()), behind
        guesses = self._guess(behind, count)
        before = len(self._large.tokens)
        found = _verify(self._large, [token, *guesses]).argmax(-1).tolist()
        right = next((i for i, (guess, sure) in enumerate(zip(guesses, found, strict=False)) if guess != sure), count)
        del self._large.tokens[before + 1 + right :]  # what lies behind them in the cache is written over
        unseen = guesses[-1:] if right == count else []
        del self._small.tokens[before + 1 + right - len(unseen) :]
        return guesses[:right], found[right], unseen

    def _guess(self, behind: list[int], count: int) -> list[int]:
        made = [int(self._small.feed(behind).argmax())]
        while len(made) < count:
            made.append(int(self._small.feed(made[-1:]).argmax()))
        return made


def _verify(talk: Conversation, tokens: list[int]) -> np.ndarray:
    """The logits behind each of these tokens, (length, vocabulary)."""
    first = len(talk.tokens)
    positions = np.arange(first, first + len(tokens))[None]
    hidden = talk.context.method("verify")(np.array([tokens]), positions, np.array([talk.row]))
    talk.tokens += tokens
    logits: np.ndarray = talk.context.method("heads")(hidden[0])
    return logits
