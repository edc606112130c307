"""The calls that places are measured on: bad ones are errors that say where they are from, before anything is run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.config import PlacementSection
from delegate.edge.sources import read_programs
from delegate.errors import InputError
from delegate.kernels.selection import kernels_of
from delegate.lowering.compiler import Compiler
from delegate.placement.reference_comparator import samples_to_place
from delegate.placement.runtime.accuracy_check import check_accuracy
from delegate.registry import default_registry
from delegate.selection import select

SHAPE = (2, 4)
GOOD = np.ones(SHAPE, np.float32)


class Difference(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y


def exported(**dynamic: object) -> torch.export.ExportedProgram:
    return torch.export.export(Difference(), (torch.ones(SHAPE), torch.zeros(SHAPE)), dynamic_shapes=dynamic or None)


def measuring(source: str) -> dict[str, object]:
    return {"placement": {"policy": "measured", "budget": 20, "accuracy": {"sqnr_db": 30, "inputs": source}}}


BAD = {  # what a file holds, and what is said of it
    "shape": ({"x": np.ones((2, 5), np.float32), "y": GOOD}, "'x' has the shape [2, 5], but the program takes [2, 4]"),
    "rank": ({"x": GOOD, "y": np.ones(4, np.float32)}, "'y' has the shape [4]"),
    "dtype": ({"x": GOOD, "y": GOOD.astype(np.float64)}, "'y' is float64, but the program takes float32"),
    "number": ({"x": GOOD}, "holds x"),
    "names": ({"x": GOOD, "z": GOOD}, "holds x, z"),
    "none": ({}, "holds nothing"),
}


@pytest.mark.parametrize(("arrays", "message"), BAD.values(), ids=BAD)
def test_inputs_that_the_method_does_not_take(arrays, message, tmp_path) -> None:
    path = tmp_path / "inputs.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError) as caught:
        delegate.to_backend(exported(), "xnnpack", config=measuring(str(path)))
    assert message in str(caught.value)
    assert "placement.accuracy.inputs" in str(caught.value)


def test_a_later_call_is_looked_at_too(tmp_path) -> None:
    np.savez(tmp_path / "0.npz", x=GOOD, y=GOOD)
    np.savez(tmp_path / "1.npz", x=GOOD, y=GOOD[:, :3])
    with pytest.raises(InputError, match=r"number 2"):
        delegate.to_backend(exported(), "xnnpack", config=measuring(str(tmp_path)))


def test_a_file_of_something_else(tmp_path) -> None:
    path = tmp_path / "inputs.npz"
    path.write_text("hello")
    with pytest.raises(InputError, match=r"it is not a \.npy or \.npz file \(placement\.accuracy\.inputs\)"):
        delegate.to_backend(exported(), "xnnpack", config=measuring(str(path)))


def test_sizes_beyond_their_range() -> None:
    batch = torch.export.Dim("batch", min=2, max=8)
    program = exported(x={0: batch}, y={0: batch})
    calls = (torch.ones(9, 4), torch.ones(9, 4))
    with pytest.raises(InputError, match=r"size 9 in dimension 0 \(verify, number 1\)"):
        delegate.to_backend(program, "xnnpack", verify=calls, placement=delegate.Measured())


def test_calls_are_in_the_order_of_the_method() -> None:
    """Inputs by name may have any order."""
    methods = read_programs(exported())
    selection = select("xnnpack", None, default_registry())
    compiler = Compiler(selection, kernels_of(default_registry(), None))
    compiler.add_methods(methods)
    inputs = {"y": torch.zeros(SHAPE), "x": torch.ones(SHAPE)}
    (call,) = samples_to_place(PlacementSection(), inputs, methods, compiler)["forward"]
    x, y = call.args
    assert (x.mean(), y.mean(), call.kwargs) == (1, 0, {})


@pytest.mark.extended
def test_candidates_of_one_scheme_have_names_of_their_own(tmp_path) -> None:
    """Else one of them would take the place of the other in the table, and in the plan."""
    np.savez(tmp_path / "0.npz", input=np.random.default_rng(0).normal(size=SHAPE).astype(np.float32))
    section = {"scheme": "static_int8", "calibration": str(tmp_path)}
    candidates = [{"name": "xnnpack", "quantization": section | more} for more in ({}, {"batches": 1})]
    sizes = {"policy": "measured", "objective": "file size", "budget": 60}  # both are quantized, however busy the cores
    placement = {**sizes, "accuracy": {"sqnr_db": 5}, "candidates": candidates}
    model = torch.export.export(nn.Linear(4, 4).eval(), (torch.randn(SHAPE),))
    config = {"backends": ["xnnpack"], "placement": placement}
    (placed,) = delegate.to_backend(model, config=config, cache=False).report.placements
    assert {p.name for p in placed.plans} == {"xnnpack static_int8", "xnnpack static_int8 (2)"}


@pytest.mark.parametrize(
    ("near", "why"),
    [
        (120.0, ""),
        (41.0, ""),
        (40.4, "40.4 dB, but 40 dB is required, and 1 dB more for inputs that are not measured"),
        (39.9, "39.9 dB, but 40 dB is required"),
        (float("nan"), "nan dB, but 40 dB is required"),
        (float("-inf"), "-inf dB, but 40 dB is required"),
    ],
)
def test_a_bound_is_kept_on_other_inputs_too(near, why) -> None:
    result = check_accuracy({"a": object()}, lambda name, runner: near, 40.0)
    assert result[:2] == ({}, {"a": why} if why else {})


def test_a_bound_beyond_less_precision_has_no_more_to_keep() -> None:
    assert check_accuracy({"a": object()}, lambda name, runner: 121.6, 121.0)[:2] == ({}, {})
