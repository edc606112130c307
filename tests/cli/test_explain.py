"""`delegate explain` and `delegate.explain` refuse the models that lowering refuses before it compiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.compile import explain, plan_and_check
from delegate.errors import DelegateError


@torch.library.custom_op("delegate_explained::no_kernel", mutates_args=())
def no_kernel(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@no_kernel.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Net(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


def exported(function: Callable[..., Any], *, dynamic: bool = False) -> ExportedProgram:
    shapes = ({0: Dim("rows", min=1, max=8)},) if dynamic else None
    return torch.export.export(Net(function).eval(), (torch.randn(2, 4),), dynamic_shapes=shapes)


def without_example_inputs() -> ExportedProgram:
    ep = exported(torch.relu)
    ep._example_inputs = None
    return ep


REFUSED: dict[str, tuple[Callable[[], ExportedProgram], dict[str, Any]]] = {
    "no kernel": (lambda: exported(no_kernel), {}),
    "no kernel, dynamic": (lambda: exported(no_kernel, dynamic=True), {}),
    "no program dtype": (lambda: exported(lambda y: y.to(torch.float8_e4m3fn).to(torch.float32)), {}),
    "portable is an error": (
        lambda: exported(lambda y: torch.cumsum(y, 0).sort()[0]),
        {"policy": {"portable": "error"}},
    ),
    "fallback without a kernel": (lambda: exported(no_kernel), {"fallback": {"keep": True}}),
    "nothing to verify on": (without_example_inputs, {"verify": {"sqnr_db": 40}}),
    "measured without backends": (lambda: exported(torch.relu), {"backends": [], "placement": {"policy": "measured"}}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_lowering_and_explaining_refuse_the_same(case: str) -> None:
    make, settings = REFUSED[case]
    config = {"backends": ["xnnpack"], **settings}
    with pytest.raises(DelegateError) as lowered:
        delegate.to_backend(make(), config=config, cache=False)
    with pytest.raises(DelegateError) as explained:
        explain(make(), config=config)
    assert (type(explained.value), str(explained.value)) == (type(lowered.value), str(lowered.value))


def test_the_report_comes_with_the_refusal() -> None:
    report, refusal = plan_and_check(exported(no_kernel), "xnnpack")
    assert "no_kernel" in str(report)
    assert refusal is not None
    assert plan_and_check(exported(torch.relu), "xnnpack")[1] is None


def test_the_command_prints_the_report_and_fails(tmp_path: Path) -> None:
    torch.export.save(exported(no_kernel), tmp_path / "net.pt2")
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "net.pt2"), "-b", "xnnpack"])
    assert done.exit_code == 1
    assert "no_kernel" in done.stderr
    assert "1 node portable" in done.stdout
