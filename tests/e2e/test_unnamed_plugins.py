"""Plugins that nobody named: whatever they do, and wherever, they are dropped with a note, after one fault."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate import selection
from delegate.backend import compiler_process
from delegate.backend.isolated import Outcomes
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.placement import measured
from delegate.processes import probing
from delegate.processes import process as processes
from delegate.registry import default_registry
from delegate.testing import assert_same
from tests.support.plugins import Site
from tests.support.sampling import only

BY_PREFERENCE = delegate.ByPreference()  # of all backends, so that estimates do not choose another one
LIMIT = 3.0  # seconds of a plugin that nobody named, in these tests

# One plugin that adds. Each place in it calls `at`, which does wrong at the place and in the way that a file says.
FAULTS = """
import ctypes, os, pathlib, sys, time

HERE = pathlib.Path(__file__).parent

class Panic(BaseException):
    pass

def bang(*args):
    raise RuntimeError("bang")

def panic(*args):
    raise Panic("as libraries written in Rust raise it")

def spin(*args):
    while True:
        pass

WAYS = {
    "raises": bang, "panics": panic, "exits": lambda *args: sys.exit(3), "ends": lambda *args: os._exit(0),
    "crashes": lambda *args: ctypes.string_at(0), "hangs": lambda *args: time.sleep(600), "spins": spin,
    "returns nonsense": lambda *args: object(),
}

def at(place, *args, right=None):
    where, _, way = (HERE / "fault").read_text().partition(": ")
    if where != place:
        return right
    with (HERE / "faults").open("a") as file:
        file.write(way + "\\n")
    wrong = WAYS[way](*args)
    return right if wrong is None else wrong
"""
INFO = """
from evil_faults import at
from delegate.backend.info import Availability, BackendInfo

def probe():
    return at("probe", right=Availability(True))

at("info")
INFO = BackendInfo("evil", "", "evil_aot:Evil", "evil_runtime:Evil", probe, "", preference=9)
"""
AOT = """
from evil_faults import at
from delegate.backend.aot import Backend, PreprocessResult
from delegate.verdict import YES, Reason, no

at("aot")

class Evil(Backend):
    name = "evil"
    check_uses_library = False  # which is believed of backends that are named

    def __init__(self, options):
        super().__init__(options)
        at("init")

    @property
    def preserve_ops(self):
        return at("preserve_ops", right=frozenset())

    def cache_key(self):
        return at("cache_key", right="key")

    def check(self, node):
        return at("check", node, right=YES if str(node.target) == "aten.add.Tensor" else no(Reason.OPERATOR))

    def claims(self, node):
        return at("claims", node, right=())

    def preprocess(self, region):
        return at("preprocess", region.calls[0], right=PreprocessResult(b"sum"))

    def check_artifact(self, region, artifact):
        at("check_artifact")
"""
RUNTIME = """
import numpy as np
from evil_faults import at
from delegate.runtime.backend import BackendRuntime, Delegate

at("runtime")

class Sum(Delegate):
    def prepare(self, inputs, outputs):
        at("prepare")

    def execute(self, inputs, outputs):
        at("execute")
        np.add(*inputs, out=outputs[0])

    def close(self):
        at("close")

class Evil(BackendRuntime):
    def __init__(self):
        at("runtime init")

    def init(self, blob, compile_specs):
        return at("open", right=Sum())
"""

ENDS = ("panics", "ends", "crashes", "hangs", "spins")
ALL = ("raises", "exits", *ENDS)
SOME = ("raises", "panics", "ends", "hangs")  # of places that are reached in the same way
PLACES = {
    "info": SOME,
    "probe": (*SOME, "returns nonsense"),
    "aot": SOME,
    "init": SOME,
    "preserve_ops": (*SOME, "returns nonsense"),
    "cache_key": SOME,
    "claims": (*ALL, "returns nonsense"),
    "check": (*ALL, "returns nonsense"),
    "preprocess": (*ALL, "returns nonsense"),
    "check_artifact": ("ends", "hangs"),
    "runtime": SOME,
    "runtime init": SOME,
    "open": ("crashes", "hangs"),
    "prepare": ("ends", "hangs"),
    "close": ("ends", "hangs"),
}
CASES = [(place, way) for place, ways in PLACES.items() for way in ways]
QUICK = [("init", "ends"), ("claims", "hangs"), ("check", "raises"), ("preprocess", "exits"), ("open", "crashes")]


class Net(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.relu(a + b)) * 2 + b


ARGS = torch.arange(6.0).reshape(2, 3) - 3, torch.full((2, 3), 0.5)


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Net(), ARGS)


@pytest.fixture
def evil(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The plugin, which nothing but XNNPACK is beside."""
    for name, source in {"faults": FAULTS, "info": INFO, "aot": AOT, "runtime": RUNTIME}.items():
        site.module(f"evil_{name}", source)
    site.distribution("evil-dist", "1.0", {"evil": "evil_info:INFO"})
    (site.root / "fault").write_text("")
    (site.root / "faults").write_text("")
    default_registry.cache_clear()
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", ",".join({*default_registry().names()} - {"evil", "xnnpack"}))
    for module in (selection, measured):
        monkeypatch.setattr(module, "UNNAMED_LIMIT", LIMIT)
    for question in ("probe", "use"):
        monkeypatch.setitem(probing.LIMITS, question, LIMIT)
    default_registry.cache_clear()
    Outcomes._RECORDED.clear()
    end_idle_processes()  # of other tests
    yield site
    end_idle_processes()


