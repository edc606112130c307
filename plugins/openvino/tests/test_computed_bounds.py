"""Slices whose bounds are numbers of the data, beside the operators of the plugin."""

from __future__ import annotations

import pytest

from tests.support.cases.computed_bounds import compare


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["end", "computed after", "reduced", "joined"])
def test_a_slice(name: str, dynamic: bool) -> None:
    ran = compare(name, ["openvino"], dynamic=dynamic)
    assert ran or name not in ("computed after", "reduced")
