"""AOT parts in a process of their own: what the process gets, how it ends, and what is left of it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import delegate
from delegate.backend import compiler_process
from delegate.backend.info import Availability, BackendInfo
from delegate.backend.region import content_of
from delegate.backend.selected import SelectedBackend
from delegate.backend.transfer import pack, unpack_region
from delegate.compile import explain
from delegate.errors import BackendUnavailable
from delegate.partitioner.partitioner import CapabilityPartitioner
from delegate.program.file import serialize
from delegate.registry import default_registry
from tests.support.lowering import assert_runs, assert_same
from tests.support.plugins import RUNTIME, Site

# Adds in the process of the compiler, and ends it in a way of its own at what else it takes.
ENDS = """
import os, socket, time
from delegate.backend.aot import Backend, PreprocessResult
from delegate.verdict import YES, Reason, no

def chatter():
    for fd in range(3, 64):
        try:
            end = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        with end:
            end.sendall((9).to_bytes(8, "little") + b"{'nothing")

ENDS = {
    "aten.neg.default": lambda: time.sleep(600),
    "aten.sin.default": chatter,
}

class Aot(Backend):
    name = "ends"

    def check(self, node):
        taken = str(node.target) in ("aten.add.Tensor", *ENDS) and len(node.all_input_nodes) > 0
        return YES if taken else no(Reason.OPERATOR, "it has others")

    def preprocess(self, region):
        for node in region.calls:
            ENDS.get(str(node.target), lambda: None)()
        return PreprocessResult(str(os.getpid()).encode())
"""


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No process, zombie or descriptor is left after all tests, once the idle process has been ended."""
    before, others = _descriptors(), _children()  # other modules' processes may end at any time
    yield
    end_idle()
    assert _descriptors() <= before
    children = _children() - others
    assert not [c for c in children if "delegate.processes" in Path(f"/proc/{c}/cmdline").read_text()]
    assert not [c for c in children if "State:\tZ" in Path(f"/proc/{c}/status").read_text()]


