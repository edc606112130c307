"""Graphs for other viewers: complete, with hostile names quoted, and no file half-written."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace

import pytest
from delegate_devtools.export_graph import dot, model_explorer, node_data, onnx_model

from delegate.errors import DelegateError
from delegate.report import Report
from tests.support.forged_reports import MANY, ODD, forged_reports, node, require_proportion, written
from tests.support.reports import HOSTILE, report


def test_model_explorer_has_every_node_edge_and_verdict():
    collection = json.loads(model_explorer(report(), "net"))
    assert collection["label"] == "net"
    (graph,) = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert list(nodes) == [*(n.name for n in report().nodes), "input x", "constant embed.weight"]
    for expected in report().nodes:
        node = nodes[expected.name]
        assert [edge["sourceNodeId"] for edge in node["incomingEdges"]] == list(expected.inputs)
        assert node["namespace"] == expected.module.replace(".", "/")
        assert node["outputsMetadata"][0]["attrs"] == [{"key": "tensor_shape", "value": "float32[1, 8]"}]
        facts = {item["key"]: item["value"] for item in node["attrs"]}
        assert facts["backend"] == expected.backend
        assert facts["verdict of xnnpack"] == str(expected.verdicts["xnnpack"])
    assert nodes["constant embed.weight"]["namespace"] == "embed"
    colours = {nodes[n.name]["style"]["backgroundColor"] for n in report().nodes}
    assert len(colours) == 2  # one per backend


def test_node_data_is_that_of_the_nodes():
    files = {kind: json.loads(data) for kind, data in node_data(report()).items()}
    names = {n.name for n in report().nodes}
    assert {kind: set(data["forward"]["results"]) for kind, data in files.items()} == {
        "work": names,
        "bytes": names,
        "sqnr": {n.name for n in report().nodes if n.partition},
    }
    assert files["bytes"]["forward"]["results"]["head"] == {"value": 32}
    assert [item["stop"] for item in files["sqnr"]["forward"]["gradient"]] == [0, 1]
    unverified = replace(report(), partitions=tuple(replace(p, accuracy=None) for p in report().partitions))
    assert set(node_data(unverified)) == {"work", "bytes"}


def test_dot_has_every_edge_and_quotes_names():
    text = dot(report(), "net").decode()
    assert text.count(" -> ") == sum(len(n.inputs) for n in report().nodes)
    assert text.count("{") == text.count("}")
    hostile = replace(report().nodes[0], name=HOSTILE, op=HOSTILE, module=HOSTILE + '"\\" ]; evil [', result=HOSTILE)
    evil = dot(replace(report(), nodes=(hostile,)), HOSTILE + "\n").decode()
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", evil)  # what is left is not in a string
    assert not re.search(r"script|img|evil|[<'&]", outside)
    assert not any(c in evil for c in "\u202e\x1b")


def test_onnx_is_read_again():
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    model = onnx.load_model_from_string(onnx_model(report(), "net"))
    assert [node.name for node in model.graph.node] == [n.name for n in report().nodes]
    assert [list(node.input) for node in model.graph.node] == [list(n.inputs) for n in report().nodes]
    assert [value.name for value in model.graph.input] == ["input x", "constant embed.weight"]
    (result,) = model.graph.output
    assert result.name == "head"
    assert [d.dim_value for d in result.type.tensor_type.shape.dim] == [1, 8]
    facts = {a.name: a.s.decode() for a in model.graph.node[3].attribute}
    assert facts["verdict_of_xnnpack"].startswith("unsupported rank: 5 dimensions are too many")


def test_onnx_needs_its_package_and_one_method(monkeypatch):
    pytest.importorskip("onnx")
    with pytest.raises(DelegateError, match="holds one method, but the program has 2"):
        onnx_model(replace(report(), methods=("forward", "other")), "net")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(DelegateError, match=r"not installed: pip install onnx"):
        onnx_model(report(), "net")


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_graphs_of_forged_reports(odd):
    for forged in forged_reports(odd):
        assert [model_explorer(forged, "forged"), dot(forged, "forged"), node_data(forged)]
        if len(forged.methods) == 1:
            assert onnx_model(forged, "forged")


@pytest.mark.parametrize("kind", MANY)
def test_graphs_are_in_proportion_to_the_report(kind):
    require_proportion(
        kind, [lambda r: model_explorer(r, "x"), lambda r: dot(r, "x"), lambda r: b"".join(node_data(r).values())]
    )


@pytest.mark.parametrize(
    "result", ["float32[\u00b2]", f"float32[{'9' * 30}]", f"float32[{'9' * 5000}]", "float32[-1, x]"]
)
def test_sizes_that_onnx_does_not_have(result):
    assert onnx_model(Report.from_json(written(["m"], [node("m", "n", result=result)])), "x")
