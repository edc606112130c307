"""Debug info: it survives a file, it can be removed, and a forged one is refused or sound."""

from __future__ import annotations

import pytest

from delegate.errors import ProgramError
from delegate.program.file import load, serialize
from delegate.program.instructions import DebugInfo, strip_debug_info, walk
from delegate.program.model import KernelCall
from delegate.program.text import debug_bytes, program_lines
from delegate.report import Report
from tests.support.programs import SAMPLES, empty, static

samples = pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)


@samples
def test_stripping_removes_the_report_and_the_sources_and_nothing_else(make):
    program = strip_debug_info(make())
    assert not DebugInfo.of(program)
    assert load(serialize(program)) == program
    assert debug_bytes(program) == 0
    methods = (*program.methods, *program.fallbacks)
    assert not any(m.sources for m in methods)
    calls = [c for m in methods for c in walk(m.instructions) if isinstance(c, KernelCall)]
    assert [c for c in calls if c.source != -1] == []
    info = DebugInfo.of(make())
    whole = [line.partition("  # ")[0] for line in program_lines(make()) if not line.startswith("debug info")]
    assert list(program_lines(program)) == whole
    assert len(serialize(program)) < len(serialize(make())) or not info


def test_only_the_last_segment_differs_and_no_constant_may_refer_to_it():
    data = serialize(static())
    assert len(load(data).segments) == len(static().segments)
    forged = static()._replace(constants=(static().constants[0]._replace(segment=3), static().constants[1]))
    with pytest.raises(ProgramError, match="there is no segment 3, only 3"):
        serialize(forged)


def test_a_damaged_segment_is_named():
    data = bytearray(serialize(static()))
    data[-1] ^= 1
    with pytest.raises(ProgramError, match=r"its checksum does not match \(debug info\)"):
        load(data)


def test_debug_info_of_other_methods_is_refused():
    with pytest.raises(ProgramError, match="source lines of 2 methods, but the program has 1"):
        DebugInfo("", ((), ()), ()).add_to(static())


def test_a_stripped_program_has_no_report():
    with pytest.raises(ProgramError, match="the program has no debug info: lower the model again"):
        Report.from_json(strip_debug_info(static()).report)
    assert serialize(strip_debug_info(empty())) == serialize(empty())
