"""Quantization with `scheme: auto`: schemes are candidates of measured placement, under a bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import delegate
from delegate.errors import ConfigError, DelegateError
from tests.support.placing import FLOAT, X, decibels, model

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")

pytestmark = [
    pytest.mark.usefixtures("at_once"),
    pytest.mark.filterwarnings("ignore:no operator of the model is quantized"),  # all layers stay in float for a bound
]
SIZES = {"placement": {"objective": "file size"}}  # what other work on the cores does not disturb


def config(calibration: str | None = None, backends: Any = ("xnnpack",), **section: Any) -> dict[str, Any]:
    given = {} if calibration is None else {"calibration": calibration}
    quantization = {"scheme": "auto", "sqnr_db": 20.0, "budget": "2min"} | given | section
    return {"backends": list(backends), "quantization": quantization}


def names(program: Any) -> set[str]:
    (placement,) = program.report.placements
    return {plan.name for plan in placement.plans}


def test_every_scheme_is_measured(static: dict[str, str]) -> None:
    program = delegate.to_backend(FLOAT, config=config(static["calibration"], budget=8), cache=False)
    assert names(program) >= {"xnnpack", "xnnpack static_int8", "xnnpack dynamic_int8"}
    assert not any("weight_only" in name for name in names(program))  # which compute in floats
    (left_out,) = [text for text in program.report.placements[0].not_tried if "dynamic_int4:" in text]
    assert "group_size 32 does not divide 16 inputs" in left_out
    assert decibels(program(X), model()(X)) > 20


def test_a_bound_is_kept_with_layers_in_float(static: dict[str, str]) -> None:
    program = delegate.to_backend(FLOAT, config=config(static["calibration"], sqnr_db=60.0) | SIZES, cache=False)
    assert any("in float" in name for name in names(program))
    assert decibels(program(X), model()(X)) > 60


def test_without_data_static_schemes_are_left_out() -> None:
    program = delegate.to_backend(FLOAT, config=config() | SIZES, cache=False)
    assert not any("static" in name for name in names(program))
    assert "static_int8: there is no calibration data" in program.report.placements[0].not_tried


def test_for_memory_schemes_that_decode_weights_are_candidates() -> None:
    program = delegate.to_backend(FLOAT, config=config() | SIZES, cache=False)
    assert any("weight_only_int8" in name for name in names(program))


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
        (config() | {"placement": {"policy": "measured", "accuracy": {"sqnr_db": 20}}}, "has candidates and a bound"),
        (
            {"placement": {"accuracy": {"sqnr_db": 20}, "candidates": [{"name": "xnnpack", **config()}]}},
            "backends",
        ),
        (config(backends=()), "placements cannot be measured without a backend"),
        (config(modules={"absent": "off"}), "'absent' matches nothing in the model"),
        (config(backends=("cuda",)), "none of the backends supports quantized programs: cuda"),
    ],
)
def test_bad_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        delegate.to_backend(FLOAT, config=given, cache=False)


def test_auto_is_no_candidate() -> None:
    candidate = {"name": "xnnpack", "quantization": {"scheme": "auto", "sqnr_db": 20}}
    placement = {"accuracy": {"sqnr_db": 20}, "candidates": [candidate]}
    with pytest.raises(ConfigError, match="scheme: auto has candidates of its own"):
        delegate.to_backend(FLOAT, config={"placement": placement}, cache=False)


def test_another_placement_is_an_error() -> None:
    with pytest.raises(DelegateError, match="scheme: auto is measured"):
        delegate.to_backend(FLOAT, config=config(), placement=delegate.ByPreference(), cache=False)
