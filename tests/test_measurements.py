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
from delegate.registry import Registry
from tests.support.plugins import Site, installed_without

GROUP = "delegate.measurements"
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
    monkeypatch.setattr("delegate.plugins.find_plugins", lambda: installed_without(others))
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "openvino,onnxruntime")


def install(site: Site, parts: str) -> None:
    """Install a package that measures bundles."""
    site.module("bundle_parts", parts)
    site.distribution("bundle-dist", "1.0", {"bundle": "bundle_parts:place"}, GROUP)


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


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ("1 / 0", "fails to import: ZeroDivisionError"),
        ("", "fails to import: AttributeError"),
    ],
)
def test_a_broken_part(site: Site, parts: str, sentence: str) -> None:
    install(site, parts)
    (measurement,) = Registry().measurements  # which is not imported
    assert (measurement.name, measurement.state, measurement.owner) == ("bundle", PluginState.OK, "bundle-dist")
    with pytest.raises(ConfigError, match=sentence) as caught:
        delegate.to_backend("absent.pt2", "xnnpack", placement=delegate.Remote(bundle="x"))
    assert caught.value.remedy == "update or uninstall bundle-dist"
    assert caught.value.__cause__ is not None


def test_two_owners_and_a_blocked_one(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "remote measurement" not in CliRunner().invoke(app, ["backends"]).stdout
    install(site, "")
    site.distribution("other-dist", "1.0", {"bundle": "bundle_parts:place"}, GROUP)
    (state,) = Registry().measurements
    assert state.state is PluginState.BROKEN
    assert set(state.owner.split(" and ")) == {"bundle-dist 1.0", "other-dist 1.0"}
    assert "bundle              broken  " in CliRunner().invoke(app, ["backends"]).stdout
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "bundle")
    with pytest.raises(ConfigError, match="blocked by the environment variable DELEGATE_BLOCK_PLUGINS"):
        delegate.to_backend("absent.pt2", "xnnpack", placement=delegate.Remote(bundle="x"))
    (data,) = json.loads(CliRunner().invoke(app, ["backends", "--json"]).stdout)["measurements"]
    assert (data["name"], data["state"]) == ("bundle", "blocked")
