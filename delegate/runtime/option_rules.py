"""The accepted values of a backend's options, as data in program files, for machines without pydantic.

A rule is a list of alternatives as JSON schema states them: a `type`, and maybe an `enum` and bounds. Rules are taken
from the schema that pydantic generates of the backend's model.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from delegate.errors import ProgramError

_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "string": ((str,), "text"),
    "null": ((type(None),), "null"),
}
_BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {  # of a number, or of the length of a text
    "minimum": (operator.ge, "of {} or more"),
    "exclusiveMinimum": (operator.gt, "above {}"),
    "maximum": (operator.le, "up to {}"),
    "exclusiveMaximum": (operator.lt, "below {}"),
    "minLength": (operator.ge, "of {} characters or more"),
    "maxLength": (operator.le, "of up to {} characters"),
}
_KNOWN = {"type", "enum", *_BOUNDS}

Rule = Sequence[Mapping[str, Any]]
Rules = Mapping[str, Mapping[str, Rule]]  # backend -> option -> its accepted values


def rule_of_schema(schema: Mapping[str, Any]) -> Rule | None:
    """Return the rule for a property of a JSON schema; None if it has structures, patterns or unknown keywords."""
    rule = []
    for part in schema.get("anyOf", [schema]):
        stated = {key: value for key, value in part.items() if key not in ("title", "description", "default")}
        if "const" in stated:
            stated["enum"] = [stated.pop("const")]
        if not stated.keys() <= _KNOWN or stated.get("type") not in _KINDS:
            return None
        rule.append(stated)
    return rule


def accepts(rule: Rule, value: object) -> bool:
    """Return True if one of the alternatives accepts a value."""
    return any(_is_accepted(stated, value) for stated in rule)


def _is_accepted(stated: Mapping[str, Any], value: object) -> bool:
    enum = stated.get("enum")
    if type(value) not in _KINDS[stated["type"]][0] or (enum and value not in enum):
        return False
    size = len(value) if isinstance(value, str) else value
    return value is None or all(
        fits(size, stated[name]) for name, (fits, _) in _BOUNDS.items() if stated.get(name) is not None
    )


def describe(rule: Rule) -> str:
    """Return the accepted values as text, e.g. "a whole number above 0, or null"."""
    return ", or ".join(map(_describe_alternative, rule))


def _describe_alternative(stated: Mapping[str, Any]) -> str:
    if stated.get("enum"):
        return "one of " + ", ".join(map(repr, stated["enum"]))
    bounds = [words.format(stated[name]) for name, (_, words) in _BOUNDS.items() if stated.get(name) is not None]
    return f"{_KINDS[stated['type']][1]} {' and '.join(bounds)}".strip()


def rules_to_json(rules: Rules) -> str:
    """Return rules as JSON."""
    data = {backend: {n: {"alternatives": rule} for n, rule in options.items()} for backend, options in rules.items()}
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


def rules_of_json(text: str) -> Rules:
    """Return the rules of a program file, none of an empty text; raise ProgramError if the text holds no rules."""
    try:
        data = json.loads(text or "{}")
        return {b: {name: _check_rule(rule) for name, rule in options.items()} for b, options in data.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"the rules of load options cannot be read, {type(error).__name__}: {error}"
        raise ProgramError(what, remedy="lower the model again") from error


def _check_rule(data: Mapping[str, Any]) -> Rule:
    """Return the rule in JSON data; raise ValueError, TypeError or KeyError if it is none."""
    for stated in data["alternatives"]:
        bounds = (stated.get(name) for name in _BOUNDS)
        if not stated.keys() <= _KNOWN or stated["type"] not in _KINDS:
            raise ValueError(f"{stated} is not a rule")
        if not (isinstance(stated.get("enum", []), list) and all(type(b) in (int, float, type(None)) for b in bounds)):
            raise ValueError(f"{stated} has a wrong bound")
    rule: Rule = data["alternatives"]
    return rule
