"""What the commands print: results on stdout, plain where it is piped; warnings, errors and progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

_REDRAW = 0.1  # seconds between two drawings of a bar


def print_json(data: Any) -> None:
    """Data for another program, on stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn by rich on a terminal, else aligned columns that nothing wraps."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(*header, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            drawn.add_row(*(Text(cell) for cell in row))
        Console().print(drawn)
        return
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def drop() -> None:
    """Print no results any more: what cannot be written now would fail again when the process ends."""
    sys.stdout = open(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def error(text: str) -> None:
    """An error, on stderr."""
    print(text, file=sys.stderr)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Shows a warning as one line, in place of `warnings.showwarning`."""
    print(f"warning: {' '.join(str(message).split())}", file=file or sys.stderr)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Says that long work goes on, on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def counted(count: int, text: str) -> Iterator[int]:
    """`range(count)` with a bar on stderr where that is a terminal; nothing is drawn while the caller has an item."""
    if count == 1 or not sys.stderr.isatty():
        yield from range(count)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task, drawn = bar.add_task(text, total=count), time.monotonic()
        for i in range(count):
            yield i
            bar.advance(task)
            if time.monotonic() - drawn > _REDRAW:
                bar.refresh()
                drawn = time.monotonic()
