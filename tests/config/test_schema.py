"""The JSON schema: every key described, options of installed backends woven in."""

from __future__ import annotations

from typing import Any

from delegate.config import json_schema
from delegate.registry import Registry
from tests.support.plugins import Site


def test_options_are_woven_in(site: Site) -> None:
    site.backend("adder")
    site.backend("absent", ok=False)
    site.module("bad_plugin", "1 / 0")
    site.distribution("bad-dist", "1.0", {"bad": "bad_plugin:INFO"})
    schema = json_schema(Registry())
    choices = schema["properties"]["backends"]["items"]["oneOf"]
    names = {c["const"] for c in choices if "const" in c}
    assert {"adder", "absent"} <= names
    assert "bad" not in names
    adder = next(c for c in choices if c.get("title") == "adder")
    options = resolve(schema, adder["properties"]["options"])
    assert options["additionalProperties"] is False
    assert options["properties"]["threads"]["maximum"] == 64


def test_every_key_is_described() -> None:
    schema = json_schema(Registry())
    for name in ("partitioning", "policy"):
        keys = resolve(schema, schema["properties"][name])["properties"]
        assert keys
        for key, value in keys.items():
            assert value.get("description"), f"{name}.{key}"


def test_references_resolve(site: Site) -> None:
    site.backend("adder")
    schema = json_schema(Registry())
    pending: list[Any] = [schema]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if "$ref" in item:
                assert resolve(schema, item)
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    return schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
