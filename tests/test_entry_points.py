"""Entry points as they are read here are those that importlib.metadata gives."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile

import pytest

from delegate.plugins import entry_points

GROUPS = ["delegate.backends", "delegate.kernels", "console_scripts", "pytest11", "no.such.group"]


def of_library(group):
    return {(e.name, e.value.partition("[")[0].strip(), e.dist.name, e.dist.version)
            for e in importlib.metadata.entry_points(group=group)}  # fmt: skip


def read(group):
    return {(e.name, e.value, e.owner, e.version) for e in entry_points(group)}


@pytest.mark.parametrize("group", GROUPS)
def test_the_same_as_importlib_metadata(group):
    assert read(group) == of_library(group)


def test_an_archive_on_the_path(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "plugins.zip", "w") as archive:
        archive.writestr("zipped-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.2\n")
        archive.writestr("zipped-1.2.dist-info/entry_points.txt", "[some.group]\nname = package:VALUE\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "plugins.zip")])
    assert read("some.group") == {("name", "package:VALUE", "zipped", "1.2")}


def test_files_that_are_no_entry_points(tmp_path, monkeypatch):
    folder = tmp_path / "odd-1.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_bytes(b"\xff\xfe[some.group]")
    (tmp_path / "bare-2.dist-info").mkdir()
    (tmp_path / "bare-2.dist-info" / "entry_points.txt").write_text(
        "# [some.group]\n[some.group]\n# a = b\nc = d:E [x]\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert read("some.group") == {("c", "d:E", "bare", "")}
