"""The description of a language model in its program, and the check that the program is as described."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from delegate.errors import ProgramError
from delegate.field_checks import fault
from delegate.json_types import FLAG, Fields, Items, Nullable, integer_type, text_type
from delegate.program.dtypes import DType
from delegate.program.model import Ref
from delegate.runtime.context import Context

_MOST_BYTES = 2**24  # of the description
_COUNT = integer_type(1, 2**31 - 1)
_NUMBER = integer_type(0, 2**31 - 1)
_NAME, _TEXT = text_type(1024), text_type(2**20)
CHAT = Fields(
    {"start": _TEXT, "before_system": Nullable(_TEXT), **dict.fromkeys(("after_system", "after_user"), _TEXT),
     "after_answer": _TEXT, "strips": FLAG}
)  # fmt: skip
_ABOUT = Fields(
    {
        **dict.fromkeys(("context", "chunk", "conversations", "vocabulary"), _COUNT),
        "guesses": _NUMBER,
        "ends": Items(integer_type(-(2**63), 2**63 - 1), 2**20),
    },
    {**dict.fromkeys(("family", "weights", "cache", "base"), _NAME), "lora_rank": _NUMBER, "chat": Nullable(CHAT)},
)


def stored_bytes(program: Context, name: str, most: int) -> bytes:
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
        about = _ABOUT.check(json.loads(stored_bytes(program, "about", _MOST_BYTES)), "")
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
