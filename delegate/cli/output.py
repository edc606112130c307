"""Output of the commands: results on stdout, plain if piped; warnings, errors and progress on stderr.

Names in a file or a model may hold any text, such as terminal control sequences. So all output of a command goes
through `escaped`, which shows characters that are not printable as Python escapes them.
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
    """A text stream without control characters (C0, C1) and direction marks, except line ends and tabs."""

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
        """Return any other attribute of the stream, such as its encoding or descriptor."""
        return getattr(self.stream, name)


@contextmanager
def escaped() -> Iterator[None]:
    """Escape all writes to stdout and stderr in a `with` block."""
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
    """Return the stream without escapes, for drawing on a terminal."""
    return stream.stream if isinstance(stream, _Escaped) else stream


def print_json(data: Any) -> None:
    """Print data as JSON on stdout."""
    print_json_text(json.dumps(data, indent=2, ensure_ascii=False))


def print_json_text(text: str) -> None:
    """Print JSON on stdout, with JSON's own escapes of characters that are not printable."""
    print("".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: drawn by rich on a terminal, else aligned columns without wrapping."""
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
    """Discard further results: an unwritten rest of stdout would fail again when the process ends."""
    sys.stdout = open(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def error(text: str) -> None:
    """Print an error on stderr."""
    print(text, file=sys.stderr)


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning on one line; it replaces `warnings.showwarning`."""
    print(f"warning: {' '.join(str(message).split())}", file=file or sys.stderr)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a text on stderr during long work, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(file=_own(sys.stderr)).status(Text(printable(text))):
        yield


@contextmanager
def telling(text: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the progress of long work on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda now: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(file=_own(sys.stderr)).status(Text(printable(text))) as status:
        yield lambda now: status.update(Text(printable(f"{text}: {now}")))


@contextmanager
def advancing(text: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of the finished and the total amount of work.

    It draws a bar on stderr if that is a terminal, and else prints a line for each tenth.
    """
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
    reported = 0

    def report(done: int, total: int) -> None:
        nonlocal reported
        if done * 10 // total > reported:
            reported = done * 10 // total
            print(f"{text}: {done} of {total}", file=sys.stderr, flush=True)

    return report


def counted(count: int, text: str) -> Iterator[int]:
    """Yield `range(count)` with a bar on a terminal's stderr; nothing is drawn while the caller has an item."""
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
