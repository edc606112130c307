"""Lockfiles: written, kept, compared, checked; and what is said of those that cannot be kept."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import delegate
from delegate.compile import check_locked
from delegate.errors import PartitionError
from delegate.placement.lock import Lock
from delegate.report.measured import Interval, Placement, PlanCost
from delegate.testing import assert_same
from tests.support.availability import require
from tests.support.processes import run
from tests.support.sampling import only

X = torch.linspace(-1, 1, 16).reshape(2, 8)


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.cumsum(torch.tanh(self.first(x)), 1))


@functools.cache
def export(width: int = 8, seed: int = 0) -> torch.export.ExportedProgram:
    torch.manual_seed(seed)
    with torch.no_grad():
        return torch.export.export(Net(width).eval(), (X,))


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of a lock."""
    written = tmp_path_factory.mktemp("lock") / "delegate.lock"
    delegate.to_backend(export(), "xnnpack", placement=delegate.ByPreference(lockfile=written))
    return written.read_text()


@pytest.fixture
def path(locked: str, tmp_path: Path) -> Path:
    written = tmp_path / "delegate.lock"
    written.write_text(locked)
    return written


def test_what_is_locked_is_kept_without_measuring(path, tmp_path):
    """Whatever the configuration says of measuring; weights may be others."""
    config = {"version": 1, "backends": ["xnnpack"], "placement": {"policy": "measured"}}
    plain = delegate.to_backend(export(), "xnnpack")
    again = delegate.to_backend(
        export(seed=3), config=config, placement=delegate.Replay(path, lockfile=tmp_path / "again.lock")
    )
    assert again.plan == plain.plan == Lock.load(path).plan
    assert (tmp_path / "again.lock").read_text() == path.read_text()
    assert again.report.placements == ()
    assert not [n for n in again.report.notes if "locked" in n]
    assert torch.equal(delegate.to_backend(export(), "xnnpack", placement=delegate.Replay(path))(X), plain(X))


@pytest.mark.extended
def test_what_was_measured_is_locked(tmp_path):
    """Its options, its table; replayed they are those of the first program."""
    config = {
        "version": 1,
        "backends": ["xnnpack"],
        "placement": {"policy": "measured", "budget": 20, "threads": [1, 2]},
    }
    first = delegate.to_backend(
        export(), config=config, cache=False, placement=delegate.Measured(lockfile=tmp_path / "delegate.lock")
    )
    lock = Lock.load(tmp_path / "delegate.lock")
    (threads,) = {spec.compile_specs["threads"] for spec in first.program.delegates}
    assert lock.options == {"xnnpack": {"threads": threads}}
    (placement,) = lock.measured.values()
    assert placement.chosen == first.report.placements[0].chosen == f"xnnpack, {threads} threads"
    again = delegate.to_backend(export(), "xnnpack", placement=delegate.Replay(tmp_path / "delegate.lock"))
    assert [s.compile_specs for s in again.program.delegates] == [s.compile_specs for s in first.program.delegates]
    assert again.report.placements == (placement,)
    assert torch.equal(again(X), first(X))


def test_it_is_made_for_diffs(path):
    """Sorted, an item a line; the same lowering gives the same text."""
    text = path.read_text()
    data = yaml.safe_load(text)
    assert list(data) == sorted(data)
    assert "    - first:aten.linear.default#0\n" in text
    assert not re.search(r"[\[{].*,", text.replace("[]", "").replace("{}", "").partition("machine")[0])
    assert Lock.from_yaml(text).to_yaml() == text


def measured(lock: Lock, place: str, seconds: float) -> Lock:
    plans = (PlanCost(place, 1, seconds, 9), PlanCost("other", 2, seconds * 1.2, 9, Interval(1.2, 1.1, float("inf"))))
    return dataclasses.replace(lock, measured={"forward": Placement("forward", "latency", place, plans)})


