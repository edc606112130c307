"""Packages that measure on other machines: their states, and the errors of requests that need one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.errors import ConfigError
from delegate.plugins import PluginState
from delegate.plugins.measurements import MeasurementInfo, MeasurementState, load_part
from delegate.registry import Registry
from tests.support.plugins import Site, installed_without

GROUP = "delegate.measurements"
INFO = """
from delegate.plugins.measurements import MeasurementInfo
INFO = MeasurementInfo("bundle", "By hand", {fields})
"""
PARTS = "part='bundle_parts:place'"
# A request for each of the extensions -> its package is installed by.
REQUESTS = {
    "a bundle to write": (delegate.Remote(bundle="x"), "'bundle'", "pip install ./plugins/remote"),
    "costs": (delegate.Remote(costs="x"), "'bundle'", "pip install ./plugins/remote"),
    "a cluster": (delegate.Measured(cluster="x"), "'ray'", "pip install './plugins/ray[ray]'"),
}
COMMANDS = {
    "lower net.pt2 -b xnnpack --measure --bundle x": ("'bundle'", "pip install ./plugins/remote"),
    "lower net.pt2 -b xnnpack --costs x -o net.dlg": ("'bundle'", "pip install ./plugins/remote"),
    "lower net.pt2 -b xnnpack --ray x -o net.dlg": ("'ray'", "pip install './plugins/ray[ray]'"),
}


@pytest.fixture(autouse=True)
def bare(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of plugins/ are not installed, and nothing is blocked that has its names."""
    others = {"delegate-remote", "delegate-ray"}
    monkeypatch.setattr("delegate.registry.find_plugins", lambda: installed_without(others))
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "openvino,onnxruntime")


def install(site: Site, source: str = INFO.format(fields=PARTS), parts: str = "def place(): ...") -> None:
    """Install a package that measures bundles."""
    site.module("bundle_plugin", source)
    site.module("bundle_parts", parts)
    site.distribution("bundle-dist", "1.0", {"bundle": "bundle_plugin:INFO"}, GROUP)


def state() -> MeasurementState:
    (only,) = Registry().measurements
    return only


def absence(name: str, command: str) -> str:
    package = "delegate-ray" if name == "'ray'" else "delegate-remote"
    return f"measuring by {name} needs the package {package}, which is not installed: {command}"


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_without_its_package(request_: str) -> None:
    placement, name, command = REQUESTS[request_]
    with pytest.raises(ConfigError) as caught:
        delegate.to_backend("absent.pt2", "xnnpack", placement=placement)
    assert str(caught.value) == absence(name, command)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_without_its_package(line: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), "net.pt2")
    name, command = COMMANDS[line]
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 1, done.output
    assert done.stderr.endswith(f"error: {absence(name, command)}\n")


def test_parts_are_imported_on_demand(site: Site) -> None:
    install(site, parts="raise RuntimeError('too early')")
    measurements = Registry().measurements
    assert [(s.name, s.state, s.owner, s.version) for s in measurements] == [
        ("bundle", PluginState.OK, "bundle-dist", "1.0")
    ]
    site.module("bundle_parts", "def place(): ...")
    assert load_part(measurements, "bundle").__name__ == "place"


@pytest.mark.parametrize(
    ("source", "expected", "sentence"),
    [
        ("1 / 0", PluginState.BROKEN, "of bundle-dist 1.0 is broken: it fails to import: ZeroDivisionError"),
        ("INFO = {}", PluginState.BROKEN, "provides dict at bundle_plugin:INFO, not a MeasurementInfo"),
        (INFO.format(fields=PARTS).replace('"bundle"', '"pile"'), PluginState.BROKEN, "has the name 'pile'"),
        (
            INFO.format(fields=f"{PARTS}, api_version=(9, 0)"),
            PluginState.INCOMPATIBLE,
            "is written for version 9.0 of the plugin API, but this project has version 1.0: update delegate",
        ),
        (
            INFO.format(fields=f"{PARTS}, requires=('no_such',), install='pip install no-such'"),
            PluginState.UNAVAILABLE,
            "needs no_such, which is not installed: pip install no-such",
        ),
    ],
)
def test_a_package_that_cannot_be_used(site: Site, source: str, expected: PluginState, sentence: str) -> None:
    install(site, source)
    found = state()
    assert found.state is expected
    assert sentence in f"{found.detail}: {found.remedy}"
    assert ("ZeroDivisionError" in found.traceback) == (source == "1 / 0")
    with pytest.raises(ConfigError) as caught:
        delegate.to_backend("absent.pt2", "xnnpack", placement=delegate.Remote(bundle="x"))
    assert str(caught.value) == f"{found.detail}: {found.remedy}"


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ("1 / 0", "fails to import: ZeroDivisionError"),
        ("", "fails to import: AttributeError"),
    ],
)
def test_a_broken_part(site: Site, parts: str, sentence: str) -> None:
    install(site, parts=parts)
    with pytest.raises(ConfigError, match=sentence) as caught:
        delegate.to_backend("absent.pt2", "xnnpack", placement=delegate.Remote(bundle="x"))
    assert caught.value.remedy == "update or uninstall bundle-dist"
    assert caught.value.__cause__ is not None


def test_two_owners_and_a_blocked_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site)
    site.distribution("other-dist", "1.0", {"bundle": "bundle_plugin:INFO"}, GROUP)
    assert state().state is PluginState.BROKEN
    assert set(state().owner.split(" and ")) == {"bundle-dist 1.0", "other-dist 1.0"}
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "bundle")
    registry = Registry()
    assert [s.state for s in registry.measurements] == [PluginState.BLOCKED]
    with pytest.raises(ConfigError, match="blocked by the environment variable DELEGATE_BLOCK_PLUGINS"):
        load_part(registry.measurements, "bundle")


def test_they_are_listed(site: Site) -> None:
    assert "remote measurement" not in CliRunner().invoke(app, ["backends"]).stdout
    install(site, "1 / 0")
    listed = CliRunner().invoke(app, ["backends"]).stdout
    assert "bundle              broken  bundle-dist 1.0" in listed
    assert "it fails to import: ZeroDivisionError: division by zero; remedy: update or uninstall bundle-dist" in listed
    (data,) = json.loads(CliRunner().invoke(app, ["backends", "--json"]).stdout)["measurements"]
    assert (data["name"], data["state"], data["owner"], data["version"]) == ("bundle", "broken", "bundle-dist", "1.0")
    assert "ZeroDivisionError" in data["traceback"]


@pytest.mark.parametrize("wrong", [{"part": 1}, {"requires": "ray"}, {"api_version": (1,)}, {"name": None}])
def test_a_field_of_another_type(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"MeasurementInfo.{next(iter(wrong))} should be"):
        MeasurementInfo(**{"name": "x", "description": "", "part": "a:b", **wrong})
