"""Files of older format versions, kept as they were saved: every later delegate reads them the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from delegate.errors import ProgramError
from delegate.program.file import READABLE, load
from delegate.program.model import FORMAT_VERSION
from delegate.program.text import program_lines
from tests.support.programs import static, structured

SAVED = Path(__file__).parent / "saved"
SAMPLES = {"static": static, "structured": structured}


@pytest.mark.parametrize("path", sorted(SAVED.iterdir()), ids=lambda p: p.stem)
def test_an_old_file_means_what_it_meant(path):
    version, name = re.fullmatch(r"v(\d+)_(\w+)", path.stem).groups()
    assert int(version) in READABLE
    program = load(path)
    assert program.version == FORMAT_VERSION
    assert list(program_lines(program)) == list(program_lines(SAMPLES[name]()))


def test_every_older_version_that_is_read_has_its_files():
    kept = {int(path.stem.split("_")[0][1:]) for path in SAVED.iterdir()}
    assert kept >= READABLE - {FORMAT_VERSION}


def test_a_file_with_partitions_that_run_at_the_same_time_is_refused():
    with pytest.raises(ProgramError, match=r"at the same time, which is no longer supported .*: lower the model again"):
        load(SAVED.parent / "v5_parallel.dlg")
