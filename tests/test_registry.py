"""Backends by entry point: listed without being imported, each in its state, each error with what to do."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from delegate.backend.info import Availability, BackendInfo
from delegate.backend.state import load_part
from delegate.errors import (
    BackendBroken,
    BackendError,
    BackendIncompatible,
    BackendNotFound,
    BackendUnavailable,
)
from delegate.plugins import PluginState
from delegate.registry import Registry
from tests.support.plugins import HALVES, Site


def probe() -> Availability:
    return Availability(True)


def info(name: str) -> BackendInfo:
    return BackendInfo(name, "for a test", "mine:Aot", "mine:Runtime", probe, "pip install mine")


def test_listing_imports_nothing(site: Site) -> None:
    site.module("explosive_plugin", "raise RuntimeError('imported')")
    site.distribution("explosive", "1.0", {"explosive": "explosive_plugin:INFO"})
    assert "explosive" in Registry().names()
    assert "explosive_plugin" not in sys.modules


@pytest.mark.extended
def test_ok(site: Site) -> None:
    site.backend("adder", owner="adder-dist", version="2.1")
    registry = Registry()
    state = registry.state("adder")
    assert (state.state, state.owner, state.version) == (PluginState.OK, "adder-dist", "2.1")
    assert state.availability == Availability(True, "", {"adder-library": "1.0"}, ("CPU",))
    assert registry.info("adder").name == "adder"
    assert registry.aot("adder").name == "adder"
    assert registry.runtime("adder").__name__ == "Runtime"
    assert "adder" in registry.available()


def test_not_found(site: Site) -> None:
    site.backend("adder")
    with pytest.raises(BackendNotFound, match=r"no backend is named 'ader': did you mean 'adder'\?"):
        Registry().state("ader")


def test_the_package_of_an_absent_plugin_is_named(site: Site) -> None:
    site.backend("adder")
    remedy = r"known: .*\badder\b.*; if a package such as delegate-acme_sdk provides it, install that package$"
    with pytest.raises(BackendNotFound, match=remedy):
        Registry().state("acme_sdk")
    with pytest.raises(BackendNotFound, match=r"no backend is named '9 9': known: [^;]*$"):
        Registry().state("9 9")


def test_unavailable(site: Site) -> None:
    site.backend("absent", ok=False, reason="absent-sdk is not installed")
    registry = Registry()
    assert registry.state("absent").state is PluginState.UNAVAILABLE
    for half in (registry.aot, registry.runtime):
        with pytest.raises(BackendUnavailable) as caught:
            half("absent")
        assert str(caught.value) == (
            "backend 'absent' is not available here: absent-sdk is not installed: pip install absent-sdk"
        )
    assert registry.aot("absent", absent_ok=True).Options(threads=2).threads == 2  # type: ignore[call-arg,attr-defined]
    assert "absent" not in registry.available()


@pytest.mark.parametrize(
    ("api_version", "state", "remedy"),
    [
        ((1, 0), PluginState.OK, ""),
        ((1, 1), PluginState.INCOMPATIBLE, "update delegate"),
        ((2, 0), PluginState.INCOMPATIBLE, "update delegate"),
        ((0, 9), PluginState.INCOMPATIBLE, "update other-dist"),
    ],
)
def test_api_version(site: Site, api_version: tuple[int, int], state: PluginState, remedy: str) -> None:
    site.backend("other", api_version=api_version)
    registry = Registry()
    found = registry.state("other")
    assert (found.state, found.remedy) == (state, remedy)
    if state is PluginState.INCOMPATIBLE:
        with pytest.raises(BackendIncompatible, match=r"is written for version .* of the plugin API"):
            registry.aot("other")


BROKEN = {
    "raises": ("raise RuntimeError('no such\\n license')", "fails to import: RuntimeError: no such license"),
    "exits": ("import sys\nsys.exit(3)", "fails to import: SystemExit: 3"),
    "imports": ("import a_library_that_is_absent", "No module named 'a_library_that_is_absent'"),
    "lacks": ("", "has no attribute 'INFO'"),
    "gives": ("INFO = {'name': 'gives'}", "provides dict at gives_plugin:INFO, not a BackendInfo"),
    "renamed": (
        "from delegate.backend.info import Availability, BackendInfo\n"
        "INFO = BackendInfo('other', '', 'a:B', 'a:C', lambda: Availability(True), '')",
        "has the name 'other', but its entry point is 'renamed': both must be the same",
    ),
    "probing": (
        "from delegate.backend.info import BackendInfo\n"
        "INFO = BackendInfo('probing', '', 'a:B', 'a:C', lambda: 1 / 0, '')",
        "fails when it is probed: ZeroDivisionError",
    ),
    "probed": (
        "from delegate.backend.info import BackendInfo\n"
        "INFO = BackendInfo('probed', '', 'a:B', 'a:C', lambda: True, '')",
        "returns bool, not Availability, when probed",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(site: Site, name: str) -> None:
    source, sentence = BROKEN[name]
    site.module(f"{name}_plugin", source)
    site.distribution(f"{name}-dist", "0.3", {name: f"{name}_plugin:INFO"})
    site.backend("adder")
    registry = Registry()
    state = registry.state(name)
    assert state.state is PluginState.BROKEN
    assert sentence in state.detail
    with pytest.raises(BackendBroken) as caught:
        registry.aot(name)
    message = str(caught.value)
    assert f"backend {name!r} of {name}-dist 0.3 is broken" in message
    assert "\n" not in message
    if state.traceback:
        assert f"`delegate backends {name}` shows the traceback" in message
        assert "Traceback (most recent call last)" in state.traceback
    assert registry.state("adder").state is PluginState.OK


@pytest.mark.extended
def test_broken_and_not_asked_for_is_one_warning(site: Site) -> None:
    site.module("bad_plugin", "1 / 0")
    site.distribution("bad-dist", "1.0", {"bad": "bad_plugin:INFO"})
    site.backend("adder")
    registry = Registry()
    registry.aot("adder")  # asks for another: no warning
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        registry.available()
        registry.available()
    sentences = [str(w.message) for w in caught if "'bad'" in str(w.message)]
    assert len(sentences) == 1
    assert "backend 'bad' of bad-dist 1.0 is broken" in sentences[0]


@pytest.mark.parametrize(
    ("aot", "sentence"),
    [
        ("no_such_module:Aot", "fails to import no_such_module:Aot: ModuleNotFoundError"),
        ("collections:Aot", "AttributeError"),
        ("collections", "not of the form 'package.module:Class'"),
        ("collections:OrderedDict", "not a subclass of delegate.backend.aot.Backend"),
        ("collections:abc", "not a subclass of delegate.backend.aot.Backend"),
    ],
)
def test_broken_half(site: Site, aot: str, sentence: str) -> None:
    site.module(
        "half_plugin",
        f"""
        from delegate.backend.info import Availability, BackendInfo
        INFO = BackendInfo("half", "", {aot!r}, "half:Runtime", lambda: Availability(True), "")
        """,
    )
    site.distribution("half-dist", "1.0", {"half": "half_plugin:INFO"})
    registry = Registry()
    with pytest.raises(BackendBroken) as caught:
        registry.aot("half")
    assert sentence in str(caught.value)
    assert registry.state("half").state is PluginState.BROKEN


def test_two_owners_of_one_name(site: Site) -> None:
    for owner, version in (("first-dist", "1.0"), ("second-dist", "2.0")):
        site.distribution(owner, version, {"twice": "twice_plugin:INFO"})
    site.backend("adder")
    registry = Registry()
    assert registry.state("twice").state is PluginState.BROKEN
    with pytest.raises(BackendBroken) as caught:
        registry.runtime("twice")
    assert "first-dist 1.0" in str(caught.value)
    assert "second-dist 2.0" in str(caught.value)
    assert registry.aot("adder").name == "adder"


def test_a_part_without_a_package_of_the_compiler(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    site.module("half", "import pydantic")
    half = BackendInfo("half", "", "half:Aot", "half:Runtime", probe, "")
    with pytest.raises(BackendUnavailable) as caught:
        load_part(half, "aot")
    what = "the AOT part of backend 'half' needs pydantic, which is not installed"
    assert str(caught.value) == f"{what}: pip install 'delegate[aot]'"


def test_one_distribution_seen_twice_is_no_conflict(site: Site) -> None:
    site.backend("adder", owner="Adder.Dist")
    site.distribution("adder-dist", "1.0", {"adder": "adder_plugin:INFO"}, suffix="egg-info")
    assert Registry().state("adder").state is PluginState.OK


@pytest.mark.parametrize("value", ["explosive", " other , explosive ", "Explosive", "*"])
def test_blocked(site: Site, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    site.module("explosive_plugin", "raise RuntimeError('imported')")
    site.distribution("explosive", "1.0", {"explosive": "explosive_plugin:INFO"})
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", value)
    registry = Registry()
    assert registry.state("explosive").state is PluginState.BLOCKED
    assert "explosive_plugin" not in sys.modules
    with pytest.raises(BackendUnavailable, match="blocked by the environment variable DELEGATE_BLOCK_PLUGINS"):
        registry.aot("explosive")


def test_register(site: Site) -> None:
    site.backend("adder")
    site.module("mine", HALVES.replace("{name}", "mine"))
    registry = Registry()
    registry.register(info("mine"))
    assert registry.state("mine").owner == "this process"
    assert registry.aot("mine").name == "mine"
    assert "mine" not in Registry().names()
    for taken in ("mine", "adder"):
        with pytest.raises(BackendError, match=f"backend '{taken}' is already registered"):
            registry.register(info(taken))
    with pytest.raises(BackendBroken, match="takes a BackendInfo, not str"):
        registry.register("adder")  # type: ignore[arg-type]


ODD_INFOS: dict[str, tuple[dict[str, object], str]] = {
    "name of another type": ({"name": 5}, "BackendInfo.name should be text, not 5"),
    "no name": ({"name": ""}, "BackendInfo.name should be letters, digits"),
    "name of two lines": ({"name": "odd\nodd"}, "BackendInfo.name should be letters, digits"),
    "name of the kernels": ({"name": "portable"}, "BackendInfo.name should be other than the name"),
    "pair for a path": ({"aot": ("a", "B")}, "BackendInfo.aot should be text"),
    "no install hint": ({"install": None}, "BackendInfo.install should be text, not None"),
    "version as text": ({"api_version": "1.0"}, "BackendInfo.api_version should be two whole numbers"),
    "version of texts": ({"api_version": ("1", "0")}, "BackendInfo.api_version should be two whole numbers"),
    "preference": ({"preference": "high"}, "BackendInfo.preference should be a whole number, not 'high'"),
    "noise as text": ({"noise": "a line"}, "BackendInfo.noise should be a tuple of regular expressions"),
    "noise that is no expression": ({"noise": ("(",)}, "BackendInfo.noise should be a tuple of regular expressions"),
}
ODD_PROBES: dict[str, tuple[dict[str, object], str]] = {
    "ok as text": ({"ok": "no"}, "Availability.ok should be True or False, not 'no'"),
    "no reason": ({"ok": False, "reason": None}, "Availability.reason should be text, not None"),
    "versions": ({"ok": True, "versions": None}, "Availability.versions should be a mapping"),
    "devices as text": ({"ok": True, "devices": "CPU"}, "Availability.devices should be a tuple of text values"),
    "devices as numbers": ({"ok": True, "devices": (0, 1)}, "Availability.devices should be a tuple of text values"),
    "stand-in": ({"ok": True, "stand_in": 1}, "Availability.stand_in should be True or False, not 1"),
}


@pytest.mark.parametrize("name", ODD_INFOS)
def test_odd_infos(site: Site, name: str) -> None:
    fields, sentence = ODD_INFOS[name]
    given = {"name": "odd", "description": "", "aot": "a:B", "runtime": "a:C", "probe": None, "install": "", **fields}
    site.module("odd_plugin", f"from delegate.backend.info import BackendInfo\nINFO = BackendInfo(**{given!r})")
    site.distribution("odd-dist", "1.0", {"odd": "odd_plugin:INFO"})
    state = Registry().state("odd")
    assert state.state is PluginState.BROKEN
    assert f"backend 'odd' of odd-dist 1.0 is broken: it fails to import: TypeError: {sentence}" in state.detail
    assert "odd_plugin.py" in state.traceback


@pytest.mark.parametrize("name", ODD_PROBES)
def test_odd_probes(name: str) -> None:
    fields, sentence = ODD_PROBES[name]
    registry = Registry()
    odd = BackendInfo("odd", "", "a:B", "a:C", lambda: Availability(**fields), "")  # type: ignore[arg-type]
    registry.register(odd)
    assert f"it fails when it is probed: TypeError: {sentence}" in registry.state("odd").detail


def test_a_reason_of_several_lines_is_told_on_one() -> None:
    registry = Registry()
    registry.register(BackendInfo("odd", "", "a:B", "a:C", lambda: Availability(False, "no\n  driver"), "install it"))
    assert registry.state("odd").detail == "backend 'odd' is not available here: no driver"


def test_registry_is_free_of_torch_and_pydantic() -> None:
    code = (
        "import sys, delegate.registry as r; r.default_registry().states(); r.default_registry().kernels.tables();"
        "print([m for m in ('torch', 'pydantic', 'rich', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
