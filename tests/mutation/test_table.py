"""The table of mutations fits the code: each text occurs once, and the tests exist."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutation.run import ROOT
from tests.mutation.table import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.file}: {m.breaks}")
def test_row(mutation: Mutation):
    text = (ROOT / mutation.file).read_text()
    compile(mutation.applied(text), mutation.file, "exec")
    assert mutation.tests
    for test in mutation.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), test
        assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text() if name else True, test


def test_enough():
    assert len(MUTATIONS) >= 60
    assert len({m.file for m in MUTATIONS}) >= 40
    assert max(Counter((m.file, m.old) for m in MUTATIONS).values()) == 1
