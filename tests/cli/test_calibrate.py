"""`delegate calibrate`: whose rates it measures, and what it says if it measured nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from delegate.costs import machine
from delegate.costs.profile import MachineProfile, PlaceRates, read_shipped
from tests.support.commands import call


@pytest.fixture
def measured(tmp_path, monkeypatch) -> list[str]:
    """Return the places that are measured, into a cache of their own; the measurement itself is left out."""
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    places: list[str] = []

    def measure(place: str, key: str) -> PlaceRates:
        places.append(place)
        return replace(read_shipped().rates(place), origin="calibrated")

    monkeypatch.setattr(machine, "_measure", measure)
    return places


def test_calibrating_one_backend_keeps_the_stored_rates_of_others(measured, tmp_path):
    call("calibrate", "XNNPACK")
    assert measured == ["xnnpack", "portable"]
    call("calibrate", "portable", "-o", str(tmp_path / "p.json"))
    assert measured == ["xnnpack", "portable", "portable"]
    assert MachineProfile.load(tmp_path / "p.json").places["xnnpack"].origin == "calibrated"


def test_a_calibration_that_measured_nothing_is_an_error(measured, monkeypatch):
    monkeypatch.setattr(machine, "_measure", lambda place, key: machine.BUSY)
    printed = " ".join("".join(call("calibrate", "xnnpack", code=1)).split())
    assert "run `delegate calibrate` when the machine is idle" in printed
