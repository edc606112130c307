"""Every operator call in the samples of torch's OpInfo database, against the portable kernels.

`make test-slow` runs all samples and prints how many rows pass; the default run has some of the entries.
"""

import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase

import pytest
import torch

from tests.kernels.known_rows import (
    KNOWN,
    KNOWN_OF_NOT_NUMBERS,
    KNOWN_OF_SOME_CPUS,
    NOT_NUMBERS,
    SOME,
    SOME_OF_FLOATS,
    WITHOUT,
)
from tests.support.opinfo import Rows, database, sweep
from tests.support.sampling import every


def unexplained(rows: Rows, known: Iterable[str] = KNOWN) -> dict[str, str]:
    """Return the rows that fail without a known reason, with the first message."""
    patterns = [*known, *KNOWN_OF_SOME_CPUS]
    return {row: why for row, why in rows.failures().items() if not any(fnmatchcase(row, p) for p in patterns)}


@pytest.fixture(scope="module")
def entries():
    return database()


@pytest.mark.parametrize("name", every(8, SOME))
def test_some_entries(entries, name):
    chosen = [e for e in entries if e.name == name]
    rows = sweep(chosen, [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.complex64], count=1)
    assert rows.passed
    assert not unexplained(rows)


@pytest.mark.parametrize("values", NOT_NUMBERS)
@pytest.mark.parametrize("name", [*SOME_OF_FLOATS[::6], pytest.param("*", marks=pytest.mark.slow)])
def test_not_numbers(entries, name, values):
    chosen = [e for e in entries if fnmatchcase(e.name, name) and not e.name.startswith(WITHOUT)]
    dtypes, count = ([torch.float32, torch.bfloat16], 2) if name == "*" else ([torch.float32], 1)
    rows = sweep(chosen, dtypes, count=count, values=NOT_NUMBERS[values])
    assert rows.passed
    assert not unexplained(rows, [*KNOWN, *KNOWN_OF_NOT_NUMBERS])


@pytest.fixture(scope="module")
def everything(entries):
    return sweep(entries)


@pytest.mark.slow
def test_every_entry(everything, capsys):
    """Check that all samples pass, except for known rows with a reason."""
    failures = everything.failures()
    without = {row.partition("[")[0] for row, why in failures.items() if "no kernel" in why}
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(everything.passed.keys() - failures.keys())} rows of overload and dtype pass, "
            f"{len(failures)} do not; {len(without)} overloads have no kernel: {', '.join(sorted(without))}\n"
        )
    assert not unexplained(everything)


@pytest.mark.slow
def test_no_reason_is_stale(everything):
    assert [p for p in KNOWN if not any(fnmatchcase(row, p) for row in everything.failed)] == []
