"""A cached answer of a plugin that the plugin cannot have given is a miss, and is removed."""

from __future__ import annotations

import json
import random

import pytest

from delegate.backend.info import BackendAlias
from delegate.backend.state import check_answer, from_json
from delegate.cache.runtime.store import Store
from delegate.common.field_checks import mapping
from delegate.plugins import Plugin
from delegate.registry import Registry
from tests.cache.nonsense import NONSENSE, changed
from tests.support.plugins import HALVES

NAMES = ("xnnpack", "gpu")  # a backend, and a name for the best of several


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """The answers by the name they are about: a function that changes what is stored, the answer, and the state."""
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    stored, put = {}, Store.put

    def record(store, key, about, parts):
        answer = about["answer"]
        name = (answer.get("info") or answer.get("alias") or {}).get("name")
        stored[name] = lambda change: put(store, key, {**about, **change}, parts), answer
        return put(store, key, about, parts)

    monkeypatch.setattr(Store, "put", record)
    found = states()
    monkeypatch.setattr(Store, "put", put)
    return {name: (*stored[name], found[name]) for name in NAMES}


def states():
    return {state.name: state for state in Registry().states()}


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_asked_anew(answers, name):
    store, _, state = answers[name]
    kind = "alias" if name == "gpu" else "info"
    for change in ({"answer": None}, {"time": "now"}, {"answer": {kind: {"name": name}}}, {"answer": {"state": "ok"}}):
        store(change)
        found = states()[name]
        assert (found.state, found.detail, found.kept) == (state.state, "", False)
        assert states()[name].kept


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_file_holds_the_state_has_the_types_of_one(answers, name):
    _, answer, _ = answers[name]
    data, rng = json.loads(json.dumps(answer)), random.Random(0)
    plugin, accepted = Plugin(name, "", "", ""), 0
    for _ in range(2000):
        answer = changed(data, rng)
        try:
            check_answer(mapping({"": answer}, ""), "probe", plugin)
        except (LookupError, TypeError, ValueError):
            continue
        accepted += 1
        found = from_json(answer, plugin)
        if isinstance(found, BackendAlias):
            told = (found.name, found.description, *found.stands_for)
        else:
            assert found.info is not None and found.availability is not None  # noqa: PT018 - for mypy
            assert type(found.info.preference) is int
            told = (found.detail, found.remedy, found.traceback, found.info.aot, *found.availability.versions.values())
        assert all(isinstance(text, str) for text in told)
    assert 0 < accepted < 500  # others of the same types


@pytest.mark.parametrize("question", ["aot", "runtime"])
@pytest.mark.parametrize(
    "answer", [{"a": 1}, *({name: v} for name in ("problem", "absent", "options") for v in NONSENSE)]
)
def test_answers_about_halves(question, answer):
    if question == "aot" and answer in ({"options": {}}, {"options": {"a": 1}}, {"options": {"a": []}}):
        return  # a schema may be of nothing
    with pytest.raises((LookupError, TypeError, ValueError)):
        check_answer(answer, question, None)


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
