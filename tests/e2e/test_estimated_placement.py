"""The default placement: the plan with the least estimated time, and a race between plans that are close."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import delegate
from delegate.costs.profile import MachineProfile, PlaceRates, Rate, read_shipped
from delegate.errors import ConfigError, PartitionError
from delegate.placement import estimated
from delegate.testing import assert_same

FREE, DEAR = (
    PlaceRates(Rate(call), {"function": Rate(call), "permute": Rate(0.0)}, {}, "calibrated") for call in (1e-9, 1e-2)
)


@pytest.fixture
def exported():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh())
    return torch.export.export(layers.eval(), (torch.randn(8, 64),))


def profile(tmp_path, **places: PlaceRates):
    path = tmp_path / "machine.json"
    MachineProfile("made up", {**read_shipped().places, **places}).save(path)
    return path


def backends_of(program) -> set[str]:
    return {node.backend for node in program.report.nodes}


def test_the_default_is_by_estimates_and_right(exported):
    program = delegate.to_backend(exported)
    notes = [note for note in program.report.notes if "placed by estimates of a call" in note]
    assert len(notes) == 1
    assert "portable" in notes[0]
    assert all(partition.seconds > 0 for partition in program.report.partitions)
    assert backends_of(program) == {"xnnpack"}
    (inputs,), _ = exported.example_inputs
    assert_same(program(inputs), exported.module()(inputs), 1e-5)


def test_a_list_is_an_order_of_preference(exported):
    program = delegate.to_backend(exported, "xnnpack")
    assert not any("estimates" in note for note in program.report.notes)
    assert all(partition.seconds == 0 for partition in program.report.partitions)


@pytest.mark.parametrize(
    ("places", "expected"),
    [({"portable": FREE, "xnnpack": DEAR}, "portable"), ({"portable": DEAR, "xnnpack": FREE}, "xnnpack")],
)
def test_the_profile_of_a_machine_decides(exported, tmp_path, places, expected):
    placement = delegate.Estimated(race=0, machine=profile(tmp_path, **places))
    program = delegate.to_backend(exported, placement=placement)
    assert backends_of(program) == {expected}
    assert "estimated by the profile machine.json, of made up" in program.report.notes
    assert {n.backend for n in delegate.explain(exported).nodes} == {"xnnpack"}  # by the profile of this machine


@pytest.fixture
def long_race(monkeypatch):
    monkeypatch.setattr(estimated, "RACE_SHARE", 1e6)


def test_rates_that_a_profile_lacks_are_named(exported, tmp_path):
    path = profile(tmp_path, portable=FREE)
    for name in ("first.json", "second.json"):  # the second program is from the cache
        path = path.rename(tmp_path / name)
        program = delegate.to_backend(exported, placement=delegate.Estimated(race=0, machine=path))
        (note,) = [note for note in program.report.notes if "by the profile" in note]
        assert note.startswith(f"estimated by the profile {name}, of made up; it has no rates of ")
        assert "xnnpack" in note
        assert "portable" not in note


def test_explain_names_where_its_estimates_come_from(exported):
    config = {"cache": {"enabled": False}, "placement": {"policy": "estimated"}}
    assert any("nothing is calibrated without a cache" in n for n in delegate.explain(exported, config=config).notes)


def test_a_policy_against_kernels_counts_more_than_costs(exported, tmp_path):
    placement = delegate.Estimated(race=0, machine=profile(tmp_path, portable=FREE, xnnpack=DEAR))
    program = delegate.to_backend(exported, config={"policy": {"portable": "error"}}, placement=placement)
    assert backends_of(program) == {"xnnpack"}


def test_close_estimates_race(exported, tmp_path, long_race):
    same = {name: read_shipped().places["portable"] for name in ("portable", "xnnpack")}
    program = delegate.to_backend(exported, placement=delegate.Estimated(machine=profile(tmp_path, **same)))
    (note,) = [note for note in program.report.notes if "ran in turns" in note]
    assert "portable" in note
    assert "xnnpack" in note


def test_methods_that_raced_are_one_program(exported, tmp_path, long_race):
    """Each method is taken as the race has compiled it, and the names of all partitions differ."""
    same = {name: read_shipped().places["portable"] for name in ("portable", "xnnpack")}
    x = torch.randn(4, 32)
    small = torch.export.export(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)).eval(), (x,))
    program = delegate.to_backend(
        {"forward": exported, "small": small}, placement=delegate.Estimated(machine=profile(tmp_path, **same))
    )
    assert sum("ran in turns" in note for note in program.report.notes) == 2
    names = [partition.name for partition in program.report.partitions]
    assert len(set(names)) == len(names)
    (inputs,), _ = exported.example_inputs
    assert_same(program(inputs), exported.module()(inputs), 1e-5)
    assert_same(program.method("small")(x), small.module()(x), 1e-5)


def test_without_a_race_equal_models_have_equal_programs(exported, tmp_path):
    first, second = (delegate.to_backend(exported, placement=delegate.Estimated(race=0)) for _ in range(2))
    first.save(tmp_path / "first.dlg")
    second.save(tmp_path / "second.dlg")
    assert (tmp_path / "first.dlg").read_bytes() == (tmp_path / "second.dlg").read_bytes()


def test_a_lockfile_applies_the_choice(exported, tmp_path):
    lock = tmp_path / "model.lock"
    program = delegate.to_backend(exported, placement=delegate.Estimated(lockfile=lock))
    again = delegate.to_backend(exported, placement=delegate.Replay(lock))
    assert again.plan == program.plan


def test_the_configuration_selects_estimates_for_named_backends(exported):
    program = delegate.to_backend(exported, "xnnpack", config={"placement": {"policy": "estimated"}})
    assert any("placed by estimates" in note for note in program.report.notes)


@pytest.mark.parametrize("machine", ["absent.json", {"places": {}}])
def test_a_profile_that_cannot_be_read_is_named(exported, machine):
    with pytest.raises(PartitionError, match=r"the profile cannot be read.*(absent\.json|places)"):
        delegate.to_backend(exported, placement=delegate.Estimated(machine=machine))


@pytest.mark.parametrize("race", [-1, float("nan"), float("inf"), "2s", True])
def test_a_race_is_a_number_of_seconds(exported, race):
    with pytest.raises(ConfigError, match=r"number of seconds of 0 or more, not .* \(placement\): give e\.g\. 2\.0"):
        delegate.to_backend(exported, placement=delegate.Estimated(race=race))


@pytest.mark.parametrize(
    ("section", "policy"),
    [
        ({"policy": "estimated", "candidates": ["xnnpack"]}, "estimated"),
        ({"policy": "preference", "accuracy": {"sqnr_db": 300.0}}, "preference"),
        ({"accuracy": {"sqnr_db": 300.0}, "objective": "memory"}, "preference"),
    ],
)
def test_keys_that_only_measured_placement_obeys_are_refused(exported, section, policy):
    """A bound on errors that nobody checks would be taken for granted."""
    names = ", ".join(sorted(section.keys() - {"policy"}))
    with pytest.raises(ConfigError, match=f"{names}: only measured placement .* by {policy} .*add policy: measured"):
        delegate.to_backend(exported, config={"backends": ["xnnpack"], "placement": section})


def test_states_do_not_change_by_the_race(tmp_path, long_race):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count.add_(1)
            return torch.tanh(x @ x) + self.count

    exported = torch.export.export(Counter().eval(), (torch.ones(16, 16),))
    same = {name: read_shipped().places["portable"] for name in ("portable", "xnnpack")}
    program = delegate.to_backend(exported, placement=delegate.Estimated(machine=profile(tmp_path, **same)))
    assert any("ran in turns" in note for note in program.report.notes)
    program(torch.ones(16, 16))
    assert program.states["count"].item() == 1


@pytest.mark.slow
def test_calibration_measures_a_backend_and_stores_it(tmp_path, monkeypatch):
    from delegate.costs import machine
    from delegate.costs.machine import calibrate_again

    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    progress: list[str] = []
    measured, notes = calibrate_again(["xnnpack"], progress.append)
    assert progress
    if any(machine.BUSY in note for note in notes):
        pytest.skip(machine.BUSY)
    assert notes == ()
    assert measured.places["xnnpack"].origin == "calibrated"
    assert measured.places["xnnpack"].operators["product"] != read_shipped().places["xnnpack"].operators["product"]
    machine._measured.cache_clear()
    module = torch.export.export(nn.Linear(8, 8).eval(), (torch.ones(1, 8),))
    progress.clear()
    delegate.to_backend(
        module, config={"backends": ["xnnpack"], "placement": {"policy": "estimated"}}, progress=progress.append
    )
    assert not any("calibrating" in text for text in progress)
