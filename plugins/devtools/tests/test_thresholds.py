"""Which errors are faults: by default that depends on the precision of the model, and is printed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from delegate_devtools import debug
from delegate_devtools.diagnosis import Diagnosis
from torch import nn

import delegate
from delegate.kernels.table import KernelTable
from tests.support.planting import aten, followed_by, planted

X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


def model(dtype: torch.dtype = torch.float32) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).eval()
    return torch.export.export(layers.to(dtype), (X.to(dtype),))


# Relative error of one operator, whether it is a fault of a float32 model by default.
@pytest.mark.parametrize(("error", "is_fault"), [(1e-2, True), (3e-3, True), (5e-4, True), (2e-4, True), (1e-6, False)])
def test_errors_in_a_partition(error: float, is_fault: bool) -> None:
    with planted("xnnpack", "tanh", followed_by((aten.mul.Tensor, (1 + error,), {}))):
        diagnosis = debug(model(), "xnnpack", cache=False)
        within = debug(model(), "xnnpack", cache=False, inputs=delegate.Verify(sqnr_db=20))
    assert [[n.name for n in fault.nodes] for fault in diagnosis.faults] == ([["tanh"]] if is_fault else [])
    assert "\nright is 80 dB or more, by default for float32" in str(diagnosis)
    assert within.faults == ()
    assert "\nright is 20 dB or more\n" in f"{within}\n"
    assert Diagnosis.from_json(diagnosis.to_json()).bounds == diagnosis.bounds


@pytest.mark.parametrize(("error", "is_fault"), [(3e-3, True), (2e-4, True), (1e-6, False)])
def test_errors_of_a_kernel(error: float, is_fault: bool) -> None:
    table = KernelTable("inexact")
    table.kernel("aten.tanh.default")(lambda x, *, out: np.multiply(np.tanh(x), np.float32(1 + error), out=out))
    faults = debug(model(), [], kernels=[table, "portable"]).faults
    assert [fault.nodes[0].name for fault in faults] == (["tanh"] if is_fault else [])


def test_the_threshold_of_a_model_in_bfloat16() -> None:
    diagnosis = debug(model(torch.bfloat16), [])
    assert diagnosis.faults == ()
    assert diagnosis.bounds == "30 dB or more, by default for 16-bit floats"


# Functions whose float32 results have far fewer right digits than float32 has.
CANCELLING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "differences of large numbers": lambda x: ((x + 1e5) - (x * 0.5 + 1e5)).tanh(),
    "a variance": lambda x: (x + 1e4).var(-1),
    "a normalization": lambda x: nn.functional.layer_norm(x + 1e4, (64,)),
    "a sum near 0": lambda x: (x * 1e4 - x.mean(-1, keepdim=True) * 1e4).sum(-1),
}


@pytest.mark.parametrize("function", CANCELLING.values(), ids=CANCELLING)
@pytest.mark.parametrize("backends", [[], ["xnnpack"]], ids=["kernels", "xnnpack"])
def test_what_float32_itself_cannot_compute_is_no_fault(
    function: Callable[[torch.Tensor], torch.Tensor], backends: list[str]
) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    assert debug(torch.export.export(Model(), (X,)), backends, cache=False).faults == ()
