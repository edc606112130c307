"""The reference of `placement.accuracy` on another machine: the float program, also if the program is quantized."""

from __future__ import annotations

from pathlib import Path

import pytest
from delegate_remote.runtime.measuring import measure

import delegate

pytest.importorskip("torchao")
from tests.support.placing import FLOAT, X, config, decibels, model, static  # noqa: F401 - a fixture


def test_another_machine_measures_against_the_float_program_too(static: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    settings = {"config": config(70.0, quantization=static), "cache": False}
    noise = decibels(
        delegate.to_backend(FLOAT, **settings, placement=delegate.Remote(bundle=tmp_path / "b"))(X), model()(X)
    )
    costs = measure(tmp_path / "b", budget=60)
    assert {p.sqnr_db for p in costs.methods["forward"].programs.values() if p.sqnr_db is not None}
    for costs_of_program in costs.methods["forward"].programs.values():
        assert costs_of_program.sqnr_db == pytest.approx(noise, abs=1)
