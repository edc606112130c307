"""Tables of text: aligned, a line per row."""

from __future__ import annotations

from delegate.common.text_table import Table

HEADER = ("partition", "backend", "nodes", "in", "notes")
ROWS = (
    ("xnnpack_0_of_the_first_encoder", "xnnpack", "128", "3.0 KiB", "5 operators; 1 transpose of the input"),
    ("b", "", "1", "", ""),
)
TABLE = Table(HEADER, ROWS, numbers=frozenset({2, 3}))


def test_each_row_is_one_line() -> None:
    lines = TABLE.lines()
    assert len(lines) == 3
    assert lines[0] == "partition                       backend  nodes       in  notes"
    assert lines[2] == "b                                            1"
    assert str(TABLE) == "\n".join(lines)
    assert Table(HEADER, ()).lines() == ["partition  backend  nodes  in  notes"]
