"""Differences of programs one of which has no debug info."""

from __future__ import annotations

import pytest

from delegate.devtools.diff import Change, ProgramDifferences, differences
from delegate.program.instructions import strip_debug_info
from tests.support.programs import static


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (None, ["  forward conv (aten.conv2d.default): - -> xnnpack"]),
        (50, ["  forward conv (aten.conv2d.default): - -> xnnpack"]),
        (49, ["  forward conv (aten.conv2d.default):", "    - -> xnnpack"]),
        (15, ["  forward conv (aten.conv2d.default):", "    -", "    -> xnnpack"]),
    ],
)
def test_a_long_difference_has_its_values_below_its_name(width, lines):
    found = ProgramDifferences({"placement": (Change("forward conv (aten.conv2d.default)", "-", "xnnpack"),)})
    assert list(found.lines(width=width)) == ["placement: 1 difference", *lines]


def test_a_stripped_program_differs_in_its_debug_info_alone():
    found = differences(static(), strip_debug_info(static()))
    assert set(found.sections) == {"versions"}
    (change,) = found.sections["versions"]
    assert (change.name, change.before, change.after) == ("debug info", "present", "none")
    assert not differences(strip_debug_info(static()), strip_debug_info(static())).sections
