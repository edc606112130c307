"""The debugger and operators with several right answers that run inside a partition."""

from __future__ import annotations

import pytest

from tests.support.cases.choices import MODELS, check_choices


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_choice_is_a_fault_and_another_right_one_is_none(name: str) -> None:
    check_choices(name, "onnxruntime")
