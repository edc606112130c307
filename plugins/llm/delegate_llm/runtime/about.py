"""The description of a language model in its program, and the check that the program is as described."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegate.common.field_checks import fault
from delegate.errors import InputError, ProgramError
from delegate.program.dtypes import DType
from delegate.program.model import Ref
from delegate.runtime.context import Context
from delegate_llm.runtime.json_types import FLAG, Fields, Items, Nullable, integer_type, text_type

_MOST_BYTES = 2**24  # of the description
_COUNT = integer_type(1, 2**31 - 1)
_NUMBER = integer_type(0, 2**31 - 1)
_NAME, _TEXT = text_type(1024), text_type(2**20)
_CHAT = Fields(
    {"start": _TEXT, "before_system": Nullable(_TEXT), **dict.fromkeys(("after_system", "after_user"), _TEXT),
     "after_answer": _TEXT, "strips": FLAG}
)  # fmt: skip
_ABOUT = Fields(
    {
        **dict.fromkeys(("context", "chunk", "conversations", "vocabulary"), _COUNT),
        "guesses": _NUMBER,
        "ends": Items(integer_type(-(2**63), 2**63 - 1), 2**20),
    },
    {**dict.fromkeys(("family", "weights", "cache", "base"), _NAME), "lora_rank": _NUMBER, "chat": Nullable(_CHAT)},
)


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

    def render_all(self, texts: Sequence[str], system: str | None) -> str:
        """Return the text of messages of the user and answers in turns, up to the next answer.

        Raises:
            InputError: the model supports no system message.
        """
        return "".join(text if i % 2 else self.render(text, system, i == 0) for i, text in enumerate(texts))

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


def count_stored_bytes(program: Context, name: str, most: int) -> bytes:
    """Return the bytes that a method without inputs returns.

    Raises:
        ProgramError: the method has inputs, or returns something else, or more than `most` bytes.
    """
    method = program.method(name)
    outputs, values = method.definition.outputs, method.definition.values
    value = values[outputs[0].index] if len(outputs) == 1 and isinstance(outputs[0], Ref) else None
    if method.inputs or value is None or value.dtype is not DType.uint8 or len(value.shape) != 1:
        raise ProgramError(f"method {name} should have no inputs and return bytes")
    if not isinstance(value.shape[0], int) or value.shape[0] > most:
        raise ProgramError(f"method {name} should return up to {most:,} bytes")
    data: bytes = method.run([])[0].tobytes()
    return data


def read_about(program: Context) -> Mapping[str, Any]:
    """Return the description of a language model, as its export stored it.

    Raises:
        ProgramError: it is not a description, a value is out of range, or the program is not as described.
    """
    try:
        about = _ABOUT.check(json.loads(count_stored_bytes(program, "about", _MOST_BYTES)), "")
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"method about does not describe a language model, {fault(error)}") from error
    described = {(about["conversations"], about["context"])}
    caches = {name: array.shape for name, array in program.states.items() if name.startswith(("keys.", "values."))}
    if {(shape[0], shape[2]) if len(shape) > 2 else () for shape in caches.values()} != described:
        what = f"{about['conversations']} conversations of {about['context']} tokens"
        raise ProgramError(f"method about describes {what}, but the states are not caches for them")
    head = program.method("head").definition
    results = [head.values[output.index].shape for output in head.outputs if isinstance(output, Ref)]
    if [shape[-1:] for shape in results] != [(about["vocabulary"],)]:
        what = f"{about['vocabulary']} tokens, but method head does not return as many logits"
        raise ProgramError(f"method about describes {what}")
    return dict(about)
