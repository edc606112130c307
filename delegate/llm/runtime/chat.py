"""Chats: conversations in messages, with the text that a model's chat template puts around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from delegate.errors import InputError, ProgramError
from delegate.llm.runtime.about import CHAT
from delegate.llm.runtime.adapter import Adapter
from delegate.llm.runtime.model import Model
from delegate.llm.runtime.sampling import Sampler
from delegate.llm.runtime.text import Text


@dataclass(frozen=True)
class ChatFormat:
    """The fixed text around the messages of a chat, as the export read it from the model's chat template.

    The file has this text instead of the template, so no code of a file runs.

    Args:
        start: before the first message of the user, without a system message.
        before_system: before a system message, which replaces `start`; None: the model supports no system message.
        after_system: between a system message and the first message of the user.
        after_user: between a message of the user and the answer.
        after_answer: between an answer and the next message of the user.
        strips: the template removes spaces around messages.
    """

    start: str
    before_system: str | None
    after_system: str
    after_user: str
    after_answer: str
    strips: bool

    def render(self, message: str, system: str | None, is_first: bool) -> str:
        """Return the text that a message of the user adds to the chat, up to the answer.

        Raises:
            InputError: the model supports no system message.
        """
        clean = str.strip if self.strips else str
        if not is_first:
            before = self.after_answer
        elif system is None:
            before = self.start
        elif self.before_system is None:
            raise InputError(
                "the model supports no system message", remedy="write it at the start of the first message"
            )
        else:
            before = self.before_system + clean(system) + self.after_system
        return before + clean(message) + self.after_user

    def to_json(self) -> dict[str, Any]:
        """Return the format as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> ChatFormat:
        """Return the format of these JSON values.

        Raises:
            ProgramError: they are not a format.
        """
        try:
            checked = CHAT.check(data, "chat")
            if data != checked:
                raise ValueError("it has more fields")
        except ValueError as error:
            remedy = "export it again"
            raise ProgramError(f"the program has a damaged chat format, {error}", remedy=remedy) from error
        return cls(**checked)


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
        data = model.about.get("chat")
        if data is None:
            remedy = "export the model from a folder with a chat template, or use `delegate llm run`"
            raise InputError("the program has no chat format", remedy=remedy)
        self._format = ChatFormat.from_json(data)
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
