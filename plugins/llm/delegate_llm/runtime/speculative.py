"""Speculative decoding: a small model guesses some tokens, and one call of the large model checks all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from delegate.errors import InputError
from delegate_llm.runtime.adapter import Adapter
from delegate_llm.runtime.model import Conversation, Model
from delegate_llm.runtime.sampling import Array, most_likely


class Speculation:
    """A conversation of two models with one vocabulary; its tokens equal the large model's tokens without guesses.

    Args:
        large: a model that was exported with guesses.
        small: the model that guesses.
        adapter: changes the large model for this conversation.

    Attributes:
        calls: how often the large model is called after the prompt.

    Raises:
        InputError: the models do not fit together.
    """

    def __init__(self, large: Model, small: Model, adapter: Adapter | None = None) -> None:
        if not large.about["guesses"]:
            raise InputError("the program processes one token at a time", remedy="export it with --guesses")
        if large.about["vocabulary"] != small.about["vocabulary"]:
            sizes = f"{large.about['vocabulary']} and {small.about['vocabulary']} tokens"
            remedy = "use two models of one family"
            raise InputError("the models have different vocabularies", where=sizes, remedy=remedy)
        self._guesses, self._ends = int(large.about["guesses"]), set(large.about["ends"])
        self._large, self._small = large.conversation(adapter=adapter), small.conversation()
        self.calls = 0

    def generate(self, prompt: Sequence[int], count: int) -> Iterator[int]:
        """Yield the most likely tokens, until one ends the answer or a context is full.

        Args:
            prompt: the tokens to compute first.
            count: the maximum number of tokens to generate.

        Raises:
            ExecutionError: logits are NaN or infinite.
        """
        token = int(most_likely(self._large.feed(prompt)))
        unseen = list(prompt)  # tokens that the small model has not computed yet
        yielded = 0
        while yielded < count and token not in self._ends:
            yield token
            yielded += 1
            unseen.append(token)
            guesses = min(self._large.remaining - 1, self._small.remaining - len(unseen) + 1, self._guesses)
            if yielded == count or guesses < 0:
                return
            accepted, token, unseen = self._round(token, unseen, guesses)
            for guess in accepted[: count - yielded]:
                if guess in self._ends:
                    return
                yield guess
                yielded += 1

    def _round(self, token: int, unseen: list[int], count: int) -> tuple[list[int], int, list[int]]:
        """Return the correct guesses, the token after them, and which of them the small model has not computed."""
        self.calls += 1
        if count == 0:
            return [], int(most_likely(self._large.feed([token]))), unseen
        guesses = self._guess(unseen, count)
        before = len(self._large.tokens)
        best = most_likely(_verify(self._large, [token, *guesses])).tolist()
        correct = next((i for i, (guess, sure) in enumerate(zip(guesses, best, strict=False)) if guess != sure), count)
        del self._large.tokens[before + 1 + correct :]  # the next call overwrites their keys and values
        unseen = guesses[-1:] if correct == count else []
        del self._small.tokens[before + 1 + correct - len(unseen) :]
        return guesses[:correct], best[correct], unseen

    def _guess(self, unseen: list[int], count: int) -> list[int]:
        guesses: list[int] = []
        while len(guesses) < count:
            guesses.append(int(most_likely(self._small.feed(guesses[-1:] or unseen), "the small model")))
        return guesses


def _verify(conversation: Conversation, tokens: list[int]) -> Array:
    """Return the logits after each of these tokens, (length, vocabulary)."""
    first = len(conversation.tokens)
    positions, rows = np.arange(first, first + len(tokens)), np.full(len(tokens), conversation.row)
    hidden = conversation.context.method("verify")(np.array(tokens), positions, rows)
    conversation.tokens += tokens
    logits: Array = conversation.context.method("heads")(hidden)
    return logits