def test_what_moved_and_what_it_costs(path, tmp_path):
    first = measured(Lock.load(path), "xnnpack", 0.0100004)
    delegate.to_backend(export(), [], placement=delegate.ByPreference(lockfile=tmp_path / "portable.lock"))
    second = measured(Lock.load(tmp_path / "portable.lock"), "portable", 0.02)
    second = dataclasses.replace(second, machine="another", options={"xnnpack": {"threads": 1}})
    first, second = (Lock.from_yaml(lock.to_yaml()) for lock in (first, second))
    lines = list(first.differences(second))
    assert "forward: first:aten.linear.default#0: xnnpack -> portable" in lines
    assert any(line.endswith(" -> another") for line in lines)
    assert "options of xnnpack: none -> {'threads': 1}" in lines
    assert any(line.startswith("forward: xnnpack -> portable: 2.000 times the latency") for line in lines)
    assert list(first.differences(measured(first, "xnnpack", 0.5))) == []


def test_another_machine_and_other_versions_are_noted(path):
    lock = dataclasses.replace(Lock.load(path), machine="an abacus", versions={"torch": "0.1"})
    lock.save(path)
    notes = delegate.to_backend(export(), "xnnpack", placement=delegate.Replay(path)).report.notes
    assert any("torch: 0.1 -> " in note for note in notes)
    assert "locked: measured on another machine: an abacus" in notes
    assert check_locked(export(), path, "xnnpack") == tuple(n for n in notes if n.startswith("locked"))


def edit(**changes: Any) -> Any:
    return lambda data: {**data, **changes}


def with_partition(**changes: Any) -> Any:
    """Another partition like the first one, with changes."""

    def change(data: Any) -> Any:
        partitions = data["plan"]["partitions"]
        more = {**partitions[0], "nodes": [*partitions[0]["nodes"]], **changes}
        return {**data, "plan": {**data["plan"], "partitions": [*partitions, more]}}

    return change


def costing(**changes: Any) -> Any:
    """What was measured, with something impossible in it."""
    plan = {**asdict(PlanCost("xnnpack", 1, 0.01, 9)), **changes}
    placement = {**asdict(Placement("forward", "latency", "xnnpack")), "plans": [plan]}
    return edit(measured={"forward": placement})


def as_one(data: Any) -> Any:
    """What is left to kernels lies between its nodes."""
    nodes = [node for partition in data["plan"]["partitions"] for node in partition["nodes"]]
    return edit(plan={**data["plan"], "partitions": [{**data["plan"]["partitions"][0], "nodes": nodes}]})(data)


def added(text: str) -> Any:
    return lambda data: yaml.safe_dump(data) + text


