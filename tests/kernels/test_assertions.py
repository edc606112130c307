"""Conditions in postfix notation, which a program file may hold in any form."""

from __future__ import annotations

import numpy as np
import pytest

from delegate.errors import InputError, KernelError
from delegate.kernels.assertions import require_numbers


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("n0 2 mod 0 eq", True),
        ("n0 n1 lt", False),
        ("n0 n1 sub neg abs 1 ge", True),
        ("n0 1 gt n1 2.5 le and_", True),
        ("n0 9 gt 0 7 sym_ite 7 eq", True),
        ("n1 sym_float 2.0 truediv 1.0 eq", True),
        ("-1 1e3 sym_max inf sym_min 2 pow 1000000.0 eq", True),
        ("n0 sym_not", False),
    ],
)
def test_a_condition(condition: str, holds: bool) -> None:
    numbers = [np.array(4), np.array([2.0], np.float32)]
    if holds:
        require_numbers(numbers, condition, "no", out=())
    else:
        with pytest.raises(InputError, match=r"an assertion of the model fails: no, of 4 and 2\.0"):
            require_numbers(numbers, condition, "no", out=())


@pytest.mark.parametrize("condition", ["", "eq", "1 2", "n0 eq", "x", "n", "__import__", "1 2 3 eq", "n0 1 eq eq"])
def test_other_texts_are_errors(condition: str) -> None:
    with pytest.raises(KernelError, match="no condition in postfix notation"):
        require_numbers([np.array(1)], condition, "no", out=())
