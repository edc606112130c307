"""Differences of programs one of which has no debug info."""

from __future__ import annotations

from delegate.devtools.diff import differences
from delegate.program.debug_info import stripped
from tests.support.programs import static


def test_a_stripped_program_differs_in_its_debug_info_alone():
    found = differences(static(), stripped(static()))
    assert set(found.sections) == {"versions"}
    (change,) = found.sections["versions"]
    assert (change.name, change.before, change.after) == ("debug info", "present", "none")
    assert not differences(stripped(static()), stripped(static())).sections