NINE = "".join(f"{b}: &{b} [{f'*{a}, ' * 9}]\n" for a, b in itertools.pairwise("abcdefghi"))
BOMB = f"a: &a [x]\n{NINE}machine: *i\n"
CUMSUM = ":aten.cumsum.default#0"
LINEAR = "third:aten.linear.default#0"
UNFIT = {  # another model, or nodes that cannot run there
    "another model": (edit(model={"forward": "0"}), "another model: method 'forward' differs"),
    "another method": (edit(model={"decode": "0"}), "another model: only one of them has a method 'decode'"),
    "a node that is not there": (with_partition(name="x", nodes=[LINEAR]), f"{LINEAR} of forward on xnnpack .*no such"),
    "a node that cannot run there": (
        with_partition(name="x", nodes=[CUMSUM]),
        f"cannot be applied: {CUMSUM} of forward on xnnpack",
    ),
    "a backend that there is not": (
        with_partition(name="x", backend="nope", nodes=[CUMSUM]),
        "the lock runs nodes on 'nope', which is not among the backends",
    ),
    "options of a backend without nodes": (
        edit(options={"openvino": {"threads": 1}}),
        "options of 'openvino', but runs no node on it",
    ),
    "a partition with a cycle": (as_one, "partition 'xnnpack_0' of forward would be split into 2"),
    "quantized by nothing": (edit(quantization={"forward": {"scheme": 3}}), "quantization in the lock is invalid"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_lock_that_cannot_be_kept_is_an_error(name, path):
    change, message = UNFIT[name]
    path.write_text(yaml.safe_dump(change(yaml.safe_load(path.read_text()))))
    for keep in (
        lambda: delegate.to_backend(export(), "xnnpack", placement=delegate.Replay(path)),
        lambda: check_locked(export(), path, "xnnpack"),
    ):
        with pytest.raises(PartitionError, match=message) as caught:
            keep()
        assert caught.value.where == str(path)


INTERVAL = {"ratio": 1.0, "low": 1.1, "high": 1.2}
UNREADABLE = {
    "no YAML": ("{", "cannot be read, "),
    "a list": (lambda data: [], "should be a mapping"),
    "another key": (edit(extra=1), "'extra' is not a key of a lock"),
    "no key": (lambda data: {k: v for k, v in data.items() if k != "model"}, "it has no 'model'"),
    "a flag for a format": (edit(format=True), "its format is True, but only format 1 is"),
    "no plan": (edit(plan=None), "plan should be a mapping"),
    "another plan": (edit(plan={"format": 3, "partitions": [1]}), "cannot be read"),
    "a version of versions": (edit(versions={"torch": {"a": "b"}}), "torch should be text"),
    "options in a list": (edit(options={"xnnpack": ["threads"]}), "xnnpack should be a mapping"),
    "another objective": (
        edit(measured={"forward": {"method": "forward", "objective": "beauty", "chosen": ""}}),
        "'beauty' is not an objective",
    ),
    "a node twice": (with_partition(name="x"), "appears in"),
    "two partitions of one name": (with_partition(nodes=[CUMSUM]), "two partitions of forward have the name"),
    "a negative cost": (costing(cost=-1.0), "cost should be a finite number of 0 or more, not -1.0"),
    "a cost that is no number": (costing(cost=float("nan")), "cost should be a finite number"),
    "a cost beyond all numbers": (costing(cost=10**400), "cost should be a number"),
    "a cost in words": (costing(cost="little"), "cost should be a number, not 'little'"),
    "rounds beyond all numbers": (costing(rounds=10**400), "rounds should be a whole number of 0 or more"),
    "a flag for rounds": (costing(rounds=True), "rounds should be a whole number of 0 or more, not True"),
    "an interval beside its ratio": (costing(against=INTERVAL), "is not a ratio within its interval"),
    "a choice that is no plan": (costing(name="other"), "'xnnpack' is not among the plans"),
    "measured of another method": (
        lambda data: edit(measured={"decode": costing()(data)["measured"]["forward"]})(data),
        "the measurement 'decode' is of an unknown method",
    ),
    "a key twice": (
        added("plan: {format: 3, partitions: []}\n"),
        "plan: the key appears twice .*:[0-9]+:1.: the first is in line",
    ),
    "a bomb": (added(BOMB), "aliases .*name. are not supported"),
    "an object": (added("x: !!python/object/apply:os.getcwd []\n"), "the tag .* is not supported"),
    "a huge file": ("x" * (2**22 + 1), "it has more than 4,194,304 bytes"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_no_lock_can_hold(name, path):
    change, message = UNREADABLE[name]
    written = change if isinstance(change, str) else change(yaml.safe_load(path.read_text()))
    path.write_text(written if isinstance(written, str) else yaml.safe_dump(written))
    with pytest.raises(PartitionError, match=message) as caught:
        Lock.load(path)
    assert (str(path) in caught.value.where, bool(caught.value.remedy)) == (True, True)


def test_a_node_that_a_lock_lacks_is_portable(path):
    """As every node is that it does not name; the report says so, and `policy.portable: error` makes it one."""
    data = yaml.safe_load(path.read_text())
    data["plan"]["partitions"][0]["nodes"].remove("first:aten.linear.default#0")
    path.write_text(yaml.safe_dump(data))
    kept = delegate.to_backend(export(), "xnnpack", placement=delegate.Replay(path))
    (node,) = (n for n in kept.report.nodes if n.module == "first")
    assert node.backend == "portable"
    assert "by the plan" in str(node.verdicts["xnnpack"])
    assert_same(kept(X), delegate.to_backend(export(), [])(X))
    with pytest.raises(PartitionError, match="linear"):
        delegate.to_backend(
            export(), config={"backends": ["xnnpack"], "policy": {"portable": "error"}}, placement=delegate.Replay(path)
        )


def test_an_old_file_stays_where_a_new_one_cannot_be_written(path, monkeypatch):
    before = path.read_bytes()
    lock = Lock.load(path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PartitionError, match=r"the lockfile cannot be written: .*No space left"):
        dataclasses.replace(lock, machine="another").save(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_backend_that_is_not_asked_for(path):
    with pytest.raises(PartitionError, match="the lock runs nodes on 'xnnpack', which is not among the backends"):
        delegate.to_backend(export(), [], placement=delegate.Replay(path))


def test_files_that_are_not_there(path, tmp_path):
    with pytest.raises(PartitionError, match=r"cannot be read: .*No such file"):
        delegate.to_backend(export(), "xnnpack", placement=delegate.Replay(tmp_path / "none.lock"))
    with pytest.raises(PartitionError, match="the lockfile cannot be written: there is no folder"):
        delegate.to_backend(
            export(), "xnnpack", placement=delegate.ByPreference(lockfile=tmp_path / "none" / "none.lock")
        )


def test_a_replay_is_kept_as_a_program_of_its_own(path, tmp_path, monkeypatch):
    """What is taken from the cache of programs is what the lock says, not what preference would do or another lock."""
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path / "cache"))
    delegate.to_backend(export(), [], placement=delegate.ByPreference(lockfile=tmp_path / "portable.lock"))
    config = {"backends": ["xnnpack"]}
    for _ in range(2):
        kept = delegate.to_backend(export(), config=config, placement=delegate.Replay(path))
        moved = delegate.to_backend(export(), config=config, placement=delegate.Replay(tmp_path / "portable.lock"))
        assert kept.plan == Lock.load(path).plan
        assert (moved.plan.partitions, len(kept.plan.partitions)) == ((), len(Lock.load(path).plan.partitions))
        assert torch.equal(kept(X), delegate.to_backend(export(), config=config)(X))


def test_a_quantized_candidate_is_replayed(tmp_path):
    """It is quantized again as the lock says; the configuration here says nothing of it."""
    quantization = {"name": "xnnpack", "quantization": {"scheme": "dynamic_int8"}}
    placement = {"policy": "measured", "budget": 60, "candidates": [quantization], "accuracy": {"sqnr_db": 5}}
    first = delegate.to_backend(
        export(),
        config={"backends": ["xnnpack"], "placement": placement},
        placement=delegate.Measured(lockfile=tmp_path / "l"),
    )
    assert Lock.load(tmp_path / "l").quantization["forward"]["scheme"] == "dynamic_int8"
    again = delegate.to_backend(export(), "xnnpack", placement=delegate.Replay(tmp_path / "l"))
    assert not again.plan.differences(first.plan)
    assert torch.equal(again(X), first(X))
    assert not torch.equal(again(X), delegate.to_backend(export(), "xnnpack")(X))


WITHOUT_GPU = """
import sys, delegate, torch
program = delegate.to_backend(sys.argv[1], placement=delegate.Replay(sys.argv[2]), **eval(sys.argv[3]))
assert {d.backend for d in program.program.delegates} == {"webgpu"}
assert program.plan == delegate.SavedPlan.from_json(open(sys.argv[4]).read())
assert "none was found" in str(program.report)
program.save(sys.argv[5])
try:
    program(torch.zeros(2, 8))
except (delegate.errors.BackendUnavailable, RuntimeWarning) as error:  # kernels replace a backend that nobody named
    assert "there is no GPU" in str(error)
    assert isinstance(error, RuntimeWarning) == (not eval(sys.argv[3]))
else:
    raise AssertionError("it ran")
"""


@pytest.mark.extended
@pytest.mark.parametrize("named", only([{}], [{}, {"backends": ["webgpu", "xnnpack"]}]))
def test_a_device_that_is_not_here_is_compiled_for(named, tmp_path, monkeypatch):
    """On a machine without a GPU; the file then runs where there is one."""
    require("webgpu")
    torch.export.save(export(), tmp_path / "net.pt2")
    here = delegate.to_backend(
        export(), ["webgpu", "xnnpack"], placement=delegate.ByPreference(lockfile=tmp_path / "delegate.lock")
    )
    here.plan.save(tmp_path / "plan.json")
    files = [str(tmp_path / name) for name in ("net.pt2", "delegate.lock", "plan.json", "made.dlg")]
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("VK_DRIVER_FILES", str(tmp_path / "none"))
        done = run(WITHOUT_GPU, *files[:2], repr(named), *files[2:])
    assert done.returncode == 0, done.stderr
    assert_same(delegate.load(files[3])(X.numpy()), here(X))
