"""Replayed lockfiles have the bytes of the program that was measured, with artifacts of this backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.placing import few_rounds
from tests.support.replays import MODELS, check_measured, check_preferred

__all__ = ["few_rounds"]

PLACEMENTS = {"alone": ["openvino"], "mixed": ["openvino", "xnnpack"], "default": None}
QUICK = {("folded", "alone"), ("branches", "alone"), ("stacked", "alone")}
TABLE = [
    pytest.param(name, place, marks=() if (name, place) in QUICK else pytest.mark.slow, id=f"{name}, {place}")
    for name in (*MODELS, "several")
    for place in PLACEMENTS
]


@pytest.mark.usefixtures("few_rounds")
@pytest.mark.parametrize(("name", "place"), TABLE)
def test_measured(name: str, place: str, tmp_path: Path) -> None:
    check_measured(name, PLACEMENTS[place], tmp_path)


@pytest.mark.parametrize(("name", "place"), TABLE)
def test_by_preference(name: str, place: str, tmp_path: Path) -> None:
    check_preferred(name, PLACEMENTS[place], tmp_path)
