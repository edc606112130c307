"""Tables of text: aligned, folded to a width, and never with a lost character."""

from __future__ import annotations

import pytest

from delegate.common.text_table import Table, fold, fold_line

HEADER = ("partition", "backend", "nodes", "in", "notes")
ROWS = (
    ("xnnpack_0_of_the_first_encoder", "xnnpack", "128", "3.0 KiB", "5 operators; 1 transpose of the input"),
    ("b", "", "1", "", ""),
)
TABLE = Table(HEADER, ROWS, numbers=frozenset({2, 3}))


def test_without_a_width_each_row_is_one_line() -> None:
    lines = TABLE.lines()
    assert len(lines) == 3
    assert lines[0] == "partition                       backend  nodes       in  notes"
    assert lines[2] == "b                                            1"
    assert str(TABLE) == "\n".join(lines)
    assert Table(HEADER, ()).lines() == ["partition  backend  nodes  in  notes"]


@pytest.mark.parametrize("width", [140, 80, 60, 40])
def test_folded_lines_have_all_text(width: int) -> None:
    head, body = TABLE.folded(width)
    assert max(map(len, [*head, *body])) <= width
    shown = sorted("".join("".join([*head, *body]).split()))
    given = list("".join("".join(cell.split()) for row in ROWS for cell in row))
    assert all(shown.count(c) >= given.count(c) for c in set(given))


def test_a_folded_table() -> None:
    assert TABLE.folded(60) == (
        ["partition         backend  nodes       in  notes"],
        [
            "xnnpack_0_of_the  xnnpack    128  3.0 KiB  5 operators; 1",
            "_first_encoder                             transpose of the",
            "                                           input",
            "b                              1",
        ],
    )


def test_a_table_that_is_too_narrow_is_a_list_for_each_row() -> None:
    assert TABLE.folded(40) == (
        [],
        [
            "partition:",
            "  xnnpack_0_of_the_first_encoder",
            "  backend: xnnpack",
            "  nodes: 128",
            "  in: 3.0 KiB",
            "  notes: 5 operators; 1 transpose of the",
            "    input",
            "partition: b",
            "  nodes: 1",
        ],
    )


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("short", 10, ["short"]),
        ("two words", 5, ["two", "words"]),
        ("aten.convolution.default", 14, ["aten.convoluti", "on.default"]),
        ("x" * 12, 5, ["xxxxx", "xxxxx", "xx"]),
        ("", 5, [""]),
    ],
)
def test_fold(text: str, width: int, lines: list[str]) -> None:
    assert fold(text, width) == lines


def test_lines_keep_their_indent() -> None:
    line = "    relu -> float32[1, 8] at model.py:11, in forward"
    assert fold_line(line, 40) == ["    relu -> float32[1, 8] at", "      model.py:11, in forward"]
    assert fold_line(line, 80) == [line]
    assert fold_line("x" * 50, 8) == ["x" * 50]
