"""Several conversations whose tokens one call computes: rows of one context's cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from delegate.errors import ExecutionError, InputError
from delegate_llm.runtime.adapter import Adapter
from delegate_llm.runtime.model import Conversation, Model
from delegate_llm.runtime.sampling import Array, Sampler


class Batch:
    """All conversations of a program that was exported for several, in one context.

    Answers have the tokens of single conversations if prefill has the weights and the backend of decode.

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
        self._context, self._chunk = model.program.context(), int(model.about["chunk"])
        self._ends = set(model.about["ends"])
        self.conversations = [Conversation(model, self._context, row) for row in range(size)]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        samplers: Sequence[Sampler],
        adapters: Sequence[Adapter | None] | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Yield pairs of a prompt's number and its next token.

        Each prompt starts a conversation, which ends as `Conversation.generate` ends it. The next prompt then takes the
        row of the conversation that has ended. One call computes the next tokens of answers and parts of prompts.

        Args:
            prompts: the tokens of each, at least one; there may be more prompts than conversations.
            count: the maximum number of tokens for each.
            samplers: chooses the tokens of each.
            adapters: The adapter of each conversation; None: none has one.

        Raises:
            InputError: a prompt does not fit.
            ExecutionError: logits are NaN or infinite; it names the number of the prompt.
        """
        for conversation in self.conversations:
            conversation.tokens.clear()
        for prompt in prompts:
            self.conversations[0].check(prompt)
        waiting, free = deque(range(len(prompts) if count > 0 else 0)), deque(range(len(self.conversations)))
        numbers: dict[int, int] = {}  # of the prompts of active conversations
        counts = [0] * len(prompts)
        pending: dict[int, list[int]] = {}
        while waiting or pending:
            while waiting and free:
                row, number = free.popleft(), waiting.popleft()
                self.conversations[row].restart(adapters[number] if adapters else None)
                numbers[row], pending[row] = number, list(prompts[number])
            for row, logits in self._compute(pending).items():
                number = numbers[row]
                try:
                    token = samplers[number].pick(logits)
                except ExecutionError as error:
                    raise error.at(f"prompt {number}") from error
                if token not in self._ends:
                    yield number, token
                    counts[number] += 1
                    if counts[number] < count and self.conversations[row].remaining:
                        pending[row] = [token]
                        continue
                free.append(row)

    def feed(self, tokens: Mapping[int, Sequence[int]]) -> dict[int, Array]:
        """Compute tokens of some conversations, and return the logits after the last one of each (vocabulary).

        Raises:
            InputError: as `Conversation.feed`.
        """
        for row, part in tokens.items():
            self.conversations[row].check(part)
        pending = {row: list(part) for row, part in tokens.items()}
        logits: dict[int, Array] = {}
        while pending:
            logits |= self._compute(pending)
        return {row: logits[row] for row in tokens}

    def _compute(self, pending: dict[int, list[int]]) -> dict[int, Array]:
        """Compute pending tokens in one call, and return the logits of conversations that have no more of them.

        Conversations with few tokens are first, so a long prompt does not delay answers.
        """
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        lasts: dict[int, int] = {}
        for row in sorted(pending, key=lambda row: len(pending[row])):
            conversation, part = self.conversations[row], pending[row][: self._chunk - len(tokens)]
            first = len(conversation.tokens)
            tokens += part
            positions += range(first, first + len(part))
            rows += [row] * len(part)
            conversation.tokens += part
            del pending[row][: len(part)]
            if not pending[row]:
                lasts[row] = len(tokens) - 1
                del pending[row]
        method = self._context.method("prefill" if len(tokens) > 1 else "decode")
        hidden = method(np.array(tokens), np.array(positions), np.array(rows))
        if not lasts:
            return {}
        last = hidden[[*lasts.values()]]
        logits = self._context.method("heads" if len(lasts) > 1 else "head")(last)
        return dict(zip(lasts, logits, strict=True))
