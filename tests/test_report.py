"""The report: built from plans, readable as text, the same after a way through JSON, and without torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import cache

import pytest
import torch

from delegate.errors import ProgramError
from delegate.partitioner.reporting import make_report
from delegate.report import Report
from delegate.report.rows import Accuracy, LayerAccuracy, MethodAccuracy, NodeReport, PartitionReport
from delegate.verdict import YES, Reason, no
from tests.support.planning import edge, only, planned, without


class Classifier(torch.nn.Module):
    """An embedding and two layers, one within a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 8)
        self.hidden = torch.nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.hidden(self.table(ids)).relu()
        return torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a - 1, (x,))


@cache
def classifier_report() -> Report:
    program = edge(Classifier(), torch.arange(4))
    made = planned(program, {"a": without("aten.embedding", "aten.sub")})
    return make_report([made], {"a_0": ("3 transposes",)}, ["b is not here"])


def test_nodes_and_partitions_of_a_model() -> None:
    report = classifier_report()
    assert report.methods == ("forward",)
    by_op = {n.op: n for n in report.nodes}
    embedding = by_op["aten.embedding.default"]
    assert embedding.backend == "portable"
    assert embedding.partition == ""
    assert embedding.verdicts["a"].reason is Reason.OPERATOR
    assert embedding.result == "float32[4, 8]"
    assert embedding.module == "table"
    assert by_op["aten.relu.default"].partition == "a_0"
    assert any(n.name.startswith("true_graph_0.") or ".true_graph_0." in n.name for n in report.nodes)
    assert sum(n.work for n in report.nodes) == pytest.approx(1)
    first = report.partitions[0]
    assert (first.name, first.backend, first.notes) == ("a_0", "a", ("3 transposes",))
    assert first.bytes_in == 4 * 8 * 4
    assert first.bytes_out == 4 * 8 * 4 + 1, "the activation and the condition"
    for p in report.partitions:
        own = [n for n in report.nodes if n.partition == p.name]
        assert tuple(n.name for n in own) == p.nodes
        assert sum(n.work for n in own) == pytest.approx(p.work)
    assert report.notes == ("b is not here",)


def test_source_lines_are_the_users_own() -> None:
    lines = [n.source for n in classifier_report().nodes if n.op == "aten.relu.default"]
    assert len(lines) == 1
    assert "test_report.py:" in lines[0]


def test_json_keeps_everything_and_is_the_same_every_time() -> None:
    report = classifier_report()
    text = report.to_json()
    assert Report.from_json(text) == report
    assert Report.from_json(text).to_json() == text
    assert classifier_report.__wrapped__().to_json() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}",
        '{"format": 2, "methods": [], "nodes": [], "partitions": [], "notes": []}',
        '{"format": 1, "methods": [], "nodes": [{}], "partitions": [], "notes": []}',
        '{"format": 1, "methods": [], "nodes": [], "partitions": [[]], "notes": []}',
        '{"format": 1, "methods": 3, "nodes": [], "partitions": [], "notes": []}',
        "[" * 100_000,
    ],
)
def test_what_is_no_report_is_an_error(text: str) -> None:
    with pytest.raises(ProgramError, match="the report cannot be read"):
        Report.from_json(text)


def test_a_verdict_of_an_unknown_reason_is_an_error() -> None:
    text = classifier_report().to_json().replace("unsupported operator", "bad mood")
    with pytest.raises(ProgramError, match="bad mood"):
        Report.from_json(text)


EMBEDDING = no(Reason.OPERATOR, "a has no lowering of aten.embedding.default")
REPORT = Report(
    methods=("prefill", "decode"),
    nodes=(
        NodeReport("prefill", "mm", "aten.mm.default", "a", "a_0", {"a": YES, "b": YES}, "float32[2, 2]", work=0.9),
        *(
            NodeReport(
                "prefill", f"embedding_{i}", "aten.embedding.default", verdicts={"a": EMBEDDING, "b": EMBEDDING},
                result="float32[2]", source=f"model.py:{i}, in forward", work=0.02,
            )
            for i in range(3)
        ),
        NodeReport(
            "prefill", "conv_1", "aten.convolution.default", "b", "b_0",
            {"a": no(Reason.RANK, "rank 5", "use conv2d"), "b": YES}, "float32[2]", work=0.03,
        ),
        NodeReport(
            "prefill", "conv_2", "aten.convolution.default", "b", "b_0",
            {"a": no(Reason.RANK, "rank 6"), "b": YES}, "float32[2]", work=0.01,
        ),
        NodeReport("decode", "relu", "aten.relu.default", "a", "a_1", {"a": YES, "b": EMBEDDING}, work=1.0),
    ),
    partitions=(
        PartitionReport("prefill", "a_0", "a", ("mm",), 100, 2048, 0.9, ("3 transposes",)),
        PartitionReport("prefill", "b_0", "b", ("conv_1", "conv_2"), 8, 3 << 20, 0.04),
        PartitionReport("decode", "a_1", "a", ("relu",), 8, 8, 1.0),
    ),
    notes=("exclude 'aten.tan' matches no operator of this method",),
)  # fmt: skip

