"""`delegate run`, `inspect` and `explain` on a program file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.programs import REPORT, save_number, save_sum
from tests.support.commands import call
from tests.support.plugins import Site

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def folder(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a program and the .npy files x and y."""
    site.backend("adder")
    monkeypatch.chdir(tmp_path)
    save_sum(tmp_path / "sum.dlg")
    np.save("x.npy", X)
    np.save("y.npy", X * 10)
    return tmp_path


@pytest.mark.parametrize(
    "inputs", [("x.npy", "y.npy"), ("x=x.npy", "y=y.npy"), ("y=y.npy", "x.npy"), ("y.npy", "x=x.npy")]
)
def test_files(folder: Path, inputs: tuple[str, ...]) -> None:
    flags = [part for path in inputs for part in ("--input", path)]
    stdout, _ = call("run", "sum.dlg", *flags, "--output", "out/deep")
    assert np.array_equal(np.load(folder / "out/deep/sum.npy"), X * 11)
    assert "float32[2, 3]" in stdout
    assert "out/deep/sum.npy" in stdout


def test_random_inputs_are_seeded_and_said(folder: Path) -> None:
    stdout, _ = call("run", "sum.dlg")
    assert "in  x (random, seed 0)" in stdout
    assert "ran forward once: " in stdout
    first, second = (json.loads(call("run", "sum.dlg", "--json")[0]) for _ in range(2))
    assert first["outputs"] == second["outputs"]
    assert first["inputs_from"] == "random, seed 0"


def test_repeat_and_json(folder: Path) -> None:
    data = json.loads(call("run", "sum.dlg", "-i", "x.npy", "-i", "y.npy", "--repeat", "5", "--json")[0])
    assert len(data["seconds"]) == 5
    assert all(s > 0 for s in data["seconds"])
    assert data["outputs"] == [
        {"name": "sum", "dtype": "float32", "shape": [2, 3], "min": 0, "max": 55, "mean": 27.5, "file": None}
    ]


def test_dynamic_sizes(folder: Path) -> None:
    save_sum(folder / "dynamic.dlg", dynamic=True)
    assert "float32[2, 3]" in call("run", "dynamic.dlg")[0]
    np.save("tall.npy", np.ones((7, 3), np.float32))
    assert "float32[7, 3]" in call("run", "dynamic.dlg", "-i", "tall.npy", "-i", "tall.npy")[0]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("sum.dlg", "-i", "x.npy"), "inputs without a file: y (method forward): it takes x, y"),
        (("sum.dlg", "-i", "x.npy", "-i", "y.npy", "-i", "x.npy"), "3 files in order, but 2 inputs are left"),
        (("sum.dlg", "-i", "z=x.npy"), "method forward has no input 'z'"),
        (("sum.dlg", "-i", "x=x.npy", "-i", "x=y.npy"), "input 'x' is given twice"),
        (("sum.dlg", "-i", "a.npy", "-i", "y.npy"), "there is no file 'a.npy' for input 'x'"),
        (("sum.dlg", "-i", "sum.dlg", "-i", "y.npy"), "'sum.dlg' for input 'x' cannot be read"),
        (("sum.dlg", "-i", "objects.npy", "-i", "y.npy"), "'objects.npy' for input 'x' cannot be read"),
        (("sum.dlg", "-i", "flat.npy", "-i", "y.npy"), "input 'x' has the shape [6], but the program takes [2, 3]"),
        (("sum.dlg", "-i", "several.npz", "-i", "y.npy"), "'several.npz' for input 'x' holds several arrays"),
        (("sum.dlg", "--output", "sum.dlg"), "the outputs cannot be written"),
        (("sum.dlg", "--method", "backward"), "no method 'backward'"),
        (("absent.dlg",), "absent.dlg"),
        (("x.npy",), "x.npy"),
    ],
)
def test_errors(folder: Path, args: tuple[str, ...], message: str) -> None:
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.save("flat.npy", np.ones(6, np.float32))
    np.savez("several.npz", a=X)
    stdout, stderr = call("run", *args, code=1)
    assert stdout == ""
    assert stderr.startswith("error: ")
    assert message in stderr
    assert stderr.count("\n") == 1


