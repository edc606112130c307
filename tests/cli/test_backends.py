"""`delegate backends` and `delegate config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import call
from tests.support.plugins import Site


@pytest.fixture
def zoo(site: Site) -> None:
    """One backend in every state."""
    site.backend("adder", version="2.1")
    site.backend("absent", ok=False, reason="absent-sdk is not installed")
    site.backend("future", api_version=(9, 0))
    site.module("bad_plugin", "raise RuntimeError('no license')")
    site.distribution("bad-dist", "1.0", {"bad": "bad_plugin:INFO"})


@pytest.mark.extended
@pytest.mark.usefixtures("zoo")
def test_list() -> None:
    lines = call("backends")[0].splitlines()
    columns = {line.split()[0]: line.split()[1] for line in lines if line}
    found = {name: columns[name] for name in ("adder", "absent", "future", "bad")}
    assert found == {"adder": "ok", "absent": "unavailable", "future": "incompatible", "bad": "broken"}
    text = "\n".join(lines)
    assert "adder-library 1.0" in text
    assert "absent-sdk is not installed; remedy: pip install absent-sdk" in text
    assert "is written for version 9.0 of the plugin API" in text
    assert "RuntimeError: no license" in text
    assert "Traceback" not in text
    assert "portable" in text


@pytest.mark.usefixtures("zoo")
def test_json() -> None:
    data = json.loads(call("backends", "--json")[0])
    states = {b["name"]: b["state"] for b in data["backends"]}
    assert states.items() >= {"adder": "ok", "bad": "broken", "absent": "unavailable"}.items()
    bad = next(b for b in data["backends"] if b["name"] == "bad")
    assert "Traceback (most recent call last)" in bad["traceback"]
    portable = next(lib for lib in data["kernel_libraries"] if lib["name"] == "portable")
    assert portable["kernels"] > 0


@pytest.mark.extended
@pytest.mark.usefixtures("zoo")
def test_one() -> None:
    good = call("backends", "adder")[0]
    assert "plugin API:   1.0" in good
    assert "aot part:     ok" in good
    assert "runtime part: ok" in good
    bad = call("backends", "bad")[0]
    assert "RuntimeError: no license" in bad
    assert "Traceback (most recent call last)" in bad
    assert json.loads(call("backends", "adder", "--json")[0])["aot"] == "ok"
    assert "did you mean 'adder'?" in call("backends", "ader", code=1)[1]


def test_one_with_a_broken_half(site: Site) -> None:
    site.backend("adder")
    site.module("adder_halves", "import no_such_library")
    text = call("backends", "adder")[0]
    assert "state:        broken" in text
    assert "No module named 'no_such_library'" in text
    assert "Traceback (most recent call last)" in text


def test_config_check(site: Site, tmp_path: Path) -> None:
    site.backend("adder")
    good = tmp_path / "good.yaml"
    good.write_text("version: 1\nbackends: [{name: adder, options: {threads: 2}}]\n")
    assert call("config", "check", str(good))[0] == f"{good}: ok (adder)\n"
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\nbackends: [{name: adder, options: {thread: 2}}]\n")
    stdout, stderr = call("config", "check", str(bad), code=1)
    assert stdout == ""
    assert stderr == (f"error: backends[0].options.thread: unknown key ({bad}:2:36): did you mean 'threads'?\n")


@pytest.mark.extended
def test_config_schema(site: Site) -> None:
    site.backend("adder")
    schema = json.loads(call("config", "schema")[0])
    assert "threads" in schema["$defs"]["adder.SumOptions"]["properties"]