TEXT = """\
prefill: 1 partition on a, 90% of the operations; 1 partition on b, 4% of the operations; 3 nodes portable
decode: 1 partition on a, 100% of the operations; 0 nodes portable

partition  backend  nodes  operations     in      out  notes
a_0        a            1         90%  100 B  2.0 KiB  3 transposes
b_0        b            2          4%    8 B  3.0 MiB
a_1        a            1        100%    8 B      8 B

not verified: no result was compared with torch; give your own data: to_backend(..., verify=inputs), or \
`delegate lower --verify FILE`

5 nodes of prefill not on a, most costly first:
  aten.embedding.default (3, 6% of the operations): unsupported operator: a has no lowering of aten.embedding.default
    embedding_0 -> float32[2] at model.py:0, in forward
    embedding_1 -> float32[2] at model.py:1, in forward
    and 1 more
  aten.convolution.default (2, 4% of the operations): unsupported rank
    conv_1 -> float32[2]: unsupported rank: rank 5; remedy: use conv2d
    conv_2 -> float32[2]: unsupported rank: rank 6
3 nodes of prefill not on b, most costly first:
  aten.embedding.default (3, 6% of the operations): unsupported operator: a has no lowering of aten.embedding.default
    embedding_0 -> float32[2] at model.py:0, in forward
    embedding_1 -> float32[2] at model.py:1, in forward
    and 1 more

note: exclude 'aten.tan' matches no operator of this method"""


def test_the_text() -> None:
    assert str(REPORT) == TEXT
    assert REPORT.summary == "\n".join(TEXT.splitlines()[:2])


@pytest.mark.parametrize(
    ("checks", "summary"),
    [
        ({"a": without()}, "forward: 1 partition on a, 100% of the operations; 0 nodes portable"),
        ({"a": only()}, "forward: no partitions; 1 node portable, about 100% of the estimated time"),
        ({}, "forward: no partitions; 1 node portable, about 100% of the estimated time"),
    ],
)
def test_summaries(checks, summary: str) -> None:
    report = make_report([planned(edge(torch.nn.ReLU(), torch.ones(2)), checks)])
    assert report.summary == summary
    assert str(report).startswith(summary)


def test_the_report_needs_no_torch() -> None:
    code = "import sys, delegate.report; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("slow", "least"),
    [(lambda x: torch.sort(x)[0], 0.2), (lambda x: x.cumsum(-1), 0.08), (lambda x: x.erfinv(), 0.15)],
    ids=["sort", "cumsum", "erfinv"],
)
def test_the_time_of_slow_kernels_is_estimated(slow, least: float) -> None:
    """The bounds are half of the shares that a profile of the same layers on XNNPACK gave, rounded."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(slow(self.first(x)))

    report = make_report(
        [planned(edge(Layers(), torch.ones(256, 512)), {"a": without("aten.sort", "aten.cumsum", "aten.erfinv")})]
    )
    portable = [n for n in report.nodes if n.backend == "portable"]
    assert sum(n.work for n in portable) < 0.01
    assert least < sum(n.time for n in portable) < 4 * least
    assert "of the estimated time" in report.summary


# A field's path, and a value that it cannot have.
FORGED = [
    *((("layers", 2, key), value) for key, value in [
        ("node", 7), ("method", None), ("place", []), ("added_db", "31"), ("added_db", True), ("added_db", None),
        ("total_db", [1.0]), ("added_db", 10**400), ("total_db", {}),
    ]),
    *((("layers",), value) for value in (7, None, {"method": 1}, [[]], ["x"], [{}])),
    *((("accuracy", 0, "inputs"), value) for value in ("mine", 7, None, [])),
    (("accuracy", 0, "figures", "calls"), -1), (("accuracy", 0, "figures", "top1"), "x"),
    (("portable_shares",), {"x": -1}), (("estimates",), {"x": {"y": "nan"}}),
    (("fingerprints",), {"x": {"y": 1}}), (("methods",), "prefill"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), FORGED, ids=str)
def test_a_value_that_a_field_cannot_have_is_an_error(path: tuple[str | int, ...], value: object) -> None:
    data = json.loads(LAYERS.to_json())
    part = data
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(ProgramError, match="the report cannot be read"):
        Report.from_json(json.dumps(data))


LAYERS = Report(
    methods=("prefill", "decode"),
    accuracy=tuple(
        MethodAccuracy(name, "the float reference", Accuracy(30.0, 0.1, 0.2)) for name in ("prefill", "decode")
    ),
    layers=(
        LayerAccuracy("prefill", "linear", "up, aten.linear.default", math.inf, -math.inf),
        LayerAccuracy("prefill", "add", "no module, aten.add.Tensor", math.nan, math.nan),
        LayerAccuracy("prefill", "linear_1", "down, aten.linear.default", 31.25, 30.0),
        LayerAccuracy("decode", "linear", "up, aten.linear.default", math.inf, math.inf),
    ),
)


def test_layers_keep_their_figures_in_json() -> None:
    text = LAYERS.to_json()
    read = Report.from_json(text)
    assert repr(read.layers) == repr(LAYERS.layers), "equal but for NaN"
    assert read.to_json() == text
    assert json.loads(text)["layers"][0]["total_db"] == "-inf"


def test_one_line_per_method_names_the_noisiest_layer() -> None:
    assert LAYERS.accuracy_lines()[2:] == [
        "prefill: 3 quantized layers, the noisiest: linear_1 (down, aten.linear.default, 31.2 dB)",
        "decode: 1 quantized layer, the noisiest: linear (up, aten.linear.default, exact)",
    ]
