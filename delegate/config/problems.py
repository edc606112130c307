"""Conversion of pydantic's validation errors to ConfigErrors with key, place, problem and the nearest valid key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from delegate.config.plain_yaml import Path, dotted
from delegate.config.source import Source
from delegate.errors import ConfigError, did_you_mean

_MAPPING, _LIST = "should be a mapping (key: value)", "should be a list"
_SENTENCES = {
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "string_type": "should be text",
    "int_type": "should be a whole number",
    "float_type": "should be a number",
    "bool_type": "should be true or false",
}


def problems(error: ValidationError, model: type[BaseModel], source: Source, prefix: Path = ()) -> list[ConfigError]:
    """Return a ConfigError for each problem of a validation.

    Args:
        error: pydantic's error.
        model: the model that was validated; its keys are those that are proposed.
        source: where the data came from.
        prefix: the path of the validated data in the source.
    """
    schema = model.model_json_schema()
    return [_problem(details, schema, source, prefix) for details in error.errors(include_url=False)]


def raise_all(problems: Iterable[ConfigError]) -> None:
    """Raise the problems as one ConfigError, one line each; nothing for none."""
    errors = list(problems)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigError("\n".join(str(e) for e in errors))


def _problem(details: ErrorDetails, schema: Mapping[str, Any], source: Source, prefix: Path) -> ConfigError:
    path = (*prefix, *details["loc"])
    key, kind = dotted(path), details["type"]
    if kind == "extra_forbidden":
        known = _keys(schema, details["loc"][:-1])
        where = source.where(path, of_key=True)
        return ConfigError(f"{key}: unknown key", where=where, remedy=did_you_mean(str(path[-1]), known))
    if kind == "missing":
        return ConfigError(f"{key}: missing", where=source.where(path), remedy="give it")
    sentence = _SENTENCES.get(kind) or details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind != "value_error":
        sentence += f", not {_short(details['input'])}"
    return ConfigError(f"{key}: {sentence}" if key else sentence, where=source.where(path))


def _short(value: Any) -> str:
    if value is None:
        return "empty"
    try:
        kinds = {dict: "a mapping", list: "a list", bool: str(value).lower()}
        text = kinds.get(type(value)) or repr(value)
    except ValueError:  # of a number of very many digits
        return "a number of very many digits"
    return text if len(text) <= 40 else text[:37] + "..."


def _keys(schema: Mapping[str, Any], path: Path) -> list[str]:
    """Return the valid keys at a path, by the JSON schema."""
    at = [schema]
    for part in (*path, None):
        at = [resolved for s in at for resolved in _alternatives(s, schema)]
        if part is None:
            break
        at = [s["items"] if isinstance(part, int) else s["properties"][part] for s in at if _has(s, part)]
    return [key for s in at for key in s.get("properties", ())]


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return [one for s in schema["anyOf"] for one in _alternatives(s, root)] if "anyOf" in schema else [schema]


def _has(schema: Mapping[str, Any], part: str | int) -> bool:
    return "items" in schema if isinstance(part, int) else part in schema.get("properties", {})
