"""Chats: conversations in messages, with the text that a model's chat template puts around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from delegate.errors import InputError
from delegate_llm.runtime.adapter import Adapter
from delegate_llm.runtime.model import Model
from delegate_llm.runtime.sampling import Sampler
from delegate_llm.runtime.tokenizer import Text


class Chat:
    """A conversation in messages.

    Args:
        model: with a chat format.
        sampler: chooses the tokens of the answers.
        system: the system message, which says how the model answers.
        stops: words that end an answer, and are not part of it.
        adapter: changes the model for this chat.

    Raises:
        InputError: the program has no chat format or no tokenizer, or supports no system message.
    """

    def __init__(
        self,
        model: Model,
        sampler: Sampler,
        system: str | None = None,
        stops: Iterable[str] = (),
        adapter: Adapter | None = None,
    ) -> None:
        if model.chat is None:
            remedy = "export the model from a folder with a chat template, or use `delegate llm run`"
            raise InputError("the program has no chat format", remedy=remedy)
        self._format = model.chat
        self._format.render("", system, is_first=True)  # raises before the user writes a message
        self._sampler, self._system, self._stops = sampler, system, tuple(stops)
        self._model, self._conversation = model, model.conversation(adapter=adapter)
        self._tokens: list[int] = []  # of the whole chat; the conversation has not computed the last one of an answer

    def send(self, message: str, count: int) -> Iterator[str]:
        """Yield the parts of the answer to a message of the user, as they come.

        Args:
            message: the text of the user.
            count: the maximum number of tokens in the answer.

        Raises:
            InputError: the message does not fit into the rest of the context.
        """
        rendered = self._format.render(message, self._system, is_first=not self._tokens)
        added = self._model.tokens(rendered, add_special_tokens=False)
        self._tokens += added
        text = Text(self._model.tokenizer, self._stops)
        try:
            new = self._tokens[len(self._conversation.tokens) :]
            for token in self._conversation.generate(new, count, self._sampler):
                self._tokens.append(token)
                yield text.add(token)
                if text.stopped:
                    break
        except InputError:
            del self._tokens[-len(added) :]
            raise
        yield text.finish()