def test_backend_is_absent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "adder")
    assert "backend 'adder' is blocked" in call("run", "sum.dlg", code=1)[1]
    assert "adder_0" in call("inspect", "sum.dlg")[0]  # needs no backend


def test_inspect(folder: Path) -> None:
    text = call("inspect", "sum.dlg")[0]
    assert "forward" in text
    assert "adder" in text
    data = json.loads(call("inspect", "sum.dlg", "--json")[0])
    assert data["delegates"] == [{"name": "adder_0", "backend": "adder", "bytes": 3, "fallback": None}]
    assert data["methods"][0]["inputs"][0] == {"name": "x", "dtype": "float32", "shape": [2, 3]}


def test_explain_a_saved_program(folder: Path) -> None:
    assert call("explain", "sum.dlg")[0] == f"{REPORT}\n"
    assert json.loads(call("explain", "sum.dlg", "--json")[0]) == json.loads(REPORT.to_json())
    assert "is already planned" in call("explain", "sum.dlg", "-b", "adder", code=2)[1]


def test_numbers(folder: Path) -> None:
    """An integer that export made dynamic is given as any input, or chosen as sizes are."""
    save_number(folder / "number.dlg")
    assert json.loads(call("run", "number.dlg", "--json")[0])["outputs"][0]["value"] == 6
    np.save(folder / "n.npy", np.array(7))
    assert json.loads(call("run", "number.dlg", "-i", "n=n.npy", "--json")[0])["outputs"][0]["value"] == 21


def test_outputs_that_are_not_finite_are_counted(folder: Path) -> None:
    """The range is of the finite values, and NaN and infinities are counted in the same line."""
    np.save("x.npy", np.array([[np.nan, 1, np.inf], [2, np.nan, -3]], dtype=np.float32))
    np.save("y.npy", np.zeros((2, 3), dtype=np.float32))
    flags = ("run", "sum.dlg", "-i", "x.npy", "-i", "y.npy")
    assert "-3 to 2; 2 NaN and 1 infinite of 6" in call(*flags)[0]
    (output,) = json.loads(call(*flags, "--json")[0])["outputs"]
    assert {k: output[k] for k in ("nan", "infinite", "min", "max", "mean")} == {
        "nan": 2, "infinite": 1, "min": -3.0, "max": 2.0, "mean": 0.0
    }  # fmt: skip
    np.save("x.npy", np.full((2, 3), np.nan, dtype=np.float32))
    line = next(line for line in call(*flags)[0].splitlines() if line.startswith("out"))
    assert line.endswith("6 NaN of 6")
    (output,) = json.loads(call(*flags, "--json")[0])["outputs"]
    assert output["nan"] == 6
    assert "min" not in output


def test_profile(folder: Path) -> None:
    text = call("run", "sum.dlg", "--repeat", "3", "--profile")[0]
    row = next(line for line in text.splitlines() if "partition adder_0" in line)
    assert row.split()[:5] == ["forward", "add", "partition", "adder_0", "3"]
    (timing,) = json.loads(call("run", "sum.dlg", "--profile", "--json")[0])["profile"]
    assert (timing["what"], timing["count"]) == ("partition adder_0", 1)
    assert timing["nanoseconds"] > 0
    assert json.loads(call("run", "sum.dlg", "--json")[0])["profile"] is None


def test_inner_operators_have_a_place(folder: Path) -> None:
    assert "--inner adds to --profile or --trace" in " ".join(call("run", "sum.dlg", "--inner", code=2)[1].split())


def test_kernel_libraries(folder: Path) -> None:
    out, _ = call("run", "sum.dlg", "-i", "x.npy", "-i", "y.npy", "--kernels", "aten")
    assert "ran forward" in out
    _, problem = call("run", "sum.dlg", "-k", "atn", code=1)
    assert "no kernel library is named 'atn': did you mean 'aten'?" in problem
