"""Versions agree, and the files that describe a release are complete."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

import delegate
from tests.support.sources import ROOT

PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))


def project(folder: str) -> dict:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[0][0] == delegate.__version__
    assert all(date != "unreleased" for _, date in versions[1:])


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == delegate.__version__
    assert citation["license"] == project(".")["project"]["license"]
    assert {"cff-version", "message", "title", "authors", "type"} <= citation.keys()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_has_the_version_and_the_licence_of_the_core(plugin):
    metadata = project(f"plugins/{plugin}")["project"]
    assert metadata["version"] == delegate.__version__
    assert metadata["license-files"] == ["LICENSE"]
    assert (ROOT / "plugins" / plugin / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_third_party_licences_name_every_extra_and_plugin():
    text = (ROOT / "THIRD_PARTY.md").read_text()
    extras = project(".")["project"]["optional-dependencies"]
    vendors = extras.keys() - {"all", "cli", "docs"}  # tools: typer and rich, the site's generator
    assert [extra for extra in vendors if f"`{extra}`" not in text] == []
    assert [plugin for plugin in PLUGINS if f"`delegate-{plugin}" not in text] == []


def test_each_package_is_built_and_linted():
    makefile = (ROOT / "Makefile").read_text()
    packages = re.search(r"^PACKAGES := (.*)$", makefile, re.M)
    assert packages is not None
    assert sorted(packages[1].split()) == PLUGINS
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = re.search(r"^lint: .*\n((?:\t.*\n)+)", makefile, re.M)
    assert lint is not None
    assert {hook["entry"].split()[0].rpartition("/")[2] for hook in hooks} == set(re.findall(r"/bin/(\S+)", lint[1]))


@pytest.mark.parametrize("template", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md")), ids=lambda p: p.stem)
def test_issue_templates_have_a_header(template):
    _, header, body = template.read_text().split("---\n", 2)
    assert {"name", "about", "labels"} <= yaml.safe_load(header).keys()
    assert "**" in body
