"""Differences from torch that this backend keeps are as their rows of deviations describe them."""

from __future__ import annotations

import pytest

from tests.support.cases.kept_differences import INF, NAN, check

EXPECTED: dict[str, tuple[list[float], list[float]]] = {
    "gelu": ([INF, 2e38, 0.8413447], [NAN, INF, 0.8413447]),
    "var_mean": ([NAN, INF], [NAN, NAN]),
    "add, alpha": ([INF, 3.0], [1.9999997e37, 3.0]),
    "quantized": ([127, 2], [0, 2]),
    "long product": ([1513080.625, 816177.625, 816177.625, 1513087.625], [1514794.0, 815479.5, 815479.5, 1514801.0]),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_difference(name: str) -> None:
    check(name, "xnnpack", *EXPECTED[name])
