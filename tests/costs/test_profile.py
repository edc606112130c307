"""Profiles: their JSON, what is refused, and the shipped one."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from delegate.costs.profile import UNKNOWN, MachineProfile, PlaceRates, Rate, read_shipped
from delegate.costs.quantities import KINDS, OPERATORS
from delegate.errors import PartitionError

RATES = {"simple": Rate(1e-6, 1e-9), "function": Rate(1e-6, 2e-9)}
PROFILE = MachineProfile("a machine", {UNKNOWN: PlaceRates(Rate(4e-6, 0.0, 1e-10), RATES, {"lib": "1.2"})})


def test_a_profile_survives_its_json():
    assert MachineProfile.from_json(PROFILE.to_json()) == PROFILE


def test_a_saved_profile_has_the_shipped_rates_of_other_places(tmp_path):
    PROFILE.save(tmp_path / "p.json")
    loaded = MachineProfile.load(tmp_path / "p.json")
    assert loaded.places[UNKNOWN] == PROFILE.places[UNKNOWN]
    assert loaded.places["portable"] == read_shipped().places["portable"]


def changed(**rate: float) -> str:
    data = json.loads(PROFILE.to_json())
    data["places"][UNKNOWN]["operators"]["simple"] |= rate
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "profile cannot be used"),
        ("[]", "profile"),
        (json.dumps({**json.loads(PROFILE.to_json()), "format": 99}), "format"),
        (changed(unit=float("nan")), "the rates of other: unit should be"),
        (changed(call=-1e-6), "the rates of other: call should be"),
        (changed(byte=1e300), "the rates of other: byte should be seconds, and 1e[+]300 s is too long"),
        (PROFILE.to_json().replace("simple", "simpel"), "other has rates of 'simpel', .*did you mean 'simple'"),
        (
            MachineProfile("m", {"fast": PlaceRates(Rate(0.0), {"function": Rate(0.0)}, {})}).to_json(),
            "fast would take no time for anything",
        ),
    ],
)
def test_an_impossible_profile_is_refused(text, message):
    with pytest.raises(PartitionError, match=message) as raised:
        MachineProfile.from_json(text, "here.json")
    assert "here.json" in str(raised.value)
    assert "delegate calibrate" in str(raised.value)


def test_the_shipped_profile_knows_every_kind_of_kernels():
    portable = read_shipped().places["portable"]
    assert set(KINDS) - {"view"} <= portable.operators.keys()
    assert asdict(portable)["call"] == {"call": 0.0, "unit": 0.0, "byte": 0.0}


@pytest.mark.parametrize("name", sorted({name for names in OPERATORS.values() for name in names.split()}))
def test_each_operator_of_a_kind_exists(name):
    assert hasattr(torch.ops.aten, name)
