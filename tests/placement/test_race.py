"""Which plans race, and which one is taken: by measured times, and by estimates as far as the turns differ."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from delegate.costs.estimates import Estimates
from delegate.costs.profile import read_shipped
from delegate.placement.estimated import EAGER, _in_order, _may_win, _rank


@pytest.mark.parametrize(
    ("turns", "estimates", "first"),
    [
        ({"a": [1.0, 1.01], "b": [1.1, 1.11]}, {"a": 3.0, "b": 1.0}, "a"),  # a quiet machine: the times decide
        ({"a": [1.0, 2.0], "b": [1.1, 2.2]}, {"a": 3.0, "b": 1.0}, "b"),  # on a noisy one this says little
        ({"a": [1.0, 2.0], "b": [4.0, 8.0]}, {"a": 3.0, "b": 1.0}, "a"),  # but this is clear
        ({"a": [1.0], "b": [1.1]}, {"a": 3.0, "b": 1.0}, "b"),  # one turn each
        ({"a": [1.0], "b": [2.0]}, {"a": 1.1, "b": 1.0}, "a"),
        ({"a": [1.0, 1.0], "b": [1.1, 1.1], EAGER: [0.1, 0.1]}, {"a": 1.0, "b": 0.0}, "a"),
    ],
)
def test_estimates_count_as_far_as_turns_differ(turns, estimates, first):
    ranked = _rank(turns, estimates)
    assert ranked[0] == first
    assert sorted(ranked) == ["a", "b"]


@pytest.mark.parametrize(
    ("seconds", "racing"),
    [
        ({"one": 1.0, "two": 4.9, "three": 5.1, "portable": 9.0}, {"one", "two"}),
        ({"one": 1.0, "portable": 2.0, "mixed": 0.96}, {"one", "portable"}),  # it shares the errors of the best one
        ({"one": 1.0, "portable": 2.0, "mixed": 0.9}, {"one", "portable", "mixed"}),
    ],
)
def test_near_plans_race(seconds, racing):
    assert {way for way in seconds if _may_win(way, seconds)} == racing


def test_plans_that_compile_fast_come_second():
    near = ["openvino", "onnxruntime", "portable", "xnnpack", "mixed"]
    ordered = _in_order(near, Estimates(read_shipped()))
    assert ordered[:2] == ["openvino", "xnnpack"]
    assert ordered[-1] == "portable"
    assert sorted(ordered) == sorted(near)


@pytest.mark.parametrize(("given", "expected"), [({}, "20"), ({"OPENBLAS_THREAD_TIMEOUT": "26"}, "26")])
def test_the_threads_of_numpy_stop_spinning(given, expected):
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_THREAD_TIMEOUT"} | given
    command = "import delegate, os, sys; print(os.environ['OPENBLAS_THREAD_TIMEOUT'], 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.split() == [expected, "False"]
