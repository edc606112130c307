"""The precision of programs: models that a user quantized have the names and default bounds of their integers."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import export

import delegate
from delegate.accuracy.bounds import DEFAULTS, precision_of
from delegate.errors import AccuracyError
from tests.support import zoo
from tests.support.quantizing import Quantize, by_x86, by_xnnpack, in_place, pt2e
from tests.support.sampling import every

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    from torchao.quantization.granularity import PerAxis, PerGroup

X = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()


# The way in which a user quantizes -> the function, and the precision.
QUANTIZED: dict[str, tuple[Quantize, str]] = {
    "int8 weights": (in_place("Int8WeightOnlyConfig"), "int8"),
    "int8 weights in groups": (in_place("Int8WeightOnlyConfig", granularity=PerGroup(32)), "int8"),
    "int8 weights per channel": (
        in_place("IntxWeightOnlyConfig", weight_dtype=torch.int8, granularity=PerAxis(0)), "int8"
    ),
    "int8, activations at run time": (in_place("Int8DynamicActivationInt8WeightConfig"), "int8"),
    "int4 weights": (in_place("IntxWeightOnlyConfig", weight_dtype=torch.int4, granularity=PerGroup(32)), "4 bits"),
    "int4 weights, int8 activations at run time": (
        in_place(
            "Int8DynamicActivationIntxWeightConfig", weight_dtype=torch.int4, weight_granularity=PerGroup(32)
        ),
        "4 bits",
    ),
    "int2 weights": (
        in_place("IntxWeightOnlyConfig", weight_dtype=torch.int2, granularity=PerGroup(32)), "fewer than 4 bits"
    ),
    "PT2E static": (pt2e(by_xnnpack(is_per_channel=True)), "int8"),
    "PT2E static, u8 by s8": (pt2e(by_x86()), "int8"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:XNNPACKQuantizer is deprecated")
@pytest.mark.parametrize("way", every(6, QUANTIZED))
def test_a_model_quantized_by_the_user(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the name and the default bound of its precision, and a missed bound names its layers."""
    quantize, precision = QUANTIZED[way]
    with zoo.libraries():
        coded, floats = quantize(net(), X), export(net(), (X,))
    assert precision_of(coded) == precision
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is usual for")
        alone = delegate.to_backend(coded, "xnnpack", verify=(X,))
        beside = delegate.to_backend(coded, "xnnpack", verify=delegate.Verify((X,), reference=floats))
    assert [a.reference for a in alone.report.accuracy] == ["the quantized reference"]
    assert [a.reference for a in beside.report.accuracy] == ["the float reference", "the quantized reference"]

    config = {"backends": [], "verify": {"sqnr_db": 70, "on_failure": "move"}}
    with pytest.raises(AccuracyError) as caught:
        delegate.to_backend(coded, config=config, verify=delegate.Verify((X,), reference=floats))
    text = str(caught.value)
    assert "the quantization is at fault, not a backend" in text
    assert "linear (0, aten.linear.default, " in text
    assert "linear_1 (2, aten.linear.default, " in text
    assert "quantize it again, and keep these layers in float:\nquantization:\n  nodes:\n" in text

    monkeypatch.setattr("delegate.accuracy.verification.DEFAULTS", {**DEFAULTS, precision: 99.0})
    with pytest.warns(RuntimeWarning, match=f"99 dB or more is usual for {precision}; the quantization is at fault"):
        delegate.to_backend(coded, [], verify=delegate.Verify((X,), reference=floats))


class Stored(nn.Module):
    """A layer whose weights are integers that the module itself decodes."""

    def __init__(self, decode: Callable[[torch.Tensor], torch.Tensor], integers: torch.Tensor) -> None:
        super().__init__()
        self.decode, self.integers, self.scales = decode, nn.Buffer(integers), nn.Buffer(torch.rand(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.decode(self.integers) * self.scales)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.scales = nn.Buffer(torch.ones(9, 4, dtype=torch.int8)), nn.Buffer(torch.rand(9, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = x.argmax(1)
        return nn.functional.embedding(ids, self.rows).float() * nn.functional.embedding(ids, self.scales)


class Masked(nn.Module):
    """Bytes and counts that are no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mask = nn.Linear(64, 4), nn.Buffer(torch.ones(64, dtype=torch.uint8))
        self.places, self.rates = nn.Buffer(torch.arange(64)), nn.Buffer(torch.rand(5, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * self.mask.float() + self.rates @ self.places[None].float())


class Trained(nn.Module):
    """A layer in training with fake quantization."""

    def __init__(self, high: int) -> None:
        super().__init__()
        self.layer, self.high = nn.Linear(64, 4), high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -1 - self.high, self.high))


def two_halves(bytes_: torch.Tensor) -> torch.Tensor:
    return torch.stack([bytes_ & 15, bytes_ >> 4], -1).reshape(8, 64).float() - 8


def eighths(words: torch.Tensor) -> torch.Tensor:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return (torch.bitwise_right_shift(words[..., None], shifts) & 15).reshape(8, 64).float() - 8


MODULES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "floats": (net, "float32"),
    "half precision": (lambda: net().half(), "16-bit floats"),
    "bytes as weights": (lambda: Stored(torch.Tensor.float, torch.ones(8, 64, dtype=torch.int8)), "int8"),
    "two weights in a byte": (lambda: Stored(two_halves, torch.ones(8, 32, dtype=torch.uint8)), "4 bits"),
    "eight weights in a word": (lambda: Stored(eighths, torch.ones(8, 8, dtype=torch.int32)), "4 bits"),
    "int16 weights": (lambda: Stored(torch.Tensor.float, torch.ones(8, 64, dtype=torch.int16)), "16-bit integers"),
    "a table of bytes": (Table, "int8"),
    "bytes that are a mask": (Masked, "float32"),
    "fake quantization": (lambda: Trained(127), "int8"),
    "fake quantization to 4 bits": (lambda: Trained(7), "4 bits"),
}


@pytest.mark.parametrize("name", MODULES)
def test_precisions(name: str) -> None:
    build, precision = MODULES[name]
    module = build().eval()
    x = X.half() if name == "half precision" else X
    assert precision_of(export(module, (x,))) == precision
