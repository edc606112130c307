"""Ranges of calibration: small values get small scales, and outliers are excluded with a warning."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.config import Quantization
from delegate.testing import assert_same
from tests.support import zoo
from tests.support.quantized import require_whole, settings_of, sqnr

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    from torchao.quantization.pt2e import HistogramObserver

    from delegate.quantization import convert, prepare, quantize
    from delegate.quantization.observers import FittingHistogram

INT8 = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127, "qscheme": torch.per_tensor_affine}


def net(weights: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64, bias=False), nn.ReLU(), nn.Linear(64, 8, bias=False)).eval()
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(weights)
        module[0].weight[3] = 0  # a channel without a range
        module[0].weight[5] *= 1e-30  # one that is as good as 0
    return module


def errors(module: nn.Module, settings: Quantization, batches: list[torch.Tensor], x: torch.Tensor) -> float:
    """Return the ratio in dB of a quantized module that runs entirely in integers on XNNPACK."""
    program = quantize(torch.export.export(module, (x,)), settings, batches)
    compiled = delegate.to_backend(program, settings.backend)
    require_whole(compiled)
    expected = module(x).detach().double()
    size = expected.abs().max()  # squares of values of 1e-20 have no float32
    return sqnr(expected / size, compiled(x).double() / size)


@pytest.mark.parametrize("scheme", ["static_int8", "dynamic_int8", "weight_only_int8"])
@pytest.mark.parametrize(
    ("inputs", "weights"), [(1.0, 1.0), (1e-6, 1.0), (1.0, 1e-6), (1e-6, 1e-3), (1e-14, 1.0), (1e6, 1e6)]
)
def test_any_size_is_quantized_well(inputs: float, weights: float, scheme: str) -> None:
    module = net(weights)
    batches = [torch.randn(32, 64) * inputs for _ in range(3)]
    assert errors(module, settings_of("xnnpack", scheme), batches, batches[0]) >= 33


@pytest.mark.parametrize("observer", ["histogram", "minmax"])
def test_one_range_serves_small_images_too(observer: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).eval()
    batches = [torch.rand(2, 3, 12, 12) * 1e-6 for _ in range(3)]
    with torch.no_grad():
        module[0].bias.zero_()
        module[3].bias.zero_()
    assert errors(module, settings_of("xnnpack", observer=observer), batches, batches[0]) >= 33


@pytest.mark.parametrize(
    ("scheme", "inputs", "weights", "where", "layers"),
    [
        ("static_int8", 1e-6, 1e-6, "linear_1 of 2", "2"),
        ("static_int8", 1e-25, 1.0, "input_1", "0"),
        ("dynamic_int4", 1.0, 1e-6, "weight 0.weight, weight 2.weight", "0 2"),
    ],
)
def test_what_is_too_small_is_warned_of(scheme: str, inputs: float, weights: float, where: str, layers: str) -> None:
    """The remedy is the configuration that keeps the layers in float: with it there is no warning."""
    batches = [torch.randn(32, 64) * inputs]
    exported = torch.export.export(net(weights), (batches[0],))
    with pytest.warns(RuntimeWarning, match=f"too small for a scale.*{where}.*keep these layers in floats") as caught:
        quantize(exported, settings_of("xnnpack", scheme), batches)
    (message,) = (str(w.message) for w in caught if "too small" in str(w.message))
    named = re.search(r"quantization\.modules: {(.*)}", message)
    assert named is not None
    modules = dict(rule.split(": ") for rule in named[1].split(", "))
    assert set(layers.split()) <= modules.keys()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "no operator of the model is quantized")
        quantize(exported, settings_of("xnnpack", scheme, modules=modules), batches)


@pytest.mark.parametrize(("batch", "batches"), [(512, 1), (32, 4), (16, 1)])
@pytest.mark.parametrize("value", [1000.0, -1000.0])
def test_an_outlier_is_left_out(value: float, batch: int, batches: int) -> None:
    """Check also results computed from the outlier: whole rows, which are not rare."""
    module, good = net(), [torch.randn(batch, 64) for _ in range(batches)]
    bad = [x.clone() for x in good]
    bad[-1][batch // 2, 5] = value
    with pytest.warns(RuntimeWarning, match=r"rare values are left out.*input_1: up to 1e\+03.*outliers: 0"):
        assert errors(module, settings_of("xnnpack"), bad, good[0]) >= 33
    with pytest.warns(RuntimeWarning, match="too small for a scale.*input_1"):
        assert errors(module, settings_of("xnnpack", outliers=0), bad, good[0]) < 10
    with pytest.warns(RuntimeWarning, match="too small for a scale.*input_1"):
        assert errors(module, settings_of("xnnpack", observer="minmax"), bad, good[0]) < 10


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_outlier_of_values_of_one_sign(sign: float) -> None:
    """Use values of 0 to 1 or of -1 to 0, and one value 1000 times as large."""
    values = sign * torch.linspace(0.001, 1.0, 2000)
    values[1000] = 1000 * sign
    observer = FittingHistogram(outliers=0.001, **INT8)
    observer(values)
    outliers = observer.outliers()
    assert outliers is not None
    assert outliers.largest == 1000
    assert max(map(abs, outliers.range)) < 2


# Values of usual activations.
USUAL: Mapping[str, Callable[[], torch.Tensor]] = {
    "normal": lambda: torch.randn(64, 512),
    "positive": lambda: torch.randn(64, 512).relu(),
    "sparse": lambda: (torch.rand(64, 512) < 0.0005) * torch.rand(64, 512) * 100,
    "uniform": lambda: torch.rand(64, 512),
    "exponential tails": lambda: torch.distributions.Laplace(0, 1).sample((64, 512)),
    "GELU": lambda: nn.functional.gelu(torch.randn(64, 512)),
    "a channel of large values": lambda: torch.randn(64, 512) * torch.cat([torch.ones(511), torch.tensor([60.0])]),
    "constant": lambda: torch.full((64, 512), 3.0),
    "few": lambda: torch.cat([torch.randn(500), torch.tensor([1000.0])]),
}


@pytest.mark.parametrize("name", USUAL)
def test_ranges_of_usual_values_are_those_of_the_least_square_error(name: str) -> None:
    torch.manual_seed(0)
    ours, theirs = FittingHistogram(outliers=1e-4, **INT8), HistogramObserver(**INT8)
    for _ in range(3):
        values = USUAL[name]()
        assert ours(values) is values
        theirs(values)
    assert ours.outliers() is None
    (scale, zero_point), (expected_scale, expected_zero_point) = ours.calculate_qparams(), theirs.calculate_qparams()
    assert_same(scale, expected_scale.to(scale.dtype), 4e-7)
    assert_same(zero_point, expected_zero_point.to(zero_point.dtype), steps=1)


@pytest.mark.parametrize(("low", "high"), [(0, 1000.0), (-1000.0, 0), (-3000.0, 1000.0)])
def test_ends_without_outliers(low: float, high: float) -> None:
    torch.manual_seed(0)
    values = torch.randn(32768)
    values[:2] = torch.tensor([low, high])
    observer: Any = FittingHistogram(outliers=1e-4, **INT8)
    passed = observer(values)
    outliers = observer.outliers()
    rest = values[values.abs() < 100]
    for end, expected, outlier in zip(outliers.range, (rest.min(), rest.max()), (low, high), strict=True):
        quantile = torch.quantile(rest, 1e-4 if expected < 0 else 1 - 1e-4)
        assert_same(torch.tensor(end), quantile if outlier else expected, 0.08)  # 2e-2 is measured: bins of a histogram
    assert (passed.min(), passed.max()) == outliers.range
    assert outliers.largest == max(abs(low), abs(high))


@pytest.mark.extended
def test_usual_models_are_as_exact_and_without_warnings() -> None:
    from tests.quantization.models import Encoder, Residual, build_with_batches

    for build, shape in ((Residual, (2, 3, 24, 20)), (Encoder, (2, 6, 64))):
        module, batches = build_with_batches(build, *shape)
        exported, messages = torch.export.export(module, batches[0]), []
        for outliers in (0.0, 1e-4):
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                program = quantize(exported, settings_of("xnnpack", outliers=outliers), batches)
            messages.append(sqnr(module(*batches[0]).detach(), program.module()(*batches[0]).detach()))
        assert messages[1] == messages[0]


@pytest.mark.parametrize(
    ("scheme", "inputs", "weights", "where"),
    [
        ("static_int8", 1e-6, 1.0, "input_1"),
        ("static_int8", 1.0, 1e-6, "weight 0.weight"),
        ("dynamic_int8", 1.0, 1e-6, "weight 0.weight"),
        ("dynamic_int4", 1.0, 1e-6, "weight 0.weight"),
        ("weight_only_int4", 1.0, 1e-6, "weight 0.weight"),
    ],
)
def test_what_is_too_small_in_training_is_warned_of(scheme: str, inputs: float, weights: float, where: str) -> None:
    """Check the warning: fake quantization has a smallest scale."""
    x = torch.randn(32, 64, generator=torch.manual_seed(0)) * inputs
    group = 0 if "int4" in scheme else None
    settings = settings_of("xnnpack", scheme, group_size=group)
    prepared = prepare(torch.export.export(net(weights).train(), (x,)), settings, qat=True)
    for _ in range(3):
        prepared.module(x)
    with pytest.warns(RuntimeWarning, match=f"too small for a scale.*{where}.*keep these layers in floats"):
        convert(prepared)
