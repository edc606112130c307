"""Several conversations that one call decodes: rows of one context's cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from delegate.errors import InputError
from delegate.llm.runtime.model import Conversation, Model
from delegate.llm.runtime.sampling import Array, Sampler


class Batch:
    """All conversations of a program that was exported for several, in one context.

    Attributes:
        conversations: one for each row of the cache.

    Raises:
        InputError: the program was exported for one conversation.
    """

    def __init__(self, model: Model) -> None:
        size = int(model.about["conversations"])
        if size < 2:
            remedy = "export it with --conversations"
            raise InputError("the program decodes one conversation at a time", remedy=remedy)
        self._context = model.program.context()
        self._ends = set(model.about["ends"])
        self.conversations = [Conversation(model, self._context, row) for row in range(size)]

    def generate(
        self, prompts: Sequence[Sequence[int]], count: int, samplers: Sequence[Sampler]
    ) -> Iterator[tuple[int, int]]:
        """Yield pairs of a prompt's number and its next token.

        Each conversation ends as `Conversation.generate` ends it.

        Args:
            prompts: the tokens of each conversation.
            count: the maximum number of tokens for each.
            samplers: chooses the tokens of each.

        Raises:
            InputError: there are more prompts than conversations, or a prompt does not fit.
        """
        if len(prompts) > len(self.conversations):
            what = f"{len(prompts)} prompts for {len(self.conversations)} conversations"
            raise InputError(what, remedy="export it with a larger --conversations")
        pairs = zip(self.conversations, prompts, strict=False)
        logits = {i: conversation.feed(prompt) for i, (conversation, prompt) in enumerate(pairs)}
        for number in range(count):
            picked = {i: samplers[i].pick(row) for i, row in logits.items()}
            active = {i: token for i, token in picked.items() if token not in self._ends}
            yield from active.items()
            active = {i: token for i, token in active.items() if self.conversations[i].remaining}
            if not active or number == count - 1:
                return
            logits = self.next(active)

    def next(self, tokens: Mapping[int, int]) -> dict[int, Array]:
        """Return the logits after one more token of each of these conversations."""
        active = [self.conversations[i] for i in tokens]
        if len(active) == 1:
            return {i: active[0].feed([token]) for i, token in tokens.items()}
        column = np.array([*tokens.values()])[:, None]
        positions = np.array([len(c.tokens) for c in active])[:, None]
        hidden = self._context.method("batch")(column, positions, np.array([c.row for c in active]))
        logits = self._context.method("heads")(hidden)
        for conversation, token in zip(active, tokens.values(), strict=True):
            conversation.tokens.append(token)
        return dict(zip(tokens, logits, strict=True))
