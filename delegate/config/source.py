"""The source of a configuration, and errors that name file, line and key.

The source is plain data, with the line and column of every key and value. Validation errors of pydantic become
ConfigErrors with key, place, problem and the nearest valid key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from delegate.common.files import open_to_read
from delegate.config.plain_yaml import NotPlain, Path, Place, dot_path, parse
from delegate.errors import ConfigError, did_you_mean

AnyModel = TypeVar("AnyModel", bound=BaseModel)

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


def sentences(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the problems in validated values that are in no file, separated by semicolons."""
    return "; ".join(problem.what for problem in problems(error, model, Source({})))


def raise_all(problems: Iterable[ConfigError]) -> None:
    """Raise the problems as one ConfigError, one line each; nothing for none."""
    errors = list(problems)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigError("\n".join(str(e) for e in errors))


def _problem(details: ErrorDetails, schema: Mapping[str, Any], source: Source, prefix: Path) -> ConfigError:
    path = (*prefix, *details["loc"])
    key, kind = dot_path(path), details["type"]
    if kind == "extra_forbidden":
        known = _keys(schema, details["loc"][:-1])
        where = source.where(path, of_key=True)
        return ConfigError(f"{key}: unknown key", where=where, remedy=did_you_mean(str(path[-1]), known))
    if kind == "missing":
        return ConfigError(f"{key}: missing", where=source.where(path), remedy="add it")
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
        at = [inner for s in at if (inner := _inner(s, part)) is not None]
    return [key for s in at for key in s.get("properties", ())]


def _alternatives(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return [one for s in schema["anyOf"] for one in _alternatives(s, root)] if "anyOf" in schema else [schema]


def _inner(schema: Mapping[str, Any], part: str | int) -> Mapping[str, Any] | None:
    """Return the schema of an item, or of a key's value; None if it has none."""
    others = schema.get("additionalProperties")  # False, or the schema of values whose keys are free
    inner: Mapping[str, Any] | None = (
        schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part, others or None)
    )
    return inner


MOST_BYTES = 1 << 18  # of a configuration file


@dataclass(frozen=True, slots=True)
class Source:
    """Data and the places of its keys and values.

    Args:
        data: plain Python values.
        file: its name; empty for data that no file holds.
        values: path -> (line, column) of a value, from 1.
        keys: path -> (line, column) of the key that leads to a value, from 1.
    """

    data: Any
    file: str = ""
    values: Mapping[Path, Place] = field(default_factory=dict)
    keys: Mapping[Path, Place] = field(default_factory=dict)

    def where(self, path: Path, *, of_key: bool = False) -> str:
        """Return the place "file:line:column" of a value or of its key, else of the nearest value around it."""
        marks = self.keys if of_key and path in self.keys else self.values
        for end in range(len(path), -1, -1):
            if mark := marks.get(path[:end]):
                return f"{self.file}:{mark[0]}:{mark[1]}"
        return self.file


def read_yaml(file: FilePath) -> Source:
    """Read a YAML file.

    Raises:
        ConfigError: it is missing, unreadable, no valid YAML, empty, or has a key twice.
    """
    try:
        with open_to_read(file) as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            what = f"the configuration has more than {MOST_BYTES} bytes"
            raise ConfigError(what, where=str(file), remedy="give a smaller YAML file")
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        where = f"{file}:{line}"
        raise ConfigError(f"the configuration is not UTF-8 text: byte {error.start}", where=where) from None
    except ValueError as error:  # of a path with a null byte
        raise ConfigError(f"cannot read the configuration {str(file)!r}: {error}", remedy="check the path") from None
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {str(file)!r}", remedy="check the path") from None
    except OSError as error:
        raise ConfigError(f"cannot read the configuration: {error.strerror}", where=str(file)) from None
    try:
        parsed = parse(text)
    except NotPlain as error:
        raise ConfigError(error.what, where=error.where(str(file)), remedy=error.remedy) from None
    if parsed is None:
        raise ConfigError("the configuration is empty", where=str(file), remedy="write at least `version: 1`")
    return Source(parsed.data, str(file), parsed.values, parsed.keys)


def require_mapping(source: Source, kind: str = "a configuration", remedy: str = "write at least `version: 1`") -> None:
    """Raise ConfigError if the data of a source are not a mapping."""
    if not isinstance(source.data, Mapping):
        what = f"{kind} is a mapping (key: value), not {type(source.data).__name__}"
        raise ConfigError(what, where=source.where(()), remedy=remedy)


def validate(source: Source, model: type[AnyModel]) -> AnyModel:
    """Return the data of a source as a model.

    Raises:
        ConfigError: the data do not fit; it lists all problems, one per line, with place and key.
    """
    try:
        return model.model_validate(source.data)
    except ValidationError as error:
        raise_all(problems(error, model, source))
        raise AssertionError("pydantic refused the data without a reason") from error
