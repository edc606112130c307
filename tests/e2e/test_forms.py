"""All forms of to_backend, with two backends; what their reports say; backends that refuse or fail."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.config import Config
from delegate.edge.node import is_compute, op_name
from delegate.errors import BackendFailed, ConfigError, LoweringError, PartitionError
from delegate.program.file import serialize
from delegate.report import Report
from delegate.verdict import Reason, Verdict, no
from tests.support import vector_backend
from tests.support.lowering import assert_runs, assert_same, compiled

pytestmark = pytest.mark.usefixtures("vector")


class Net(nn.Module):
    """Linear layers for xnnpack, elementwise operators for both, a cumulative sum for neither."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 6)
        self.head = nn.Sequential(nn.Linear(6, 4), nn.Tanh())

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cumsum(torch.tanh(self.encoder(a)) * 2 + a, 0)) + 1


torch.manual_seed(0)
NET = Net().eval()
GIVEN = torch.randn(3, 6)
EXPECTED = NET(GIVEN).detach()


def lowered(backends: Any = None, **config: Any) -> delegate.CompiledProgram:
    """The net on backends, its results compared to eager, here and from bytes."""
    program = delegate.to_backend(torch.export.export(NET, (GIVEN,)), backends, **config)
    assert_same(program(GIVEN), EXPECTED)
    with delegate.load(serialize(program.program)) as loaded:
        assert_same(loaded(GIVEN.numpy()), EXPECTED)
        assert loaded.report == program.report
    return program


class OnlyTanh(delegate.Partitioner):
    """Takes no more than tanh, each in a partition of its own tag."""

    def partition(self, program, check):
        nodes = [n for n in program.graph.nodes if is_compute(n)]
        return {n: self._answer(n, check(n)) for n in nodes}

    def _answer(self, node, verdict):
        wanted = op_name(node) == "aten.tanh.default"
        return Verdict(tag=node.name) if verdict and wanted else no(Reason.EXCLUDED, "only tanh is wanted")


class TwoTags(delegate.Partitioner):
    """Everything, every node under its own tag."""

    def partition(self, program, check):
        nodes = [n for n in program.graph.nodes if is_compute(n)]
        return {n: Verdict(tag=n.name) if check(n) else check(n) for n in nodes}


def places(program: delegate.CompiledProgram) -> dict[str, set[str]]:
    """Backend -> operators that run there."""
    found: dict[str, set[str]] = {}
    for node in program.report.nodes:
        found.setdefault(node.backend, set()).add(node.op)
    return found


