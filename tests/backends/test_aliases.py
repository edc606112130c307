"""A name for the best of several backends: which one it means, and where it may stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import delegate
from delegate.backend.info import Availability, BackendAlias, BackendInfo
from delegate.config import load_config
from delegate.errors import BackendBroken, BackendUnavailable, ConfigError
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.plugins import PluginState
from delegate.registry import Registry, default_registry
from delegate.testing import assert_same
from tests.support.plugins import HALVES
from tests.support.vector_backend import INFO

HERE, STAND_IN, ABSENT = Availability(True), Availability(True, stand_in=True), Availability(False, "no device")
X = torch.linspace(-1, 1, 6)


def registry_of(first: Availability, second: Availability) -> Registry:
    """Two backends of one kind, the name `best` for them, and `vector`, which really runs."""
    registry = Registry()
    _register(registry, first, second)
    return registry


def _register(registry: Registry, first: Availability, second: Availability) -> None:
    for name, found in (("first", first), ("second", second)):
        registry.register(BackendInfo(name, name, "mine:Aot", "mine:Runtime", lambda found=found: found, "install it"))
    registry.register(INFO)
    registry.register(BackendAlias("best", "the best of two", ("first", "second")))
    registry.register(BackendAlias("fast", "one that runs", ("first", "vector")))


@pytest.mark.parametrize(
    ("first", "second", "meant", "state"),
    [
        (HERE, HERE, "first", PluginState.OK),
        (HERE, STAND_IN, "first", PluginState.OK),
        (STAND_IN, HERE, "second", PluginState.OK),
        (STAND_IN, STAND_IN, "second", PluginState.OK),
        (STAND_IN, ABSENT, "first", PluginState.OK),
        (ABSENT, ABSENT, "second", PluginState.UNAVAILABLE),
    ],
)
def test_which_one_it_means(first, second, meant, state):
    registry = registry_of(first, second)
    assert registry.resolve("best") == meant
    assert registry.resolve(meant) == meant
    assert registry.state("best").state is state


def test_where_none_is_here_each_says_why():
    with pytest.raises(BackendUnavailable, match=r"'best' stands for.*'first' is not available.*'second' is not"):
        registry_of(ABSENT, ABSENT).aot("best")


def test_of_several_that_one_name_stands_for_only_the_best_is_used_unasked(site):
    site.module("mine", HALVES.replace("{name}", "first"))
    assert "first" in registry_of(HERE, HERE).available()
    assert not {"second", "best"} & set(registry_of(HERE, HERE).available())


def test_backends_that_are_not_installed_are_passed_over():
    registry = registry_of(HERE, HERE)
    registry.register(BackendAlias("some", "the best of three", ("nobody", "second", "first")))
    assert registry.resolve("some") == "second"


@pytest.mark.parametrize("of", [("nobody",), ("best",)])
def test_it_stands_for_backends_alone(of):
    registry = registry_of(HERE, HERE)
    registry.register(BackendAlias("wrong", "wrong", of))
    with pytest.raises(BackendBroken, match=f"stands for '{of[0]}', which is not a backend"):
        registry.state("best") and registry.info("wrong")


@pytest.fixture
def vector() -> Iterator[Registry]:
    """The registry of this process, with `fast`, which means `vector` here."""
    default_registry.cache_clear()
    _register(default_registry(), ABSENT, ABSENT)
    yield default_registry()
    default_registry.cache_clear()


@pytest.mark.usefixtures("vector")
@pytest.mark.parametrize(
    "asked",
    [
        {"backends": "fast"},
        {"config": {"backends": ["fast"]}},
        {"config": {"backends": ["fast"], "partitioning": {"pins": {"*": "fast"}}}},
        {"backends": CapabilityPartitioner("fast")},
    ],
)
def test_plans_and_reports_hold_the_real_name(asked):
    program = delegate.to_backend(torch.export.export(nn.Tanh(), (X,)), **asked)
    assert {n.backend for n in program.report.nodes} == {"vector"}
    assert {name for n in program.report.nodes for name in n.verdicts} == {"vector"}
    assert_same(program(X), X.tanh())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"backends": [{"name": "fast", "options": {"level": 2}}]}, "'fast' has no options.*e.g. vector"),
        ({"backends": ["fast", "vector"]}, "'vector', which 'fast' means here, appears twice"),
        ({"backends": ["vector", "fast"]}, "'vector', which 'fast' means here, appears twice"),
    ],
)
def test_what_a_configuration_cannot_say_of_it(vector, config, message):
    with pytest.raises(ConfigError, match=message):
        load_config(config, registry=vector)


def test_options_beside_an_alias_in_the_call(vector):
    with pytest.raises(ConfigError, match=r"'fast' has no options.*e.g. vector"):
        delegate.to_backend(torch.export.export(nn.Tanh(), (X,)), CapabilityPartitioner("fast", {"level": 2}))


@pytest.mark.parametrize("changes", [{"stands_for": ()}, {"stands_for": "first"}, {"stands_for": ("best",)}])
def test_an_alias_that_is_written_wrong(changes):
    with pytest.raises((TypeError, ValueError), match="stands_for"):
        replace(BackendAlias("best", "", ("first",)), **changes)
