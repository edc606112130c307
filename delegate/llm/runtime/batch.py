"""Several conversations that are decoded in one call: rows of one context's cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from delegate.errors import InputError
from delegate.llm.runtime.model import Conversation, Model
from delegate.llm.runtime.sampling import Array, Sampler


class Batch:
    """As many conversations as the program was exported for, in one context.

    Raises:
        InputError: it was exported for one.
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
        """Pairs of the number of a prompt and its next token; a conversation ends as `Conversation.generate` has it."""
        if len(prompts) > len(self.conversations):
            what = f"{len(prompts)} prompts for {len(self.conversations)} conversations"
            raise InputError(what, remedy="export it with a larger --conversations")
        pairs = zip(self.conversations, prompts, strict=False)
        logits = {i: conversation.feed(prompt) for i, (conversation, prompt) in enumerate(pairs)}
        for number in range(count):
            picked = {i: samplers[i].pick(found) for i, found in logits.items()}
            going = {i: token for i, token in picked.items() if token not in self._ends}
            yield from going.items()
            going = {i: token for i, token in going.items() if self.conversations[i].room}
            if not going or number == count - 1:
                return
            logits = self.next(going)

    def next(self, tokens: Mapping[int, int]) -> dict[int, Array]:
        """The logits behind one more token of each of these conversations."""
        going = [self.conversations[i] for i in tokens]
        if len(going) == 1:
            return {i: going[0].feed([token]) for i, token in tokens.items()}
        given = np.array([*tokens.values()])[:, None]
        positions = np.array([len(c.tokens) for c in going])[:, None]
        hidden = self._context.method("batch")(given, positions, np.array([c.row for c in going]))
        logits = self._context.method("heads")(hidden)
        for conversation, token in zip(going, tokens.values(), strict=True):
            conversation.tokens.append(token)
        return dict(zip(tokens, logits, strict=True))
