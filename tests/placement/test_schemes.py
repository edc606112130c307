"""Quantization with `scheme: auto`: schemes are candidates of measured placement, under a bound."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from delegate.errors import ConfigError, DelegateError
from delegate.report.measured import Placement, PlanCost
from tests.support.placing import FLOAT, X, decibels, model
from tests.support.quantized import settings_of
from tests.support.zoo import libraries

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")

pytestmark = [
    pytest.mark.usefixtures("at_once"),
    pytest.mark.filterwarnings("ignore:no operator of the model is quantized"),  # all layers stay in float for a bound
]


AUTO = {"scheme": "auto", "sqnr_db": 20}
SIZES = {"placement": {"objective": "file size"}}  # what other work on the cores does not disturb


def config(calibration: str | None = None, backends: Any = ("xnnpack",), **section: Any) -> dict[str, Any]:
    given = {} if calibration is None else {"calibration": calibration}
    quantization = {"scheme": "auto", "sqnr_db": 20.0, "budget": "2min"} | given | section
    return {"backends": list(backends), "quantization": quantization}


def names(program: Any) -> set[str]:
    (placement,) = program.report.placements
    return {plan.name for plan in placement.plans}


@pytest.mark.extended
@pytest.mark.usefixtures("few_rounds")
def test_every_scheme_is_measured(static: dict[str, str]) -> None:
    program = delegate.to_backend(FLOAT, config=config(static["calibration"], budget=600), cache=False)
    assert names(program) >= {"xnnpack", "xnnpack static_int8", "xnnpack dynamic_int8"}
    assert any(name.startswith("xnnpack dynamic_int4") for name in names(program))
    assert not any("weight_only" in name for name in names(program))  # which compute in floats
    assert not any("int4 per channel" in name for name in names(program))  # the default: no layer has groups of 32
    assert decibels(program(X), model()(X)) > 20


@pytest.mark.slow
def test_a_bound_is_kept_with_layers_in_float(static: dict[str, str]) -> None:
    program = delegate.to_backend(FLOAT, config=config(static["calibration"], sqnr_db=60.0) | SIZES, cache=False)
    assert any("in float" in name for name in names(program))
    assert decibels(program(X), model()(X)) > 60


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 8)
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.layer(x) + self.count


@pytest.mark.parametrize("is_functional", [False, True])
def test_states_start_with_their_own_values(is_functional: bool) -> None:
    """Torch runs the float program and the quantized ones for the bound, and a state is written in place."""
    module = Counting().eval()
    exported = torch.export.export(module, (X,))
    with libraries():
        exported = exported.run_decompositions({}) if is_functional else exported
    program = delegate.to_backend(exported, config=config() | SIZES, cache=False)
    assert "xnnpack dynamic_int8" in names(program)
    assert not module.count.any()
    with torch.no_grad():
        assert decibels(program(X), module(X)) > 20
    assert decibels(program(X), module(X)) > 20


def wide(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64)).eval()


WIDE = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.extended
def test_methods_that_share_weights_share_their_scheme() -> None:
    """4 bits suffice for prefill, not for decode. In 4 and in 8 bits, the weights take more bytes than in 8 bits."""
    from delegate.quantization import quantize

    torch.manual_seed(0)
    module = nn.Linear(256, 256, bias=False).eval()
    everything = torch.export.export(module, (torch.eye(256),))
    error = quantize(everything, settings_of("xnnpack", "weight_only_int4")).module()(torch.eye(256)).T - module.weight
    worst = torch.linalg.svd(error.detach()).Vh[:1].contiguous()  # the input with the most noise
    inputs = {"prefill": torch.randn(4, 256), "decode": worst}
    exported = {name: torch.export.export(module, (x,)) for name, x in inputs.items()}
    given = config(sqnr_db=20.0, group_size=32) | SIZES
    program = delegate.to_backend(exported, config=given, cache=False)
    prefill, decode = program.report.placements
    assert prefill.chosen == decode.chosen
    assert "int8" in prefill.chosen
    assert next(plan for plan in prefill.plans if "int4" in plan.name).cost < prefill.plans[-1].cost
    for name, x in inputs.items():
        assert decibels(program.method(name)(x), module(x)) > 20


@functools.cache
def without_data() -> delegate.CompiledProgram:
    """Return the program of schemes that need no calibration data."""
    return delegate.to_backend(FLOAT, config=config() | SIZES, cache=False)


def test_without_data_static_schemes_are_left_out() -> None:
    program = without_data()
    assert not any("static" in name for name in names(program))
    assert "static_int8: there is no calibration data" in program.report.placements[0].not_tried


def test_for_memory_schemes_that_decode_weights_are_candidates() -> None:
    assert any("weight_only_int8" in name for name in names(without_data()))


def test_a_lockfile_keeps_the_choice(tmp_path: Path) -> None:
    given = config() | SIZES
    first = delegate.to_backend(
        FLOAT, config=given, placement=delegate.Measured(lockfile=tmp_path / "lock"), cache=False
    )
    again = delegate.to_backend(FLOAT, config=given, placement=delegate.Replay(tmp_path / "lock"), cache=False)
    assert decibels(again(X), first(X)) > 100


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quantization": {"scheme": "auto"}}, "scheme: auto requires sqnr_db"),
        ({"quantization": {"scheme": "static_int8", "sqnr_db": 30}}, "only for scheme: auto"),
        ({"quantization": {"scheme": "auto", "sqnr_db": -1}}, "greater than 0"),
        ({"quantization": {"scheme": "auto", "sqnr_db": 30, "budget": "soon"}}, "a number of seconds"),
        ({"quantization": {"scheme": "auto", "sqnr_db": 30, "budget": 0}}, "quantization.budget.* greater than 0"),
        (config(operators={"aten.linear*": "dynamic_int8/64"}), "'dynamic_int8/64': dynamic_int8 has no groups"),
        (config(operators={"aten.linear*": "dynamic_int4/many"}), "'many' is no group size"),
        (config(operators={"aten.linear*": "dynamic_int4/48"}), "supports only multiples of 32"),
        (config(calibration={"absent": "data"}), "the program has no method 'absent'"),
        (config() | {"placement": {"policy": "measured", "accuracy": {"sqnr_db": 20}}}, "has candidates and a bound"),
        (
            {"placement": {"accuracy": {"sqnr_db": 20}, "candidates": [{"name": "xnnpack", **config()}]}},
            "backends",
        ),
        (
            {"placement": {"accuracy": {"sqnr_db": 20}, "candidates": [{"name": "xnnpack", "quantization": AUTO}]}},
            "scheme: auto has candidates of its own",
        ),
        (config(backends=()), "quantization: it needs a backend, but `backends` is empty"),
        (config(modules={"absent": "off"}), "'absent' matches nothing in the model"),
        (config(backends=("cuda",)), "none of the backends supports quantized programs: cuda"),
    ],
)
def test_bad_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        delegate.to_backend(FLOAT, config=given, cache=False)


def test_another_placement_is_an_error() -> None:
    with pytest.raises(DelegateError, match="scheme: auto is measured"):
        delegate.to_backend(FLOAT, config=config(), placement=delegate.ByPreference(), cache=False)


def test_the_front_has_the_plans_that_no_other_beats() -> None:
    costs = {"fast": (1.0, 20.0, ""), "worse": (2.0, 15.0, ""), "exact": (3.0, 130.0, ""), "rounded": (4.0, 140.0, ""),
             "wrong": (0.5, 5.0, "5 dB, but 10 dB is required")}  # fmt: skip
    plans = tuple(PlanCost(name, 1, cost, 8, None, sqnr, why) for name, (cost, sqnr, why) in costs.items())
    placement = Placement("forward", "latency", "fast", plans)
    assert [plan.name for plan in placement.front()] == ["fast", "exact"]
    assert any("the front of latency against error" in str(block) for block in placement.blocks())


def test_a_rule_has_a_group_size() -> None:
    from delegate.quantization import quantize

    settings = settings_of(
        "xnnpack", "dynamic_int4", nodes={"linear_1": "dynamic_int4/64", "linear_2": "dynamic_int4/0"}
    )
    quantized = quantize(torch.export.export(wide(), (WIDE,)), settings)
    scales = {tuple(value.shape) for value in (*quantized.constants.values(), *quantized.state_dict.values())}
    assert {(128, 2), (64, 2)} <= scales  # 64 inputs in groups of 32, 128 inputs in groups of 64
    assert (64, 4) not in scales
