"""The result of the debugger: as JSON, forged, on the report's page, and in `delegate report --debug-result`."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from delegate_devtools.diagnosis import Diagnosis, Fault, FaultKind, FaultyNode

import delegate
from delegate.errors import InputError
from delegate.report.page import page
from delegate.report.rows import Accuracy, LayerAccuracy
from tests.support.browser import Opened, browser
from tests.support.commands import call
from tests.support.mutations import check_values
from tests.support.reports import HOSTILE, data_of, report

__all__ = ["browser"]

RELU = FaultyNode("relu_0", "aten.relu.default", "blocks.0.relu", "model.py:6")
DIAGNOSIS = Diagnosis(
    {"forward against the float reference": Accuracy(6.4, 0.42, 0.48, 0.0)},
    (Fault("forward", "xnnpack", "xnnpack_0", (RELU,), FaultKind("wrong values", "all elements are zero"),
           Accuracy(-math.inf, 1.5, 0.6), 6, 3, remedy="partitioning:\n  node_pins:\n    relu_0: portable"),),
    3,
    (
        LayerAccuracy("forward", "xnnpack_0", "xnnpack", 6.4, 6.0),
        LayerAccuracy("forward", "sort_0", "aten.sort.default", math.inf, None),
    ),
    (LayerAccuracy("forward", "linear", "fc, aten.linear.default", 30.0, 20.0),),
    not_finite=("first NaN here: none",),
    notes=("a note of the debugger",),
)  # fmt: skip


def test_the_result_of_the_debugger_is_in_the_data():
    assert Diagnosis.from_json(DIAGNOSIS.to_json()) == DIAGNOSIS
    (data,) = data_of(page([report().page_data("net", diagnosis=DIAGNOSIS)]))["reports"]
    (fault,) = data["methods"][0]["faults"]
    assert [(node["name"], node["operator"]) for node in fault["nodes"]] == [("relu_0", "aten.relu.default")]
    error = data["methods"][0]["errors"][1]
    assert (error["node"], error["place"], error["added_db"], error["total_db"]) == (
        "sort_0", "aten.sort.default", "inf", None,
    )  # fmt: skip
    assert data["methods"][0]["layers"][0]["node"] == "linear_0"  # of the verified program
    (data,) = data_of(page([replace(report(), layers=()).page_data("net", diagnosis=DIAGNOSIS)]))["reports"]
    (layer,) = data["methods"][0]["layers"]
    assert (layer["node"], layer["added_db"], layer["total_db"]) == ("linear", 30.0, 20.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", DIAGNOSIS.to_json().replace('"forward"', "3")])
def test_another_text_is_no_diagnosis(text):
    with pytest.raises(InputError, match="the diagnosis cannot be read"):
        Diagnosis.from_json(text, "result.json")


def test_hostile_names_stay_within_the_data() -> None:
    fault = replace(DIAGNOSIS.faults[0], nodes=(FaultyNode(HOSTILE, HOSTILE),), remedy=HOSTILE, place=HOSTILE)
    text = page([report().page_data("x", diagnosis=replace(DIAGNOSIS, faults=(fault,), notes=(HOSTILE,)))])
    assert text.count("<script") == text.count("</script>") == 3
    assert not any(c in text for c in "\u202e\x1b")


def test_a_changed_diagnosis_is_an_error_or_has_a_page() -> None:
    def read(text: str) -> object:
        diagnosis = Diagnosis.from_json(text)
        return [str(diagnosis), diagnosis.to_json(), page([report().page_data("x", None, diagnosis)])]

    check_values(json.loads(DIAGNOSIS.to_json()), json.dumps, read)


def test_faults_of_the_debugger_lead_to_their_nodes(browser, tmp_path):
    path = tmp_path / "debugged.html"
    path.write_text(page([replace(report(), layers=(), accuracy=()).page_data("net", diagnosis=DIAGNOSIS)]))
    with Opened(browser, path) as opened:
        opened.page.click("#tab-memory")
        assert "512 B" in opened.text("main")
        opened.page.click("#tab-accuracy")
        words = opened.text("main")
        assert r"\n" not in words
        faults = ("wrong values: all elements are zero", "relu_0: portable", "a note of the debugger")
        for expected in (*faults, "exact", "unknown", "SQNR of quantized layers along the depth"):
            assert expected in words
        opened.page.click("button:text-is('relu_0')")
        assert "all elements are zero" in opened.text("aside")
        assert opened.run("delegatePage.views[0].graph.byName.get('sort_0').sqnr") == math.inf
        assert opened.messages == []


def test_the_command_shows_the_result(tmp_path):
    program = str(tmp_path / "model.dlg")
    delegate.to_backend(torch.export.export(torch.nn.ReLU(), (torch.ones(2),)), []).save(program)
    out, result = str(tmp_path / "x.html"), tmp_path / "result.json"
    diagnosis = Diagnosis({}, (), 1, (LayerAccuracy("forward", "relu", "aten.relu.default", 30.0, None),))
    result.write_text(diagnosis.to_json())
    call("report", program, "--debug-result", str(result), "-o", out)
    (error,) = data_of((tmp_path / "x.html").read_text())["reports"][0]["methods"][0]["errors"]
    assert (error["node"], error["added_db"], error["total_db"]) == ("relu", 30.0, None)
    (tmp_path / "x.html").unlink()
    result.write_text("no JSON")
    assert (
        "the diagnosis cannot be read" in call("report", program, "--debug-result", str(result), "-o", out, code=1)[1]
    )
    assert "give one" in call("report", program, program, "--debug-result", str(result), "-o", out, code=2)[1]
    assert not (tmp_path / "x.html").exists()
