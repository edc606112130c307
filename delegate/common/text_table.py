"""Text for people: tables with aligned columns, lines folded to a width, and names without control characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_GAP = "  "  # between columns
_LEAST = 12  # characters of a folded column; if the columns need more than the width, each row becomes a list
_MOST_PADDED = 200  # characters of a column without folding: one long cell does not make all rows as long


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below titles.

    Args:
        header: the titles of the columns.
        rows: the cells of each row, one for each title.
        numbers: the columns that are aligned to the right, and never folded.
        indent: the text before each line.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    indent: str = ""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the titles and the rows, one line each."""
        head, body = self.folded(None)
        return [*head, *body]

    def folded(self, width: int | None) -> tuple[list[str], list[str]]:
        """Return the lines of the titles and the lines of the rows.

        Args:
            width: the most characters of a line; long cells are folded, and no text is lost. If the columns are too
                narrow for that, each row is a list of its titles and cells. None: no limit, and one line for each row.
        """
        natural = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        if width is None:
            padded = [min(n, _MOST_PADDED) for n in natural]
            return [self._line(self.header, padded)], [self._line(row, padded) for row in self.rows]
        widths = self._fit_widths(natural, width)
        if widths is None:
            return [], [line for row in self.rows for line in self._record(row, width)]
        return self._fold_row(self.header, widths), [c for row in self.rows for c in self._fold_row(row, widths)]

    def _fit_widths(self, natural: Sequence[int], width: int) -> list[int] | None:
        """Return widths of the columns that fit into a line; None if a column would be too narrow."""
        room = width - len(self.indent) - len(_GAP) * (len(natural) - 1)
        fixed = {i for i in range(len(natural)) if i in self.numbers or natural[i] <= _LEAST}
        for limit in range(min(max(natural, default=0), width), _LEAST - 1, -1):
            widths = [n if i in fixed else min(n, limit) for i, n in enumerate(natural)]
            if sum(widths) <= room:
                return widths
        return None

    def _fold_row(self, cells: Sequence[str], widths: Sequence[int]) -> list[str]:
        columns = [fold(cell, width) for cell, width in zip(cells, widths, strict=True)]
        height = max(map(len, columns), default=0)
        lines = [[column[i] if i < len(column) else "" for column in columns] for i in range(height)]
        return [self._line(line, widths) for line in lines]

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        return self.indent + _GAP.join(map(self._align, range(len(widths)), cells, widths)).rstrip()

    def _align(self, column: int, cell: str, width: int) -> str:
        return cell.rjust(width) if column in self.numbers else cell.ljust(width)

    def _record(self, row: Sequence[str], width: int) -> list[str]:
        """Return a row as lines "title: cell", without empty cells."""
        named = [f"{title}: {cell}" if title else cell for title, cell in zip(self.header, row, strict=True) if cell]
        indents = [self.indent, *[f"{self.indent}  "] * (len(named) - 1)]
        return [line for indent, text in zip(indents, named, strict=False) for line in fold_line(indent + text, width)]


def fold(text: str, width: int, indent: str = "", rest: str = "") -> list[str]:
    """Return a text as lines of at most `width` characters, divided at spaces, or in words that are longer.

    Args:
        text: on one line.
        width: the most characters of a line, at least 1.
        indent: the text before the first line.
        rest: the text before the others.
    """
    import textwrap  # a program that only runs does not need it

    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=rest, break_on_hyphens=False) or [""]


def fold_line(line: str, width: int) -> list[str]:
    """Return a line of text folded to a width, with its indent; the following lines have two more spaces."""
    text = line.lstrip(" ")
    indent = line[: len(line) - len(text)]
    if len(line) <= width or width < len(indent) + 2 * _LEAST:
        return [line]
    return fold(text, width, indent, f"{indent}  ")


def printable(text: str) -> str:
    """Return the text with escapes for characters that are not printable, since names in a foreign file may hold such.

    Control characters (C0, C1) could control a terminal, and direction marks could hide the real text.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
