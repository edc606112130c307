"""The JSON schema: every key described, options of installed backends woven in."""

from __future__ import annotations

from typing import Any

import pytest

from delegate.config import json_schema
from delegate.registry import Registry
from tests.support.plugins import installed


@pytest.fixture(scope="module")
def woven(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The schema where three plugins are installed."""
    with installed(tmp_path_factory.mktemp("site")) as site:
        site.backend("adder")
        site.backend("absent", ok=False)
        site.module("bad_plugin", "1 / 0")
        site.distribution("bad-dist", "1.0", {"bad": "bad_plugin:INFO"})
        return json_schema(Registry())


@pytest.mark.extended
def test_options_are_woven_in(woven: dict[str, Any]) -> None:
    choices = woven["properties"]["backends"]["items"]["oneOf"]
    names = {c["const"] for c in choices if "const" in c}
    assert {"adder", "absent"} <= names
    assert "bad" not in names
    adder = next(c for c in choices if c.get("title") == "adder")
    options = resolve(woven, adder["properties"]["options"])
    assert options["additionalProperties"] is False
    assert options["properties"]["threads"]["maximum"] == 64


def test_every_key_is_described() -> None:
    schema = json_schema(Registry())
    for name in ("partitioning", "policy"):
        keys = resolve(schema, schema["properties"][name])["properties"]
        assert keys
        for key, value in keys.items():
            assert value.get("description"), f"{name}.{key}"


def test_references_resolve(woven: dict[str, Any]) -> None:
    pending: list[Any] = [woven]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if "$ref" in item:
                assert resolve(woven, item)
            pending += item.values()
        elif isinstance(item, list):
            pending += item


def resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    return schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
