"""`delegate export-graph`: all files or none."""

from __future__ import annotations

import json

import pytest

from tests.cli.calling import call
from tests.cli.programs import save_sum


def test_the_graph_and_its_node_data(tmp_path):
    path = save_sum(tmp_path / "sum.dlg")
    out, _ = call("export-graph", str(path), "-o", str(tmp_path / "g.json"))
    assert out.startswith(f"saved {tmp_path / 'g.json'}, ")
    assert json.loads((tmp_path / "g.json").read_text())["graphs"][0]["nodes"][0]["id"] == "add"


@pytest.mark.parametrize("format", ["model-explorer", "dot", "onnx"])
def test_nothing_is_written_for_a_program_without_debug_info(tmp_path, format):
    path = save_sum(tmp_path / "sum.dlg")
    call("strip", str(path))
    error = call("export-graph", str(path), "--format", format, "-o", str(tmp_path / "g.out"), code=1)[1]
    assert "the program has no debug info" in error
    assert [p.name for p in tmp_path.iterdir()] == ["sum.dlg"]