def _children() -> set[str]:
    """The processes that this thread has started and not yet waited for."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


def _descriptors() -> set[str]:
    """The sockets and files in memory of this process."""
    links = set()
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.add(os.readlink(file))
    return {link for link in links if link.startswith(("socket", "/memfd:delegate"))}


def end_idle() -> None:
    """End the idle processes."""
    while compiler_process._IDLE:
        compiler_process._IDLE.pop().process.end()


@pytest.fixture
def ends(site: Site) -> Site:
    end_idle()  # of earlier tests
    site.backend("ends")
    site.module("ends_halves", ENDS + "\n\n" + RUNTIME)
    return site


def export(function: Any, *args: torch.Tensor) -> torch.export.ExportedProgram:
    class Net(nn.Module):
        def forward(self, *a: torch.Tensor) -> Any:
            return function(*a)

    return torch.export.export(Net(), args)


def lower(function: Any, *args: torch.Tensor, limit: float = 60.0) -> Any:
    return lower_exported(export(function, *args), limit)


def lower_exported(ep: torch.export.ExportedProgram, limit: float = 60.0) -> Any:
    return delegate.to_backend(ep, CapabilityPartitioner("ends", isolate="compile", time_limit=limit))


A, B = torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 0.5)


def test_a_process_that_answers_nonsense(ends: Site) -> None:
    """Crashes, exits and hangs are among the tests of broken packages."""
    program = lower(lambda a, b: (a + b).sin(), A, B)
    assert {n for p in program.report.partitions for n in p.nodes} == {"add"}
    assert "its compiler returned an invalid answer" in str(program.report)


@pytest.mark.extended
def test_one_process_serves_many_regions_and_lowerings(ends: Site) -> None:
    def deep(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            a = torch.erf(a + b)
        return a

    pids = set()
    for _ in range(2):
        program = lower(deep, A, B)
        assert len(program.report.partitions) == 12
        pids |= {bytes(program.program.segments[d.segment]) for d in program.program.delegates}
    assert len(pids) == 1
    assert pids != {str(os.getpid()).encode()}


@pytest.mark.slow
def test_a_process_that_was_killed_while_idle_is_started_again(ends: Site) -> None:
    lower(torch.add, A, B)
    (compiler,) = compiler_process._IDLE
    os.kill(compiler.process.process.pid, signal.SIGKILL)
    assert lower(torch.add, A, B).report.partitions


@pytest.mark.extended
def test_an_interrupt_ends_the_process(ends: Site) -> None:
    main = threading.main_thread().ident
    hanging = export(lambda a, b: -(a + b), A, B)  # torch leaves its modules patched if an export is interrupted
    for delay in (0.0, 0.05, 3.0):
        timer = threading.Timer(delay, signal.pthread_kill, (main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interrupt may come at once
            timer.start()
            lower_exported(hanging)
        timer.join()
    assert lower(torch.add, A, B).report.partitions  # the answer is of this query


def test_a_class_without_a_file_is_refused(ends: Site) -> None:
    ends_halves = importlib.import_module("ends_halves")
    module = sys.modules["typed_in"] = types.ModuleType("typed_in")
    module.Aot = type("Aot", (ends_halves.Aot,), {"name": "typed"})  # type: ignore[attr-defined]
    try:
        info = BackendInfo("typed", "", "typed_in:Aot", "ends_halves:Runtime", lambda: Availability(True), "")
        default_registry().register(info)
        with pytest.raises(BackendUnavailable, match=r"cannot be imported by another process.*module that has a file"):
            delegate.to_backend(torch.export.export(nn.ReLU(), (A,)), CapabilityPartitioner("typed", isolate="compile"))
    finally:
        del sys.modules["typed_in"]


@pytest.mark.slow
def test_the_process_follows_the_environment_and_the_code(ends: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    source = ENDS.replace("str(os.getpid()).encode()", "(os.environ.get('ENDS', '') + os.getcwd()).encode()")
    ends.module("ends_halves", source + RUNTIME)

    def blob() -> str:
        program = lower(torch.add, A, B)
        return bytes(program.program.segments[program.program.delegates[0].segment]).decode()

    monkeypatch.setenv("ENDS", "one")
    assert blob() == "one" + os.getcwd()
    monkeypatch.setenv("ENDS", "two")
    monkeypatch.chdir(ends.root)
    assert blob() == "two" + os.getcwd()
    ends.module("ends_halves", source.replace("os.getcwd()", "'edited'") + RUNTIME)
    assert blob() == "twoedited"


@pytest.mark.slow
def test_a_library_that_was_used_here_before() -> None:
    """It has started threads here, for which a fork of this process would wait for ever."""
    linear = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()
    x = torch.randn(16, 64)
    ep = torch.export.export(linear, (x,))
    program = delegate.to_backend(ep, "xnnpack")
    with delegate.load(serialize(program.program), options={"xnnpack": {"threads": 2}}) as loaded:
        expected = loaded(x.numpy())
    begun = time.monotonic()
    isolated = delegate.to_backend(ep, CapabilityPartitioner("xnnpack", isolate="compile"))
    assert time.monotonic() - begun < 40
    assert isolated.report.partitions
    with delegate.load(serialize(isolated.program), options={"xnnpack": {"threads": 2}}) as loaded:
        assert_same(loaded(x.numpy()), torch.from_numpy(expected))


class Views(nn.Module):
    """Weights that are views of larger ones, and a dynamic size."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(8, 4).t())
        self.part = nn.Parameter(torch.randn(100, 8)[3:7])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([x @ self.turned @ self.part.t(), x[:, :2] * 2], 1)
        return rows.flatten()[: x.shape[0] * 2] + x.shape[0]


def test_a_region_arrives_as_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    preprocess = SelectedBackend.preprocess

    def record(self: SelectedBackend, region: Any) -> Any:
        packed = pack(region)
        found.append((region, unpack_region(packed.table, [memoryview(bytearray(b)) for b in packed.buffers])))
        return preprocess(self, found[-1][1])

    monkeypatch.setattr(SelectedBackend, "preprocess", record)
    x = torch.randn(3, 4)
    ep = torch.export.export(Views().eval(), (x,), dynamic_shapes=({0: Dim("n", min=2, max=9)},))
    program = delegate.to_backend(ep, "xnnpack")
    assert_runs(program, "xnnpack", {"aten.view.default": 1, "aten.slice.Tensor": 1, "aten.add.Tensor": 1})
    assert found
    for sent, received in found:
        assert content_of(sent, _content) == content_of(received, _content)
        assert [n.meta.keys() >= {"val"} for n in received.calls] == [True] * len(sent.calls)
    assert_same(program(x), ep.module()(x))


def _content(constant: torch.Tensor) -> Any:
    return constant.dtype, constant.shape, constant.stride(), constant.float().tolist()


@pytest.mark.extended
def test_an_operator_that_only_this_process_has() -> None:
    name = "isolated_test::twice"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "cpu", lambda x: x * 2)
    torch.library.register_fake(name, torch.empty_like)

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(torch.ops.isolated_test.twice(x) + 1)

    ep = torch.export.export(Net(), (A,))
    report = explain(
        ep, config={"backends": [{"name": "xnnpack", "isolate": "compile"}], "kernels": ["aten", "portable"]}
    )
    assert {n.op: n.backend for n in report.nodes if "twice" in n.op} == {"isolated_test.twice.default": "portable"}
    assert any(n.backend == "xnnpack" for n in report.nodes)
