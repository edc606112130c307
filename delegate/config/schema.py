"""The JSON schema of a configuration, for editors: the options of the installed backends are woven into it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from delegate.config.model import BackendChoice, Config
from delegate.errors import BackendError
from delegate.plugins import INSTANCE, State
from delegate.registry import Registry, default_registry

if TYPE_CHECKING:
    from delegate.backends.aot import Options

_USABLE = (State.OK, State.UNAVAILABLE)


def json_schema(registry: Registry | None = None) -> dict[str, Any]:
    """The schema (draft 2020-12); backends that are broken or blocked are left out."""
    registry = registry or default_registry()
    options: dict[str, type[Options] | None] = {}
    for state in registry.states():
        if state.state in _USABLE:
            try:
                half = registry.aot(state.name, absent_ok=True)
                options[state.name] = None if state.stands_for else half.Options
            except BackendError:
                continue
    models = {m: (m, "validation") for m in (Config, BackendChoice, *options.values()) if m is not None}
    refs, definitions = models_json_schema(list(models.values()))  # type: ignore[arg-type]
    defs: dict[str, Any] = definitions["$defs"]
    choice = defs[refs[BackendChoice, "validation"]["$ref"].rpartition("/")[2]]
    root = defs.pop(refs[Config, "validation"]["$ref"].rpartition("/")[2])
    described = {s.name: s.info.description for s in registry.states() if s.info}
    choices = [{"const": name, "description": described[name]} for name in options]
    choices += [_instance(name) for name in options]
    choices += [
        _choice(choice, name, {"maxProperties": 0} if model is None else refs[model, "validation"])
        for name, model in options.items()
    ]
    root["properties"]["backends"] = {
        "type": "array",
        "items": {"oneOf": choices} if choices else False,
        "description": root["properties"]["backends"]["description"],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": defs}


def _choice(base: dict[str, Any], name: str, options: dict[str, Any]) -> dict[str, Any]:
    properties = {**base["properties"], "name": {"anyOf": [{"const": name}, _instance(name)]}, "options": options}
    return {**base, "title": name, "properties": properties}


def _instance(name: str) -> dict[str, Any]:
    """The name of an instance of a backend."""
    return {"type": "string", "pattern": rf"^{re.escape(name)}{INSTANCE}\w[\w.-]*$"}
