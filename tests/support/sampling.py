"""Cases of sweeps that the default run leaves out: `make test-slow` runs all."""

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest


def only(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """Return all cases as parameters, those that are not among `quick` marked slow."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def every(step: int, *cases: Iterable[Any]) -> list[Any]:
    """Return all cases as parameters, those after each first of `step` marked slow.

    A case that is a tuple is several parameters. Of several iterables all combinations are cases.
    """
    every_case = cases[0] if len(cases) == 1 else product(*cases)
    return [
        pytest.param(
            *(case if type(case) is tuple else (case,)),
            marks=[pytest.mark.slow] if place % step else [],
        )
        for place, case in enumerate(every_case)
    ]