def end_idle_processes() -> None:
    while compiler_process._IDLE:
        compiler_process._IDLE.pop().process.end()


def faults(site: Site) -> int:
    """How often the plugin has done wrong."""
    return len((site.root / "faults").read_text().splitlines())


def assert_dropped(program: Any) -> None:
    assert_same(program(*ARGS), Net()(*ARGS))
    assert {n.backend for n in program.report.nodes} == {"xnnpack"}
    assert not any("evil" in n.name for n in program.report.nodes)
    (note,) = (note for note in program.report.notes if "evil" in note)
    assert note.startswith("not used: ")


@pytest.mark.extended
def test_without_a_fault(evil: Site) -> None:
    program = delegate.to_backend(exported(), placement=BY_PREFERENCE)
    assert {n.backend for n in program.report.nodes} == {"evil", "xnnpack"}
    assert_same(program(*ARGS), Net()(*ARGS))


@pytest.mark.parametrize("case", only(QUICK, CASES), ids=" ".join)
def test_it_is_dropped(evil: Site, case: tuple[str, str]) -> None:
    place, way = case
    (evil.root / "fault").write_text(f"{place}: {way}")
    with pytest.warns(RuntimeWarning, match="evil") as caught:
        program = delegate.to_backend(exported(), placement=BY_PREFERENCE)
    assert len(caught) == 1
    assert_dropped(program)
    done = faults(evil)
    assert way not in ENDS or done == 1  # nothing waits for it twice, or lets it end two processes
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning is enough, and one wait
        assert_dropped(delegate.to_backend(exported(), placement=BY_PREFERENCE))
    assert way not in ENDS or faults(evil) == done


@pytest.mark.extended
def test_it_is_used_again_after_it_was_edited(evil: Site) -> None:
    (evil.root / "fault").write_text("init: raises")
    with pytest.warns(RuntimeWarning, match="fails with its default options: RuntimeError: bang"):
        assert_dropped(delegate.to_backend(exported(), placement=BY_PREFERENCE))
    (evil.root / "fault").write_text("")
    default_registry.cache_clear()
    with pytest.warns(RuntimeWarning, match="evil"):
        assert_dropped(delegate.to_backend(exported(), placement=BY_PREFERENCE))  # the answer is cached
    evil.module("evil_aot", f"{AOT}# edited")
    default_registry.cache_clear()
    assert "evil" in {n.backend for n in delegate.to_backend(exported(), placement=BY_PREFERENCE).report.nodes}


@pytest.mark.slow
def test_a_measured_plan_that_hangs(evil: Site) -> None:
    (evil.root / "fault").write_text("execute: hangs")
    program = delegate.to_backend(exported(), placement=delegate.Measured(budget=20))
    assert_same(program(*ARGS), Net()(*ARGS))
    assert {n.backend for n in program.report.nodes} == {"xnnpack"}
    assert f"gave no answer in {LIMIT:g} s" in str(program.report)


@pytest.mark.extended
def test_it_runs_no_method_if_it_fails_in_one(evil: Site) -> None:
    rows = "{region.outputs[0].meta['val'].shape[0]}"
    evil.module("evil_aot", AOT.replace('at("preprocess"', f'at(f"compile {rows} rows"'))
    (evil.root / "fault").write_text("compile 5 rows: raises")
    more = tuple(torch.ones(5, 3) for _ in ARGS)
    with pytest.warns(RuntimeWarning, match="evil failed to compile"):
        program = delegate.to_backend(
            {"one": exported(), "two": torch.export.export(Net(), more)}, placement=BY_PREFERENCE
        )
    assert {n.backend for n in program.report.nodes} == {"xnnpack"}
    assert {p.method for p in program.report.partitions} == {"one", "two"}
    assert_same(program.method("one")(*ARGS), Net()(*ARGS))


def test_without_processes_its_exceptions_drop_it(evil: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(processes.socket, "send_fds")
    for place in ("check", "claims", "preprocess"):
        default_registry.cache_clear()
        (evil.root / "fault").write_text(f"{place}: raises")
        with pytest.warns(RuntimeWarning, match="backend evil"):
            program = delegate.to_backend(exported(), placement=BY_PREFERENCE)
        assert_dropped(program)


@pytest.mark.extended
def test_explained(evil: Site) -> None:
    (evil.root / "fault").write_text("check: raises")
    with pytest.warns(RuntimeWarning, match="the support check of backend evil failed"):
        report = delegate.explain(exported())
    assert {n.backend for n in report.nodes} == {"xnnpack"}


@pytest.mark.parametrize(
    "request_", ["evil", CapabilityPartitioner("evil", time_limit=LIMIT)], ids=["name", "isolated"]
)
def test_what_is_named_is_an_error(evil: Site, request_: Any) -> None:
    (evil.root / "fault").write_text("check: raises")
    with pytest.raises(delegate.PartitionError, match="the support check of backend evil failed"):
        delegate.to_backend(exported(), request_)
