"""The blocks of a page of docs/, and their execution as a reader would execute them, in one folder."""

from __future__ import annotations

import contextlib
import io
import linecache
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from delegate.cli.app import app

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# ([\w./-]+\.\w+)\n")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|\binf\b")
# Commands that need a network or another machine: they are not run.
NOT_RUN = ("pip install", "pip wheel", "python -m venv", "source ", "scp ", "ssh ", "ray start", "make ")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        kind: the language after the fence.
        text: its lines, without their indentation.
        place: page and line, for messages.
    """

    kind: str
    text: str
    place: str

    @property
    def file(self) -> str:
        """The name of the file that the block is, from its first line; empty if it is none."""
        named = _NAMED.match(self.text)
        return named[1] if named and self.kind in ("python", "yaml") else ""


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text()
    found = []
    for match in _BLOCK.finditer(text):
        indent, kind, body = match.groups()
        line = text.count("\n", 0, match.start()) + 2
        place = f"{page.relative_to(DOCS)}:{line}"
        found.append(Block(kind, re.sub(rf"^{indent}", "", body, flags=re.MULTILINE), place))
    return found


def run_page(page: Path) -> None:
    """Write the files of a page, execute its Python and shell blocks in order, and compare their output.

    All happens in the current folder. A block of the kind `output` shows lines of the block before it; numbers and
    spaces may differ, and `...` stands for any lines.

    Raises:
        AssertionError: a command fails, or an output differs.
    """
    names: dict[str, Any] = {"__name__": "page"}
    printed = ""
    with _own_modules():
        for block in blocks(page):
            if block.file:
                Path(block.file).parent.mkdir(parents=True, exist_ok=True)
                Path(block.file).write_text(block.text)
            elif block.kind == "python":
                printed = _python(block, names)
            elif block.kind == "sh":
                printed = "".join(_command(line, block.place) for line in commands(block.text))
            elif block.kind == "output":
                _compare(block, printed)


def commands(text: str) -> list[str]:
    """Return the commands of a shell block, without comments and with continued lines joined."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"(?:^|\s{2,})#.*", "", line).strip() for line in lines) if line]


@contextlib.contextmanager
def _own_modules() -> Iterator[None]:
    """Let modules of the current folder be imported, and forget them at the end."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[name]


def _python(block: Block, names: dict[str, Any]) -> str:
    linecache.cache[block.place] = (len(block.text), None, block.text.splitlines(keepends=True), block.place)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(block.text, block.place, "exec"), names)
    return printed.getvalue()


def _command(line: str, place: str) -> str:
    if line.startswith(NOT_RUN):
        return ""
    line, _, status = line.partition(" ||")  # `|| true`: the command fails, and the page states that
    first, *words = shlex.split(line)
    if first == "delegate" and not {"|", ">", "&&"} & set(words):
        result = CliRunner().invoke(app, words)
        code, output = result.exit_code, result.output
    elif first == "python" and words[0].endswith(".py") and "import torch" in Path(words[0]).read_text():
        code, output = 0, _script(words)
    else:
        shell = ["bash", "-c", line]
        done = subprocess.run(shell, capture_output=True, text=True, check=False, timeout=120, env=_without_torch())
        code, output = done.returncode, done.stdout + done.stderr
    assert bool(code) == bool(status), f"{place}: `{line}` exits with {code}:\n{output}"
    return output


def _without_torch() -> dict[str, str]:
    """Return an environment whose processes find this checkout and no torch, as on the machine of a deployment."""
    absent = Path(".absent").absolute()
    absent.mkdir(exist_ok=True)
    (absent / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    (absent / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (absent / "delegate").write_text(f'#!/bin/sh\nexec {sys.executable} -m delegate "$@"\n')
    for command in ("python", "delegate"):
        (absent / command).chmod(0o755)
    paths = (str(absent), str(DOCS.parent), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PATH": f"{absent}:{os.environ['PATH']}", "PYTHONPATH": ":".join(filter(None, paths))}


def _script(words: list[str]) -> str:
    before = sys.argv
    sys.argv = words
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(words[0], run_name="__main__")
    finally:
        sys.argv = before
    return printed.getvalue()


def _compare(block: Block, printed: str) -> None:
    """Raise AssertionError unless the lines of a block are among those that were printed, in this order."""
    rest = iter([_plain(line) for line in printed.splitlines()])
    for line in block.text.splitlines():
        if line.strip() and line.strip() != "...":
            assert _plain(line) in rest, f"{block.place}: not printed: {line}\n{printed}"


def _plain(line: str) -> str:
    return " ".join(_NUMBER.sub("0", line).split())
