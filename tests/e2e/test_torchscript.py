"""TorchScript and eager modules with example inputs: converted, compiled and equal to eager, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.errors import ExportError
from tests.support.lowering import assert_runs, assert_same, refused
from tests.support.sampling import every

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit",
    "ignore:Converting a tensor to a Python boolean:torch.jit.TracerWarning",
    "ignore:The tensor attributes self.*_flat_weights:UserWarning",  # torch's own of its recurrent layers
)


class Convnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout())
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(4, 5, num_layers=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


class Turns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            x = torch.tanh(x) * 2 + i
        return x


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return torch.relu(x) * 2
        return x - 1


class Endless(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while bool(x.sum() < 100):
            x = x * 2
        return x


class Talking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(x.size(0))  # noqa: T201
        return x + 1


class Structures(nn.Module):
    def forward(self, x: torch.Tensor, more: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": x + more["y"], "first": x[0]}


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return x + 1, [x * 2, torch.relu(x)]


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total * 1


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


MODULES: dict[str, tuple[nn.Module, tuple[Any, ...]]] = {
    "convnet": (Convnet(), (x(2, 3, 8, 8),)),
    "loop": (Turns(), (x(2, 3),)),
    "dict": (Structures(), (x(2, 3), {"y": x(3)})),
    "tuple": (Pair(), (x(2, 3),)),
    "lstm": (Recurrent(), (x(6, 1, 4),)),
}


def traced(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return torch.jit.trace(module, inputs, strict=False)


def scripted(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return torch.jit.script(module)


def frozen(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return torch.jit.freeze(torch.jit.script(module))


def eager(module: nn.Module, inputs: tuple[Any, ...]) -> Any:
    return module


@pytest.mark.parametrize(("name", "form"), every(3, MODULES, [traced, scripted, frozen, eager]))
def test_same_as_eager(name, form):
    module, inputs = MODULES[name]
    with torch.no_grad():
        expected = module.eval()(*inputs)
    program = delegate.to_backend(delegate.export(form(module, inputs), inputs), "xnnpack")
    if name == "lstm":
        assert refused(program, "xnnpack") == {"aten.lstm.input": 1}
    else:
        assert_runs(program, "xnnpack")
    assert_same(program(*inputs), expected)


def test_state():
    program = delegate.to_backend(delegate.export(torch.jit.script(Counter()), (x(2, 3),)), [])
    assert_same(program(x(2, 3)), x(2, 3))
    assert_same(program(x(2, 3)), 2 * x(2, 3))


@pytest.mark.parametrize("sign", [1, -1])
def test_branch(sign):
    given = sign * torch.ones(2, 3)
    program = delegate.to_backend(delegate.export(torch.jit.script(Branch()), (given,)), [])
    for other in (given, -given):
        assert_same(program(other), Branch()(other))


def test_file(tmp_path):
    module, inputs = MODULES["convnet"]
    traced(module.eval(), inputs).save(str(tmp_path / "model.pt"))
    program = delegate.to_backend(delegate.export(tmp_path / "model.pt", inputs), "xnnpack")
    assert_runs(program, "xnnpack")
    with torch.no_grad():
        assert_same(program(*inputs), module(*inputs))
    with pytest.raises(ExportError, match=r"model\.pt is TorchScript and needs example inputs"):
        delegate.to_backend(str(tmp_path / "model.pt"))


GOOD = (x(2, 3),)
EXPORTED = torch.export.export(Turns(), GOOD)
REFUSED = {
    "endless loop": (lambda: torch.jit.script(Endless()), GOOD, r"torch cannot convert Endless: .*\(prim::Loop\)"),
    "print": (lambda: torch.jit.script(Talking()), GOOD, r"torch cannot convert Talking: .*\(prim\.Print\.default\)"),
    "wrong inputs": (
        lambda: torch.jit.script(Convnet()),
        GOOD,
        "Convnet does not run on its example inputs: .*Exp",
    ),
    "no inputs": (
        lambda: torch.jit.script(Turns()),
        None,
        "Turns is TorchScript and needs example inputs: export it first",
    ),
    "eager, no inputs": (Turns, None, "Turns is a module, not an exported program: export it first"),
    "no tuple": (Turns, GOOD[0], "the example inputs of Turns are a Tensor, not a tuple"),
    "exported already": (lambda: EXPORTED, GOOD, "a ExportedProgram is not a module and cannot be exported"),
    "dict": (lambda: {"a": EXPORTED}, GOOD, "a dict is not a module and cannot be exported"),
    "eager loop": (Endless, GOOD, "torch.export failed on Endless: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    model, inputs, message = REFUSED[name]
    with pytest.raises(ExportError, match=message) as caught:
        delegate.to_backend(model() if inputs is None else delegate.export(model(), inputs), [])
    assert "\n" not in str(caught.value)
