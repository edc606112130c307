"""Saved files of the format version, which every later delegate reads the same until the version changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from delegate.program.file import load, serialize
from delegate.program.model import FORMAT_VERSION
from delegate.program.text import program_lines
from tests.support.programs import static, structured

SAVED = Path(__file__).parent / "saved"


@pytest.mark.parametrize("make", [static, structured])
def test_a_saved_file_means_what_it_meant_and_is_written_the_same(make):
    path = SAVED / f"v{FORMAT_VERSION}_{make.__name__}.dlg"
    assert list(program_lines(load(path))) == list(program_lines(make()))
    assert serialize(make()) == path.read_bytes()
