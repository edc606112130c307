"""Plugins whose library crashes, exits or hangs, with no configuration: a separate process bears it, once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import Graph

import delegate
from delegate.backend import compiler_process, isolated
from delegate.backend.isolated import Outcome, Outcomes
from delegate.cache.runtime.store import Store
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.processes import limits
from delegate.program.file import serialize
from delegate.registry import default_registry
from delegate.selection import open_artifact_cache, select
from delegate.testing import assert_same
from tests.support.plugins import Site
from tests.support.sampling import only

# Adds, and ends its process at other operators. Its blob is the process in which it was compiled.
HALVES = """
import ctypes, os, time
import numpy as np
from delegate.backend.aot import Backend, Options, PreprocessResult
from delegate.runtime.backend import BackendRuntime, Delegate
from delegate.verdict import YES, Reason, no

ENDS = {
    "aten.sub.Tensor": lambda: os._exit(7),
    "aten.div.Tensor": lambda: time.sleep(600),
}

class Aot(Backend):
    name = "ends"

    def check(self, node):
        if str(node.target) == "aten.maximum.default":
            ctypes.string_at(0)
        taken = str(node.target) in ("aten.add.Tensor", *ENDS)
        return YES if taken else no(Reason.OPERATOR, "it has others")

    def preprocess(self, region):
        for node in region.calls:
            ENDS.get(str(node.target), lambda: None)()
        constants = [c.tolist() for c in region.constants.values()]
        return PreprocessResult(str(os.getpid()).encode(), {"constants": constants})

class Sum(Delegate):
    def __init__(self, constants):
        self.constants = constants

    def execute(self, inputs, outputs):
        np.add(*inputs, *self.constants, out=outputs[0])

class Runtime(BackendRuntime):
    def init(self, blob, compile_specs):
        return Sum([np.array(c, np.float32) for c in compile_specs["constants"]])
"""
A, B = torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 0.5)


@pytest.fixture
def ends(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The plugin, the one backend that is installed; and an empty cache."""
    site.backend("ends")
    site.module("ends_halves", HALVES)
    registry = default_registry()
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", ",".join({*registry.names()} - {"ends"}))
    default_registry.cache_clear()
    return site


