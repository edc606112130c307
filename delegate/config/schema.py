"""The JSON schema of a configuration, for editors, with the options of the installed backends."""

from __future__ import annotations

import re
from typing import Any

from pydantic.json_schema import models_json_schema

from delegate.config.model import BackendChoice, Config
from delegate.errors import BackendError
from delegate.plugins import INSTANCE, PluginState
from delegate.registry import Registry, default_registry

_USABLE = (PluginState.OK, PluginState.UNAVAILABLE)


def json_schema(registry: Registry | None = None) -> dict[str, Any]:
    """Return the schema (draft 2020-12), without backends that are broken or blocked."""
    registry = registry or default_registry()
    _, definitions = models_json_schema([(Config, "validation"), (BackendChoice, "validation")])
    defs: dict[str, Any] = definitions["$defs"]
    root, choice = defs.pop("Config"), defs["BackendChoice"]
    usable = {s.name: s.info for s in registry.states() if s.state in _USABLE and s.info}
    options = {name: schema for name in usable if (schema := _options(name, registry, defs)) is not None}
    choices = [{"const": name, "description": usable[name].description} for name in options]
    choices += [_instance(name) for name in options]
    choices += [_choice(choice, name, schema) for name, schema in options.items()]
    root["properties"]["backends"] = {
        "type": "array",
        "items": {"oneOf": choices} if choices else False,
        "description": root["properties"]["backends"]["description"],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": defs}


def _options(name: str, registry: Registry, defs: dict[str, Any]) -> dict[str, Any] | None:
    """Add the schema of a backend's options to `defs` and return a reference to it; None if it is not available."""
    if registry.resolve(name) != name:
        return {"maxProperties": 0}  # they are those of the backend that it stands for
    try:
        schema = registry.check_part(name, "aot")["options"]
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
    """Return the schema for the name of a backend instance."""
    return {"type": "string", "pattern": rf"^{re.escape(name)}{INSTANCE}\w[\w.-]*$"}
