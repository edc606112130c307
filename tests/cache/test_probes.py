"""A cached answer of a plugin that the plugin cannot have given is a miss, and is removed."""

from __future__ import annotations

import pytest

from delegate.cache.runtime.store import Store
from delegate.registry import Registry
from tests.support.plugins import HALVES

NAMES = ("xnnpack", "gpu")  # a backend, and a name for the best of several


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """The answers by the name they are about: a function that changes what is stored, and the state."""
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    stored, put = {}, Store.put

    def record(store, key, about, parts):
        answer = about["answer"]
        name = (answer.get("info") or answer.get("alias") or {}).get("name")
        stored[name] = lambda change: put(store, key, {**about, **change}, parts)
        return put(store, key, about, parts)

    monkeypatch.setattr(Store, "put", record)
    found = states()
    monkeypatch.setattr(Store, "put", put)
    return {name: (stored[name], found[name]) for name in NAMES}


def states():
    return {state.name: state for state in Registry().states()}


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_asked_anew(answers, name):
    store, state = answers[name]
    kind = "alias" if name == "gpu" else "info"
    for change in ({"answer": None}, {"time": "now"}, {"answer": {kind: {"name": name}}}, {"answer": {"state": "ok"}}):
        store(change)
        found = states()[name]
        assert (found.state, found.detail, found.kept) == (state.state, "", False)
        assert states()[name].kept


TWO_PARTS = """
from delegate.backend.aot import Options
from pydantic import Field

class Other(Aot):
    class Options(Options):
        level: int = Field(2)
"""


@pytest.mark.extended
def test_an_answer_is_about_one_class(site, tmp_path, monkeypatch):
    """The module of the part is unchanged, but the plugin's info names another class of it."""
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path / "cache"))
    site.backend("acme")
    site.module("acme_halves", HALVES.replace("{name}", "acme") + "\nAot = __getattr__('Aot')\n" + TWO_PARTS)
    assert set(Registry().check_part("acme", "aot")["options"]["properties"]) == {"threads", "precision"}
    info = site.root / "acme_plugin.py"
    info.write_text(info.read_text().replace("acme_halves:Aot", "acme_halves:Other"))
    assert set(Registry().check_part("acme", "aot")["options"]["properties"]) == {"level"}
