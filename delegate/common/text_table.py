"""Text for people: tables with aligned columns, and names without control characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_GAP = "  "  # between columns
_MOST_PADDED = 200  # characters of a column: one long cell does not make all rows as long


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells below titles.

    Args:
        header: the titles of the columns.
        rows: the cells of each row, one for each title.
        numbers: the columns that are aligned to the right.
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
        natural = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        widths = [min(n, _MOST_PADDED) for n in natural]
        return [self._line(row, widths) for row in (self.header, *self.rows)]

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        return self.indent + _GAP.join(map(self._align, range(len(widths)), cells, widths)).rstrip()

    def _align(self, column: int, cell: str, width: int) -> str:
        return cell.rjust(width) if column in self.numbers else cell.ljust(width)


def printable(text: str) -> str:
    """Return the text with escapes for characters that are not printable, since names in a foreign file may hold such.

    Control characters (C0, C1) could control a terminal, and direction marks could hide the real text.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
