"""The placement benchmark: its processes, its summary, and the names of its models."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import delegate
from benchmarks import placement
from benchmarks.engines import Leaves
from delegate.testing import assert_same


def record(model: str, **seconds: float) -> placement.Record:
    """Return a record of two equal rounds; a way "a_b" mixes the backends a and b."""
    ways = {
        way.replace("_", "+"): {
            "seconds": [value, value],
            "lowering": 1.0,
            "partitions": dict.fromkeys(way.split("_"), 1),
            "on_kernels": 0,
        }
        for way, value in seconds.items()
    }
    return {"model": model, "busy": False, "nodes": 9, "ways": ways | {"eager": {"seconds": [1.5, 1.5]}}}


RECORDS = [
    record("slow", default=4.0, xnnpack=1.0, openvino=2.0, xnnpack_openvino=0.9),
    record("fast", default=1.0, xnnpack=4.0, openvino=1.0, xnnpack_openvino=1.0),
]


def test_the_best_single_backend_is_no_mix_and_not_eager():
    assert [placement.best_single(r) for r in RECORDS] == ["xnnpack", "openvino"]


def test_summary_counts_ratios_and_mixes(capsys):
    broken = record("broken", default=1.0, xnnpack=1.0)
    broken["ways"]["default"] = {"failed": "wrong results: 3 dB"}
    placement.print_summary([*RECORDS, broken])
    text = capsys.readouterr().out
    assert "default over the best single backend, 2 models: geometric mean 2.000" in text
    assert "slower than the best single backend by more than 1.1 / 1.3 / 2.0: 1 / 1 / 1" in text
    assert "slower than eager: 1 of 2: slow" in text
    assert "a mix of backends beats the best single one by more than 5 %: 1: slow 0.90" in text
    assert "failed: broken, default: wrong results: 3 dB" in text


def test_a_process_takes_turns_with_a_saved_program(tmp_path):
    module, x = Leaves(torch.nn.Linear(3, 2)).eval(), torch.randn(1, 3)
    delegate.to_backend(torch.export.export(module, (x,)), []).save(tmp_path / "model.dlg")
    np.savez(tmp_path / "inputs.npz", x.numpy())
    child = placement.Child(placement.FRESH, placement.load_program, tmp_path / "model.dlg", tmp_path / "inputs.npz")
    try:
        (output,) = child.receive()
        assert_same(output, module(x)[0].detach().numpy(), 1e-6)
        assert 0 < child.take_turn() < placement.TIMEOUT
    finally:
        child.close()


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [(os._exit, 3, "ended with exit code 3"), (int, "x", "ValueError: invalid literal")],
)
def test_a_process_that_fails_is_a_failure_with_the_reason(function, argument, reason):
    child = placement.Child(placement.FRESH, function, argument)
    with pytest.raises(placement.ChildFailed, match=reason):
        child.receive()
    child.close()
