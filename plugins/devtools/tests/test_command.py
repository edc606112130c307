"""The commands `debug` and `export-graph`, the option `--trace`, and how `diff` and they fail."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.commands import FAILED, USAGE, call
from tests.support.hostile import EVIL, paths, require_printable

__all__ = ["paths"]

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
CONFIG = "backends: [xnnpack]\nquantization: {scheme: static_int8, calibration: x.npz}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("net", "other")):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval()
        torch.export.save(torch.export.export(net, (X,)), f"{name}.pt2")
    np.savez("x.npz", input=X.numpy())
    Path("int8.yaml").write_text(CONFIG)
    Path("file").touch()


def test_a_model() -> None:
    assert "no operator is wrong" in call("debug", "net.pt2", "-b", "xnnpack", "--inputs", "x.npz")[0]
    assert call("debug", "net.pt2", "-b", "xnnpack", "--nan")[0] == "no result has NaN or infinity\n"
    assert json.loads(call("debug", "net.pt2", "-b", "xnnpack", "--json")[0])["faults"] == []


@pytest.mark.parametrize("options", [("-b", "xnnpack"), ("-c", "int8.yaml")])
def test_a_saved_program(options: tuple[str, str]) -> None:
    call("lower", "net.pt2", *options, "-o", "net.dlg")
    printed, _ = call("debug", "net.pt2", "--from", "net.dlg", *(options if options[0] == "-c" else ()))
    assert ("against the quantized reference" in printed) == (options[0] == "-c")
    if options[0] == "-b":
        assert "no operator is wrong" in printed
        error = call("debug", "other.pt2", "--from", "net.dlg", code=FAILED)[1]
        assert "weights 0.weight, 0.bias of method forward differ (net.dlg): give the model with the weights" in error


def test_the_graph_and_its_node_data() -> None:
    call("lower", "net.pt2", "-b", "portable", "-o", "net.dlg")
    assert call("export-graph", "net.dlg", "-o", "g.json")[0].startswith("saved g.json, ")
    assert json.loads(Path("g.json").read_text())["graphs"][0]["nodes"][0]["id"] == "linear"
    assert Path("g.work.json").exists()
    call("export-graph", "net.pt2", "-b", "xnnpack", "-o", "g.dot")  # the format follows from the ending
    assert "linear" in Path("g.dot").read_text()


@pytest.mark.parametrize("format", ["model-explorer", "dot", "onnx"])
def test_nothing_is_written_for_a_program_without_debug_info(format: str) -> None:
    call("lower", "net.pt2", "-b", "portable", "-o", "net.dlg")
    call("strip", "net.dlg")
    before = os.listdir()
    error = call("export-graph", "net.dlg", "--format", format, "-o", "g.out", code=FAILED)[1]
    assert "the program has no debug info" in error
    assert os.listdir() == before


def test_traces_of_lowering_and_of_runs() -> None:
    assert "saved t.json, " in call("lower", "net.pt2", "-b", "xnnpack", "-o", "net.dlg", "--trace", "t.json")[0]
    names = {e["name"] for e in json.loads(Path("t.json").read_text())["traceEvents"]}
    assert {"lower", "canonicalize", "plan", "support checks", "compile xnnpack_0"} <= names
    text = call("run", "net.dlg", "--repeat", "3", "--trace", "run.json", "--inner")[0]
    assert f"saved run.json, {Path('run.json').stat().st_size:,} bytes" in text
    counts = Counter(e["name"] for e in json.loads(Path("run.json").read_text())["traceEvents"])
    assert (counts["load"], counts["open xnnpack_0"], counts["forward"], counts["xnnpack_0"]) == (1, 1, 3, 3)
    assert json.loads(call("run", "net.dlg", "--trace", "run.json", "--json")[0])["trace"] == "run.json"
    np.save("small.npy", X[:1])
    call("run", "net.dlg", "-i", "small.npy", "--trace", "failed.json", code=FAILED)
    assert not Path("failed.json").exists()


@pytest.mark.parametrize(
    "line",
    ["diff FILE FILE", "diff FILE EVIL", "export-graph FILE -o x.json", "export-graph EVIL -o x.dot", "ops EVIL"],
)
def test_no_command_prints_control_characters(line: str, paths: dict[str, str]) -> None:
    require_printable([{**paths, "EVIL": EVIL}.get(word, word) for word in line.split()])


WRONG = {
    "diff absent.dlg absent.dlg": (FAILED, "absent.dlg"),
    "diff file file": (FAILED, "file"),
    "diff net.dlg": (USAGE, "Missing argument 'B.dlg'"),
    "export-graph absent.dlg -o new.json": (FAILED, "absent.dlg"),
    "export-graph file -o file/below": (FAILED, "cannot be written"),
    "export-graph file -o file": (FAILED, "--output would overwrite MODEL"),
    "export-graph net.pt2 -o new.json --format svg": (USAGE, "svg"),
    "export-graph net.pt2": (USAGE, "--output"),
    "ops aten.ad.Tensor": (FAILED, "did you mean"),
    "ops --unknown": (USAGE, "--unknown"),
    "debug": (USAGE, "MODEL is missing"),
    "debug absent.pt2": (FAILED, "absent.pt2"),
    "debug file": (FAILED, "file"),
    "debug net.pt2 --inputs y=x.npy": (FAILED, "no input 'y'"),
    "debug net.pt2 -o file/below": (FAILED, "cannot be written"),
    "debug --from net.dlg": (FAILED, "no module to compare them with (net.dlg): give the model too: `delegate debug"),
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said(line: str) -> None:
    code, words = WRONG[line]
    assert words in " ".join(call(*line.split(), code=code)[1].split())
