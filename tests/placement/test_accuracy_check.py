"""The check of results during a measurement."""

from __future__ import annotations

import numpy as np

from delegate.placement.runtime.accuracy_check import AccuracyResult, check_accuracy


def judged(figures: dict[str, float], bound: float | None = None) -> AccuracyResult:
    return check_accuracy(dict.fromkeys(figures), lambda name, runner: figures[name], bound)


def test_what_is_out_by_its_results() -> None:
    """Also where all are wrong alike: results of another shape, or NaN where torch has numbers, are no results."""
    assert set(judged({"a": 140.0, "b": 70.0}).failed) == {"b"}
    assert set(judged({"a": 60.0, "b": 50.0}).failed) == set()
    assert set(judged({"a": -np.inf, "b": -np.inf}).failed) == {"a", "b"}
    assert set(judged({"a": np.nan, "b": np.nan}).failed) == set()
    assert set(judged({"a": np.nan, "b": 30.0}, 40.0).inaccurate) == {"a", "b"}
