"""The accepted values of a backend's options, as data in program files, for machines without pydantic.

They are derived from the JSON schema that pydantic generates of the backend's model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from delegate.errors import ProgramError

_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,), "number": (int, float), "boolean": (bool,), "string": (str,), "null": (type(None),),
}  # fmt: skip
_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "null": "null",
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """One kind of values.

    Args:
        type: as JSON schema names it: integer, number, boolean, string or null.
        enum: the only values, if there are any.
        minimum, maximum: of a number, both included.
        exclusiveMinimum, exclusiveMaximum: of a number, both excluded.
        minLength, maxLength: of a text.
    """

    type: str
    enum: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    exclusiveMinimum: float | None = None  # noqa: N815 - JSON schema's names
    exclusiveMaximum: float | None = None  # noqa: N815
    minLength: int | None = None  # noqa: N815
    maxLength: int | None = None  # noqa: N815

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            raise ValueError(f"{self.type!r} is not a type of option")
        for field in fields(self)[2:]:
            bound = getattr(self, field.name)
            if bound is not None and type(bound) not in (int, float):
                raise ValueError(f"{field.name} should be a number, not {bound!r}")

    def accepts(self, value: object) -> bool:
        """Return if a value is of this kind."""
        if type(value) not in _TYPES[self.type] or (self.enum and value not in self.enum):
            return False
        size: Any = len(value) if isinstance(value, str) else value
        return all(
            (
                self.minimum is None or size >= self.minimum,
                self.maximum is None or size <= self.maximum,
                self.exclusiveMinimum is None or size > self.exclusiveMinimum,
                self.exclusiveMaximum is None or size < self.exclusiveMaximum,
                self.minLength is None or size >= self.minLength,
                self.maxLength is None or size <= self.maxLength,
            )
        )

    def __str__(self) -> str:
        if self.enum:
            return "one of " + ", ".join(map(repr, self.enum))
        bounds = {"of {} or more": self.minimum, "above {}": self.exclusiveMinimum, "up to {}": self.maximum,
                  "below {}": self.exclusiveMaximum, "of {} characters or more": self.minLength,
                  "of up to {} characters": self.maxLength}  # fmt: skip
        stated = " and ".join(words.format(bound) for words, bound in bounds.items() if bound is not None)
        return f"{_WORDS[self.type]} {stated}".strip()


@dataclass(frozen=True, slots=True)
class OptionRule:
    """The values of an option: those that one of the alternatives accepts."""

    alternatives: tuple[Alternative, ...]

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any]) -> OptionRule | None:
        """Return the rule for a property of a JSON schema; None if it has structures, patterns or unknown keywords."""
        known = {field.name for field in fields(Alternative)}
        alternatives = []
        for part in schema.get("anyOf", [schema]):
            stated = {key: value for key, value in part.items() if key not in ("title", "description", "default")}
            if "const" in stated:
                stated["enum"] = [stated.pop("const")]
            if not stated.keys() <= known or stated.get("type") not in _TYPES:
                return None
            alternatives.append(Alternative(**{**stated, "enum": tuple(stated.get("enum", ()))}))
        return cls(tuple(alternatives))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> OptionRule:
        """Return the rule of JSON data; raises ValueError, TypeError or KeyError if it is none."""
        return cls(tuple(Alternative(**{**part, "enum": tuple(part["enum"])}) for part in data["alternatives"]))

    def accepts(self, value: object) -> bool:
        """Return if the option accepts a value."""
        return any(alternative.accepts(value) for alternative in self.alternatives)

    def __str__(self) -> str:
        return ", or ".join(map(str, self.alternatives))


Rules = Mapping[str, Mapping[str, OptionRule]]  # backend -> option -> its accepted values


def rules_to_json(rules: Rules) -> str:
    """Return rules as JSON."""
    data = {backend: {name: asdict(rule) for name, rule in options.items()} for backend, options in rules.items()}
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def rules_of_json(text: str) -> Rules:
    """Return the rules of a program file, none of an empty text; raise ProgramError if the text holds no rules."""
    try:
        data = json.loads(text or "{}")
        return {
            str(backend): {str(name): OptionRule.from_data(rule) for name, rule in options.items()}
            for backend, options in data.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"the rules of load options cannot be read, {type(error).__name__}: {error}"
        raise ProgramError(what, remedy="lower the model again") from error
