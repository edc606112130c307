"""The JSON schema of a configuration, for editors: the options of the installed backends are woven into it."""

from __future__ import annotations

import re
from typing import Any

from pydantic.json_schema import models_json_schema

from delegate.config.model import BackendChoice, Config
from delegate.errors import BackendError
from delegate.plugins import INSTANCE, State
from delegate.registry import Registry, default_registry

_USABLE = (State.OK, State.UNAVAILABLE)


def json_schema(registry: Registry | None = None) -> dict[str, Any]:
    """The schema (draft 2020-12); backends that are broken or blocked are left out."""
    registry = registry or default_registry()
    _, definitions = models_json_schema([(Config, "validation"), (BackendChoice, "validation")])
    defs: dict[str, Any] = definitions["$defs"]
    root, choice = defs.pop("Config"), defs["BackendChoice"]
    usable = {s.name: s.info for s in registry.states() if s.state in _USABLE and s.info}
    options = {name: given for name in usable if (given := _options(name, registry, defs)) is not None}
    choices = [{"const": name, "description": usable[name].description} for name in options]
    choices += [_instance(name) for name in options]
    choices += [_choice(choice, name, given) for name, given in options.items()]
    root["properties"]["backends"] = {
        "type": "array",
        "items": {"oneOf": choices} if choices else False,
        "description": root["properties"]["backends"]["description"],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": defs}


def _options(name: str, registry: Registry, defs: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of a backend's options, which goes to `defs`; None where it cannot be had."""
    if registry.resolve(name) != name:
        return {"maxProperties": 0}  # they are those of the backend that it stands for
    try:
        schema = registry.half(name, "aot")["options"]
    except BackendError as error:
        registry.warn(name, str(error))
        return None
    defs.update({f"{name}.{model}": inner for model, inner in schema.pop("$defs", {}).items()})
    own = f"{name}.{schema['title']}"
    defs[own] = schema
    return {"$ref": f"#/$defs/{own}"}


def _choice(base: dict[str, Any], name: str, options: dict[str, Any]) -> dict[str, Any]:
    properties = {**base["properties"], "name": {"anyOf": [{"const": name}, _instance(name)]}, "options": options}
    return {**base, "title": name, "properties": properties}


def _instance(name: str) -> dict[str, Any]:
    """The name of an instance of a backend."""
    return {"type": "string", "pattern": rf"^{re.escape(name)}{INSTANCE}\w[\w.-]*$"}
