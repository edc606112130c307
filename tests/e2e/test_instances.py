"""Several instances of one backend in a program, each with a name and options of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import delegate
from delegate.backend.info import BackendAlias
from delegate.config import load_config
from delegate.errors import BackendNotFound, ConfigError
from delegate.registry import Registry
from delegate.testing import assert_same
from tests.support.vector_backend import INFO

MODEL = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Softmax(-1)).eval()
X = torch.randn(2, 8)
CONFIG = {
    "backends": [
        {"name": "xnnpack:one", "options": {"threads": 1}},
        {"name": "xnnpack:two", "options": {"threads": 2}, "exclude": ["aten._softmax.default"]},
        "xnnpack",
    ],
    "partitioning": {"pins": {"0": "xnnpack:two", "1": "xnnpack:one", "2": "xnnpack"}},
}
NAMES = ["xnnpack:two", "xnnpack:one", "xnnpack", "xnnpack:one"]


@pytest.fixture(scope="module")
def program():
    return delegate.to_backend(torch.export.export(MODEL, (X,)), config=CONFIG)


def test_each_has_its_own_name_in_reports_and_plans(program):
    assert [n.backend for n in program.report.nodes] == NAMES
    assert sorted(p.name for p in program.report.partitions) == [
        "xnnpack_0", "xnnpack_one_0", "xnnpack_one_1", "xnnpack_two_0",
    ]  # fmt: skip
    assert [p.backend for p in program.plan.partitions] == NAMES
    assert_same(program(X), MODEL(X))


def test_each_has_its_own_options(program):
    assert {s.backend: s.compile_specs["threads"] for s in program.program.delegates} == {
        "xnnpack:one": 1, "xnnpack:two": 2, "xnnpack": None,
    }  # fmt: skip


def test_a_plan_is_kept(program):
    again = delegate.to_backend(torch.export.export(MODEL, (X,)), config=CONFIG, placement=program.plan)
    assert again.plan == program.plan


@pytest.mark.parametrize("isolate", [False, True])
def test_options_at_load_are_of_one_instance(program, tmp_path, isolate):
    program.save(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg", options={"xnnpack:one": {"threads": 3}}, isolate=isolate) as loaded:
        threads = {(s.backend, s.compile_specs["threads"]) for s in loaded.program.delegates}
        assert threads == {("xnnpack:one", 3), ("xnnpack:two", 2), ("xnnpack", None)}
        assert_same(loaded(X.numpy()), MODEL(X))
    with pytest.raises(ConfigError, match="'xnnpack:three', but the program has no partition of it"):
        delegate.load(tmp_path / "model.dlg", options={"xnnpack:three": {"threads": 3}})


def test_names_of_partitions_are_never_the_same():
    """What stands for a colon may be a part of another name."""
    names = ["xnnpack:one", "xnnpack:one_0"]
    again = delegate.to_backend(
        torch.export.export(MODEL, (X,)),
        config={"backends": names, "partitioning": {"pins": {"0": names[0], "1": names[1], "2": names[0]}}},
    )
    made = [p.name for p in again.report.partitions]
    assert len(set(made)) == len(made) == 3


@pytest.mark.parametrize(
    ("backends", "error", "message"),
    [
        (
            ["xnnpack:one", "xnnpack:one"],
            ConfigError,
            "named twice: give one of them another name, e.g. xnnpack:second",
        ),
        (["xnnpak:one"], BackendNotFound, "no backend is named 'xnnpak': did you mean 'xnnpack'"),
        (["xnnpack:"], BackendNotFound, "no backend is named 'xnnpack:'"),
        (["xnnpack:a:b"], BackendNotFound, "no backend is named 'xnnpack:a:b'"),
    ],
)
def test_bad_names(backends, error, message):
    with pytest.raises(error, match=message):
        delegate.to_backend(torch.export.export(MODEL, (X,)), backends)


def test_options_of_instances_are_checked():
    wrong = {"backends": ["xnnpack", {"name": "xnnpack:a", "options": {"thread": 1}}, "xnnpack"]}
    with pytest.raises(ConfigError, match="thread") as raised:
        load_config(wrong)
    assert "give one of them another name, e.g. xnnpack:second" in str(raised.value)


def test_an_instance_of_an_alias_is_one_of_what_it_stands_for():
    registry = Registry()
    registry.register(INFO)
    registry.register(BackendAlias("fast", "one that runs", (INFO.name,)))
    assert registry.resolve("fast:mine") == "vector:mine"
    assert registry.state("vector:mine").name == "vector:mine"
    assert registry.aot("vector:mine") is registry.aot("vector")
