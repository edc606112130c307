"""What the commands print: results on stdout, plain where it is piped; warnings, errors and progress on stderr.

Names in a file or a model may hold anything, such as what steers a terminal. So all that a command prints, whoever
prints it, goes through `escaped`, which shows what is not printable as Python writes it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

from delegate.program.text import printable

_REDRAW = 0.1  # seconds between two drawings of a bar


class _Escaped:
    """A stream of text that holds no control characters (C0, C1) and no marks of direction but line ends and tabs."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if not text.replace("\n", "").replace("\t", "").isprintable():
            text = "".join(c if c in "\n\t" else printable(c) for c in text)
        self.stream.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """All else is the stream's own: whether it is a terminal, its encoding, its descriptor."""
        return getattr(self.stream, name)


@contextmanager
def escaped() -> Iterator[None]:
    """Escape what is written to stdout and stderr meanwhile."""
    before = sys.stdout, sys.stderr
    wrapped = [cast(TextIO, s and _Escaped(s)) for s in before]
    sys.stdout, sys.stderr = wrapped
    try:
        yield
    finally:
        if sys.stdout is wrapped[0]:  # else it was dropped
            sys.stdout = before[0]
        sys.stderr = before[1]


def _own(stream: TextIO) -> TextIO:
    """The stream without escapes, for what draws on a terminal."""
    return stream.stream if isinstance(stream, _Escaped) else stream


def print_json(data: Any) -> None:
    """Data for another program, on stdout."""
    print_json_text(json.dumps(data, indent=2, ensure_ascii=False))


def print_json_text(text: str) -> None:
    """JSON on stdout, with JSON's own escapes for what is not printable."""
    print("".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn by rich on a terminal, else aligned columns that nothing wraps."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(*header, box=None, header_style="bold", pad_edge=False)
        for row in rows:
            drawn.add_row(*(Text(printable(cell)) for cell in row))
        Console(file=_own(sys.stdout)).print(drawn)
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
    from rich.text import Text

    with Console(file=_own(sys.stderr)).status(Text(printable(text))):
        yield


@contextmanager
def telling(text: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that says what long work is at, on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda now: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(file=_own(sys.stderr)).status(Text(printable(text))) as status:
        yield lambda now: status.update(Text(printable(f"{text}: {now}")))


@contextmanager
def advancing(text: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function that takes how much of how much is done: a bar on stderr where that is a terminal, else a line
    for each tenth."""
    if not sys.stderr.isatty():
        yield _tenths(text)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(file=_own(sys.stderr)), auto_refresh=False, transient=True) as bar:
        task = bar.add_task(escape(printable(text)), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total, refresh=True)


def _tenths(text: str) -> Callable[[int, int], None]:
    told = 0

    def tell(done: int, total: int) -> None:
        nonlocal told
        if done * 10 // total > told:
            told = done * 10 // total
            print(f"{text}: {done} of {total}", file=sys.stderr, flush=True)

    return tell


def counted(count: int, text: str) -> Iterator[int]:
    """`range(count)` with a bar on stderr where that is a terminal; nothing is drawn while the caller has an item."""
    if count == 1 or not sys.stderr.isatty():
        yield from range(count)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(file=_own(sys.stderr)), auto_refresh=False, transient=True) as bar:
        task, drawn = bar.add_task(escape(printable(text)), total=count), time.monotonic()
        for i in range(count):
            yield i
            bar.advance(task)
            if time.monotonic() - drawn > _REDRAW:
                bar.refresh()
                drawn = time.monotonic()
