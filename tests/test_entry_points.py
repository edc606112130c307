"""Plugins are discovered where importlib.metadata finds distributions, each distribution once."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from delegate.plugins import Plugin, discover, find_plugins

GROUP = "delegate.backends"


def distribution(folder: Path, name: str, version: str, lines: str) -> None:
    directory = folder / f"{name}-{version}.dist-info"
    directory.mkdir(parents=True)
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (directory / "entry_points.txt").write_text(lines)


def test_own_plugins_of_all_groups() -> None:
    installed = find_plugins()
    assert "xnnpack" in {plugin.name for plugin in installed[GROUP] if plugin.owner == "delegate"}
    assert "portable" in discover("delegate.kernels", installed).claims


def test_the_first_of_equal_distributions_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path / "a", "Acme.Npu", "2", f"# [x]\n[{GROUP}]\n# a = b\nnpu = acme:INFO [extra]\n")
    distribution(tmp_path / "b", "acme_npu", "1", f"[{GROUP}]\nnpu = acme:OLD\nolder = acme:OLD\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "a"), str(tmp_path / "b")])
    claims = discover(GROUP).claims
    assert claims["npu"] == (Plugin("npu", "Acme.Npu", "2", "acme:INFO"),)
    assert "older" not in claims


def test_an_archive_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "plugins.zip", "w") as archive:
        archive.writestr("zipped-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.2\n")
        archive.writestr("zipped-1.2.dist-info/entry_points.txt", "[delegate.some]\nname = package:VALUE\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "plugins.zip")])
    assert discover("delegate.some").claims["name"] == (Plugin("name", "zipped", "1.2", "package:VALUE"),)


@pytest.mark.parametrize(("file", "owner"), [("METADATA", "unknown distribution"), ("entry_points.txt", None)])
def test_damaged_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, owner: str | None) -> None:
    distribution(tmp_path, "odd", "1", f"[{GROUP}]\nodd = odd:INFO\n")
    (tmp_path / "odd-1.dist-info" / file).write_bytes(b"\xff\xfe" + f"[{GROUP}]".encode())
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    claims = discover(GROUP).claims.get("odd", ())
    assert [plugin.owner for plugin in claims] == ([] if owner is None else [owner])