ELEMENTWISE = {"aten.add.Tensor", "aten.mul.Tensor", "aten.tanh.default"}
LINEAR, CUMSUM = "aten.linear.default", "aten.cumsum.default"
BOTH = {"vector": ELEMENTWISE, "xnnpack": {LINEAR}, "portable": {CUMSUM}}
XNNPACK = {"xnnpack": {*ELEMENTWISE, LINEAR}, "portable": {CUMSUM}}
PORTABLE = {"portable": {*ELEMENTWISE, "aten.linear.default", CUMSUM}}
FORMS = {
    "name": ({"backends": "xnnpack"}, XNNPACK),
    "list": ({"backends": ["vector", "xnnpack"]}, BOTH),
    "tuple, other preference": ({"backends": ("xnnpack", "vector")}, XNNPACK),
    "partitioner": (
        {"backends": OnlyTanh("xnnpack")},
        {"xnnpack": {"aten.tanh.default"}, "portable": {"aten.add.Tensor", "aten.mul.Tensor", LINEAR, CUMSUM}},
    ),
    "partitioner with options, and a name": (
        {"backends": [OnlyTanh("vector", {"level": 2}), "xnnpack"]},
        {"vector": {"aten.tanh.default"}, "xnnpack": XNNPACK["xnnpack"] - {"aten.tanh.default"}, "portable": {CUMSUM}},
    ),
    "empty list": ({"backends": []}, PORTABLE),
    "portable": ({"backends": "portable"}, PORTABLE),
    "dict": ({"config": {"backends": ["vector", "xnnpack"]}}, BOTH),
    "config": ({"config": Config(backends=["xnnpack"])}, XNNPACK),
    "list and configuration": (
        {"backends": ["xnnpack"], "config": {"partitioning": {"pins": {"head": "portable", "head.*": "portable"}}}},
        {"xnnpack": {LINEAR, *ELEMENTWISE}, "portable": {CUMSUM, LINEAR, "aten.tanh.default"}},
    ),
    "excluded for one": (
        {"config": {"backends": [{"name": "vector", "exclude": ["aten.tanh"]}, "xnnpack"]}},
        {**BOTH, "vector": {"aten.add.Tensor", "aten.mul.Tensor"}, "xnnpack": {LINEAR, "aten.tanh.default"}},
    ),
    "excluded for all": (
        {"config": {"backends": ["vector", "xnnpack"], "partitioning": {"exclude": ["aten.linear.*"]}}},
        {"vector": ELEMENTWISE, "portable": {CUMSUM, LINEAR}},
    ),
    "included": (
        {"config": {"backends": ["xnnpack"], "partitioning": {"include": ["aten.linear*"]}}},
        {"xnnpack": {LINEAR}, "portable": {CUMSUM, *ELEMENTWISE}},
    ),
    "too small": (
        {"config": {"backends": ["xnnpack"], "partitioning": {"min_partition_size": 4}}},  # the last has 3 nodes
        {"xnnpack": {LINEAR, *ELEMENTWISE}, "portable": {CUMSUM, LINEAR, "aten.tanh.default", "aten.add.Tensor"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_forms(name):
    how, expected = FORMS[name]
    program = lowered(**how)
    assert places(program) == expected
    check_report(program.report)


def check_report(report: Report) -> None:
    """It adds up, and its JSON says the same."""
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["methods"] == list(report.methods)
    by_partition: dict[str, set[str]] = {}
    for node in report.nodes:
        if node.partition:
            by_partition.setdefault(node.partition, set()).add(node.name)
        assert (node.backend == "portable") is (node.partition == "")
        assert node.backend == "portable" or node.verdicts[node.backend]
        assert "test_forms.py" in node.source
    assert by_partition == {p.name: set(p.nodes) for p in report.partitions}
    for method in report.methods:
        assert sum(n.work for n in report.nodes if n.method == method) == pytest.approx(1)
    for partition in report.partitions:
        work = sum(n.work for n in report.nodes if n.partition == partition.name and n.method == partition.method)
        assert partition.work == pytest.approx(work)
        assert partition.bytes_in > 0
        assert partition.bytes_out > 0
        assert f"{partition.name} " in str(report)


def test_configuration_file(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text("backends: [{name: vector, options: {level: 3}}, xnnpack]\n")
    for source in (path, str(path)):
        program = lowered(config=source)
        assert places(program) == BOTH
    assert {d.compile_specs["level"] for d in program.program.delegates if d.backend == "vector"} == {3}


def test_nothing_means_all_that_are_available():
    used = set(places(lowered())) - {"portable"}
    assert used
    assert used <= {"vector", "xnnpack"}


def test_pins():
    pins = {"head.*": "portable", "encoder": "xnnpack"}
    program = lowered(config={"backends": ["vector", "xnnpack"], "partitioning": {"pins": pins}})
    head = [n for n in program.report.nodes if n.module.startswith("head")]
    assert {(n.backend, n.verdicts["xnnpack"].reason) for n in head} == {("portable", Reason.PINNED)}
    assert {n.backend for n in program.report.nodes if n.module == "encoder"} == {"xnnpack"}


def test_too_small_partitions_say_so():
    program = lowered(config={"backends": ["xnnpack"], "partitioning": {"min_partition_size": 100}})
    assert not program.report.partitions
    assert {n.verdicts["xnnpack"].reason for n in program.report.nodes if n.op != CUMSUM} == {Reason.TOO_SMALL}


def test_tags_part_partitions():
    program = lowered(TwoTags("xnnpack"))
    assert all(len(p.nodes) == 1 for p in program.report.partitions)
    assert len(program.report.partitions) == sum(n.backend == "xnnpack" for n in program.report.nodes)


def test_refused_nodes_are_planned_again():
    vector_backend.REFUSED.add("aten.tanh.default")
    program = lowered(["vector", "xnnpack"])
    tanh = [n for n in program.report.nodes if n.op == "aten.tanh.default"]
    assert {n.backend for n in tanh} == {"xnnpack"}
    assert {n.verdicts["vector"].reason for n in tanh} == {Reason.REFUSED}
    assert "the compiler says no" in str(program.report)
    assert "aten.add.Tensor" in places(program)["vector"]
    check_report(program.report)


def test_compiler_that_breaks():
    vector_backend.FAULTS.add("preprocess")
    with pytest.raises(LoweringError, match=r"backend vector failed.*ZeroDivisionError: compiler bug \(vector_0\)"):
        lowered("vector")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("init", "ValueError: the driver does not answer (partition vector_0 of vector in method forward)"),
        ("execute", "RuntimeError: the device is gone (partition vector_0 of vector)"),
    ],
)
def test_runtime_that_breaks(fault, message):
    program = compiled(NET, (GIVEN,), backends=["vector", "xnnpack"], portable={"aten.cumsum.default": 1})
    vector_backend.FAULTS.add(fault)
    with pytest.raises(BackendFailed) as caught:
        program(GIVEN)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # as worker processes do
    vector_backend.FAULTS.clear()
    assert_same(program(GIVEN), EXPECTED)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (["vector", "vector"], "named twice"),
        ([3], "a int is not a backend"),
        (7, "a int is not a backend"),
        (nn.ReLU(), "a ReLU is not a backend"),
    ],
)
def test_wrong_requests(request_, message):
    with pytest.raises(ConfigError, match=message):
        lowered(request_)


@dataclass
class Point:
    place: torch.Tensor
    tags: list[torch.Tensor]


torch.export.register_dataclass(Point, serialized_type_name="tests.e2e.Point")


class Structures(nn.Module):
    def forward(self, point: Point, pair: tuple[torch.Tensor, dict[str, torch.Tensor]]) -> Any:
        total = point.place + pair[0] * pair[1]["scale"]
        return {"point": Point(torch.relu(total), [total.exp(), point.tags[0]]), "pair": (total @ total.t(), None)}


def test_structures_come_back_as_they_are():
    args = (Point(torch.randn(2, 3), [torch.ones(2)]), (torch.randn(2, 3), {"scale": torch.randn(3)}))
    program = compiled(Structures(), args, backends="xnnpack")
    result = program(*args)
    assert isinstance(result["point"], Point)
    assert_same(result, Structures()(*args))


class Half(nn.Module):
    def __init__(self, table: nn.Linear, sign: float) -> None:
        super().__init__()
        self.table, self.sign = table, sign

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(self.table(a) * self.sign, 0)


@pytest.mark.parametrize("backends", [[], "xnnpack"], ids=["portable", "xnnpack"])
def test_methods_share_constants(tmp_path, backends):
    table = nn.Linear(256, 256)
    given = torch.randn(2, 256)
    modules = {"plus": Half(table, 1.0), "minus": Half(table, -1.0)}
    torch.export.save(torch.export.export(modules["minus"], (given,)), tmp_path / "minus.pt2")
    methods = {"plus": torch.export.export(modules["plus"], (given,)), "minus": tmp_path / "minus.pt2"}
    program = delegate.to_backend(methods, backends)
    for name, module in modules.items():
        assert_same(program.method(name)(given), module(given).detach())
    program.save(tmp_path / "both.dlg")
    weights = 4 * 256 * 257
    assert weights < (tmp_path / "both.dlg").stat().st_size < weights + 40_000  # a vendor's blobs share them too
    if backends:
        assert [p.method for p in program.report.partitions] == ["plus", "minus"]
        assert len({p.name for p in program.report.partitions}) == 2


def test_path_of_an_exported_program(tmp_path):
    torch.export.save(torch.export.export(NET, (GIVEN,)), tmp_path / "net.pt2")
    for path in (tmp_path / "net.pt2", str(tmp_path / "net.pt2")):
        program = delegate.to_backend(path, "xnnpack")
        assert_runs(program, "xnnpack", {"aten.cumsum.default": 1})
        assert_same(program(GIVEN), EXPECTED)


def test_a_policy_against_portable_nodes_is_told_before_anything_is_compiled(monkeypatch) -> None:
    monkeypatch.setattr(vector_backend.Vector, "preprocess", lambda self, region: pytest.fail("it was compiled"))
    with pytest.raises(PartitionError, match="nodes stay on portable kernels"):
        delegate.to_backend(
            torch.export.export(NET, (GIVEN,)), config={"backends": ["vector"], "policy": {"portable": "error"}}
        )
