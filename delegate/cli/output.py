"""Output of the commands: results on stdout; warnings, errors and progress on stderr.

Only this module prints results. While a command runs, `sys.stdout` leads to stderr, as descriptor 1 does in the process
of a command. So a plugin may print anything, and stdout holds only results.

On a terminal, rich folds tables and lines to its width, and words have colours, while elsewhere each row is one plain
line.

Names in a file or a model may hold any text, such as terminal control sequences. So all output of a command goes
through `escape_output`, which shows characters that are not printable as Python escapes them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO, cast

from delegate.common.text_table import Table, printable
from delegate.events import listen
from delegate.events.kinds import Compiled, Event, Planned, StageRun, SupportChecked

if TYPE_CHECKING:
    from rich.console import Console

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


class _Others(_Escaped):
    """A stream to stderr in place of `sys.stdout`, which keeps the stream of the results."""

    def __init__(self, stream: TextIO, results: TextIO) -> None:
        super().__init__(stream)
        self.results = results


@contextmanager
def escape_output() -> Iterator[None]:
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


@contextmanager
def results_only() -> Iterator[None]:
    """Let `sys.stdout` lead to stderr in a `with` block. The functions of this module still print to stdout."""
    if sys.stderr is None or isinstance(sys.stdout, _Others):
        yield
        return
    sys.stdout = cast(TextIO, _Others(sys.stderr, sys.stdout))
    try:
        yield
    finally:
        sys.stdout = results()


def results() -> TextIO:
    """Return the stream of the results."""
    return sys.stdout.results if isinstance(sys.stdout, _Others) else sys.stdout


def print_line(text: str = "", *, end: str = "\n", flush: bool = False) -> None:
    """Print a line of the results as it is, for a reader of any width."""
    print(text, end=end, file=results(), flush=flush)


def _own(stream: TextIO) -> TextIO:
    """Return the stream without escapes, for drawing on a terminal."""
    return stream.stream if isinstance(stream, _Escaped) else stream


def print_json(data: Any) -> None:
    """Print data as indented JSON on stdout, with JSON's own escapes of characters that are not printable."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    print_line("".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int] = ()) -> None:
    """Print a table with bold titles on a terminal; it takes the arguments of `Table`."""
    show(Table(tuple(header), tuple(map(tuple, rows)), frozenset(numbers)))


def show(*blocks: str | Table) -> None:
    """Print texts and tables on stdout; on a terminal, folded to its width."""
    for block in blocks:
        if isinstance(block, Table):
            block = replace(block, rows=tuple(tuple(map(printable, row)) for row in block.rows))  # noqa: PLW2901
        if results().isatty():
            _draw(block)
        else:
            print_line(str(block))


def _draw(block: str | Table) -> None:
    """Print a text or a table on the terminal."""
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    if isinstance(block, str):
        _console(results()).print(Text("\n".join(map(printable, block.split("\n")))))
        return
    table = RichTable(box=None, padding=(0, 2, 0, 0))
    for number, title in enumerate(block.header):
        is_number = number in block.numbers
        table.add_column(title, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in block.rows:
        table.add_row(*map(Text, row))
    _console(results()).print(Padding(table, (0, 0, 0, len(block.indent))))


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=_own(stream))


def drop() -> None:
    """Discard further results: an unwritten rest of stdout would fail again when the process ends."""
    nothing = open(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, _Others):
        sys.stdout.results = nothing
    else:
        sys.stdout = nothing


def error(text: str) -> None:
    """Print an error on stderr; its first word is red on a terminal."""
    _report("error", "bold red", text, sys.stderr)


def warn(text: str) -> None:
    """Print a warning on stderr; its first word is yellow on a terminal."""
    _report("warning", "bold yellow", text, sys.stderr)


def show_warning(
    message: Warning | str, category: object, filename: str, lineno: int, file: object = None, line: object = None
) -> None:
    """Print a warning on one line; it replaces `warnings.showwarning`."""
    warn(" ".join(str(message).split()))


def _report(kind: str, style: str, text: str, stream: TextIO) -> None:
    if not stream.isatty():
        print(f"{kind}: {text}", file=stream)
        return
    from rich.text import Text

    lines = "\n".join(map(printable, text.split("\n")))
    _console(stream).print(Text.assemble((f"{kind}:", style), f" {lines}"))


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show a text with the time and the last finished step during long work, if stderr is a terminal.

    The steps are the events of lowering and loading, and the texts that the caller passes to the yielded function.
    """
    if not sys.stderr.isatty():
        yield lambda step: None
        return
    from rich.markup import escape
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=_console(sys.stderr), transient=True) as bar:
        task = bar.add_task(escape(printable(text)), total=None)

        def update(step: str) -> None:
            bar.update(task, description=escape(printable(f"{text}: {step}")))

        def on_event(event: Event) -> None:
            if step := _step(event):
                update(step)

        with listen(on_event):
            yield update


def _step(event: Event) -> str:
    """Return the text about a finished step of lowering; empty for the parts of steps."""
    match event:
        case SupportChecked(method=method, backend=backend):
            return f"{method} is checked for {backend}"
        case Planned(method=method):
            return f"{method} is planned"
        case Compiled(partition=partition):
            return f"{partition} is compiled"
        case StageRun(name=name, method=method):
            return f"{name} of {method} is finished" if method else f"{name} is finished"
    return ""


@contextmanager
def advancing(text: str, *, by_lines: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of the finished and the total amount of work.

    It draws a bar on stderr if that is a terminal, and else prints a line for each tenth, unless `by_lines` is false.
    """
    if not sys.stderr.isatty():
        yield _tenths(text) if by_lines else lambda done, total: None
        return
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=_console(sys.stderr), auto_refresh=False, transient=True) as bar:
        task = bar.add_task(escape(printable(text)), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total, refresh=True)


def _tenths(text: str) -> Callable[[int, int], None]:
    reported = 0

    def report(done: int, total: int) -> None:
        nonlocal reported
        if total and done * 10 // total > reported:
            reported = done * 10 // total
            print(f"{text}: {done} of {total}", file=sys.stderr, flush=True)

    return report


def count_with_bar(count: int, text: str) -> Iterator[int]:
    """Yield `range(count)` with a bar on a terminal's stderr; nothing is drawn while the caller has an item."""
    with advancing(text, by_lines=False) as advance:
        drawn = time.monotonic()
        for i in range(count):
            yield i
            if time.monotonic() - drawn > _REDRAW:
                advance(i + 1, count)
                drawn = time.monotonic()