def lower(function: Any, request: Any = None) -> Any:
    class Net(nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> Any:
            return function(a, b)

    return delegate.to_backend(torch.export.export(Net(), (A, B)), request, placement=delegate.ByPreference())


def without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process forget all outcomes, and start no other."""

    def refuse(*arguments: Any) -> None:
        raise AssertionError("a process is started")

    Outcomes._RECORDED.clear()
    default_registry.cache_clear()
    monkeypatch.setattr(compiler_process, "_take_idle", refuse)
    monkeypatch.setattr(compiler_process, "_Compiler", refuse)


def backends_of(program: Any) -> dict[str, str]:
    return {n.name: n.backend for n in program.report.nodes}


def test_a_compiler_that_ends_its_process(ends: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a + b) - b

    program = lower(function, "ends")
    assert backends_of(program) == {"add": "ends", "sub": "portable"}
    assert "its compiler ended with exit code 7" in str(program.report)
    with delegate.load(serialize(program.program)) as loaded:
        assert_same(loaded(A.numpy(), B.numpy()), function(A, B))
    without_a_process(monkeypatch)
    program = lower(function, "ends")
    assert backends_of(program) == {"add": "ends", "sub": "portable"}
    assert "its compiler ended with exit code 7 in an earlier lowering; run `delegate cache clear`" in str(
        program.report
    )


@pytest.mark.slow
def test_a_compiler_that_hangs(ends: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a / b

    program = lower(function, CapabilityPartitioner("ends", time_limit=2))
    assert backends_of(program) == {"div": "portable"}
    assert "its compiler gave no answer in 2 s" in str(program.report)
    without_a_process(monkeypatch)
    program = lower(function, CapabilityPartitioner("ends", time_limit=2))
    assert "gave no answer in 2 s in an earlier lowering" in str(program.report)
    with pytest.raises(AssertionError, match="a process is started"):
        lower(function, CapabilityPartitioner("ends", time_limit=3))  # more time than it had


@pytest.mark.extended
def test_a_check_that_ends_its_process(ends: Site) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.maximum(a + b, b)

    program = lower(function, "ends")
    assert backends_of(program) == {"add": "ends", "maximum": "portable"}
    assert "it was killed by SIGSEGV when it was queried about it" in str(program.report)


class Biased(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("bias", torch.full((2, 3), value))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a + self.bias


SIBLINGS = """

class Twin(Aot):
    name = "twin"

def __getattr__(name):
    if not name.startswith("Made_"):
        raise AttributeError(name)
    return type("Made", (Aot,), {"name": name})

class Choice(Options):
    level: int = 0

Aot.Options = Choice
"""
INFO = """
from delegate.backend.info import Availability, BackendInfo

def info(name, aot):
    return BackendInfo(name, "", f"ends_halves:{aot}", "ends_halves:Runtime", lambda: Availability(True), "")

ENDS, TWIN = info("ends", "Aot"), info("twin", "Twin")
MADE_1, MADE_2 = info("Made_1", "Made_1"), info("Made_2", "Made_2")
"""


def partitioner(name: str, limit: float = 60.0, **options: Any) -> CapabilityPartitioner:
    return CapabilityPartitioner(name, options, time_limit=limit)


# What was safe -> what is not known to be safe by that. Versions and code are in the identity: see the tests of caches.
OTHERS = {
    "class": (partitioner("ends"), partitioner("twin")),
    "name": (partitioner("Made_1"), partitioner("Made_2")),
    "option": (partitioner("ends"), partitioner("ends", level=1)),
    "option of an instance": (partitioner("ends"), partitioner("ends:other", level=1)),
    "less time": (partitioner("ends"), partitioner("ends", 30)),
}
EQUALS = {
    "itself": (partitioner("ends"), partitioner("ends")),
    "another instance": (partitioner("ends"), partitioner("ends:other")),
    "more time": (partitioner("ends"), partitioner("ends", 90)),
}


@pytest.fixture
def siblings(ends: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Several backends of the same distribution, of one module."""
    monkeypatch.delenv("DELEGATE_BLOCK_PLUGINS")
    ends.module("ends_plugin", INFO)
    ends.module("ends_halves", HALVES + SIBLINGS)
    names = ("ENDS", "TWIN", "MADE_1", "MADE_2")
    entries = "\n".join(f"{name.capitalize() if '_' in name else name.lower()} = ends_plugin:{name}" for name in names)
    (ends.root / "ends_dist-1.0.dist-info" / "entry_points.txt").write_text(f"[delegate.backends]\n{entries}\n")
    default_registry.cache_clear()
    return ends


def identity(request: CapabilityPartitioner) -> str | None:
    """What every cache and every memory of outcomes knows a backend by."""
    selection = select(request, None, default_registry())
    cache = open_artifact_cache(selection, default_registry())
    assert cache is not None
    return cache.identity(request.backend)


@pytest.mark.extended
@pytest.mark.parametrize("what", only(["class", "less time"], OTHERS))
def test_an_outcome_is_of_one_backend(siblings: Site, what: str) -> None:
    tried, other = OTHERS[what]
    assert compiled_in(1.0, tried) != os.getpid()
    assert compiled_in(2.0, tried) == os.getpid()
    assert compiled_in(3.0, other) != os.getpid()
    assert compiled_in(4.0, other) == os.getpid()
    assert (identity(other) == identity(tried)) == (what == "less time")


@pytest.mark.parametrize("what", only(["another instance"], EQUALS))
def test_an_outcome_is_of_all_instances(siblings: Site, what: str) -> None:
    tried, other = EQUALS[what]
    assert compiled_in(1.0, tried) != os.getpid()
    assert compiled_in(2.0, other) == os.getpid()
    assert identity(tried) == identity(other)


def compiled_in(value: float, request: Any = None, **options: Any) -> int:
    """The process in which a region with this constant was compiled."""
    placement = delegate.ByPreference()  # without a list, estimates would choose kernels
    program = delegate.to_backend(torch.export.export(Biased(value), (A,)), request, placement=placement, **options)
    assert_same(program(A), A + value)
    (spec,) = program.program.delegates
    return int(bytes(program.program.segments[spec.segment]))


@pytest.mark.extended
def test_a_known_structure_is_compiled_here(ends: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled_in(1.0)
    assert first != os.getpid()
    without_a_process(monkeypatch)
    assert compiled_in(2.0) == os.getpid()
    assert compiled_in(1.0) == first  # the artifact of then


@pytest.mark.extended
def test_large_weights_have_more_time(ends: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 seconds may be too few for a model of some GiB, which a plugin converts and opens."""
    given: dict[str, float] = {}
    query = compiler_process.query

    def record(part: Any, question: str, subject: Any, names: Any, limit: float) -> Any:
        given[question] = limit
        return query(part, question, subject, names, limit)

    monkeypatch.setattr(compiler_process, "query", record)
    monkeypatch.setattr(limits, "_BYTES_PER_SECOND", 8)
    compiled_in(1.0, partitioner("ends"))
    assert given == {"make": 60.0, "check": 60.0, "preprocess": 60.0}
    compiled_in(2.0)
    assert given == {"make": 10.0, "check": 10.0, "preprocess": 10.0 + 24 / 8}


@pytest.mark.slow
def test_checks_of_a_graph_are_linear(ends: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The structure of a graph is read once in a plan, however many nodes the graph has."""

    def structures(count: int) -> int:
        found = []
        structure_of = isolated.graph_structure
        with monkeypatch.context() as patched:
            patched.setattr(isolated, "graph_structure", lambda graph: found.append(graph) or structure_of(graph))
            lower(lambda a, b: sum([a + b] * count))
        return len(found)

    assert structures(10) == structures(40) <= 2


@pytest.mark.slow
def test_a_graph_that_cannot_be_sent_is_tried_once(ends: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process then checks all its nodes, and compiles them."""
    tried: list[Any] = []
    pack = compiler_process.pack

    def refuse(subject: Any) -> Any:
        if subject is None or isinstance(subject, tuple):
            return pack(subject)
        tried.append(subject)
        raise TypeError("cannot pickle it")

    monkeypatch.setattr(compiler_process, "pack", refuse)
    assert compiled_in(1.0) == os.getpid()
    program = lower(lambda a, b: (a + b) + torch.erf(a))
    assert backends_of(program) == {"add": "ends", "erf": "portable", "add_1": "ends"}
    assert len([subject for subject in tried if isinstance(subject, Graph)]) == 2


@pytest.mark.slow
def test_without_a_cache_this_process_remembers(ends: Site) -> None:
    assert compiled_in(1.0, cache=False) != os.getpid()
    assert compiled_in(1.0, cache=False) == os.getpid()
    assert not list((Path(os.environ["DELEGATE_CACHE"])).rglob("artifacts/*"))


def test_it_can_be_switched_off(ends: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_process(monkeypatch)
    assert compiled_in(1.0, CapabilityPartitioner("ends", isolate="none")) == os.getpid()


def test_what_is_recorded(tmp_path: Path) -> None:
    crash, safe = Outcome("was killed by SIGSEGV"), Outcome("", 2.0)
    store = Store(tmp_path)
    outcomes = Outcomes(lambda: "identity", store)
    for structure, outcome in {"crash": crash, "safe": safe, "killed": Outcome("was killed by SIGKILL")}.items():
        outcomes.put(structure, outcome)
    for recorded in (outcomes, Outcomes(lambda: "identity", store)):
        assert (recorded.get("crash", 1.0), recorded.get("safe", 2.0), recorded.get("safe", 1.0)) == (crash, safe, None)
        assert recorded.get("killed", 1.0) is recorded.get("other", 1.0) is None
        Outcomes._RECORDED.clear()
    key = outcomes._key("crash")
    assert key is not None
    for change in ({"ending": 3}, {"limit": -1.0}, {"limit": 10**400}, {"limit": "1"}):
        store.put(key, crash._asdict() | change, [])
        assert outcomes.get("crash", 1.0) is None  # a miss
