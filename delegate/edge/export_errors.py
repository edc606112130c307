"""Errors of torch.export in one line: the user's line of code, the reason, and the remedy."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import FrameSummary
from types import ModuleType

import torch

from delegate.errors import ExportError
from delegate.plugins import first_line

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))  # torch, and this project
_STANDARD = sysconfig.get_path("stdlib")
_PACKAGES = ("site-packages", "dist-packages")
_EXPLANATION = re.compile(r"^\s*Explanation: (.+)$", re.MULTILINE)  # of the compiler in torch
_HINT = re.compile(r"^\s*Hint: (?!Please|Consider using the debug|It may be)(.+)$", re.MULTILINE)
_ALL = "`--debug`, or the cause of this error, has all that torch reports"
_ON_DATA = "use torch.where or torch.cond in its place, or pass the value as an argument"


def export_refusal(error: Exception, name: str) -> ExportError:
    """Return the error about a failure of torch.export.

    Args:
        error: torch's error, with its traceback.
        name: name of the module, for messages.
    """
    reason, remedy = _reason(error)
    return ExportError(f"torch.export failed on {name}: {reason}", where=_place(error), remedy=f"{remedy}; {_ALL}")


def _reason(error: Exception) -> tuple[str, str]:
    """Return the reason in short, and the remedy."""
    text = str(error)
    if type(error).__name__ == "GuardOnDataDependentSymNode":
        return "the line depends on the content of a tensor, which is not known in an export", _ON_DATA
    if explanation := _EXPLANATION.search(text):
        hint = _HINT.search(text)
        return explanation[1].partition(". ")[0].rstrip("."), hint[1].rstrip(".") if hint else "change this line"
    return first_line(error).rstrip("."), "change this line, or the example inputs"


def _place(error: Exception) -> str:
    """Return the last line of the traceback that is neither torch's nor Python's; empty if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_user(frame)]
    if not frames:
        return ""
    file, code = frames[-1].filename, f": `{frames[-1].line}`" if frames[-1].line else ""
    near = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
    return f"{near}:{frames[-1].lineno}, in {frames[-1].name}{code}"


def _is_of_user(frame: FrameSummary) -> bool:
    file = frame.filename
    is_standard = file.startswith(_STANDARD) and not any(f"/{name}/" in Path(file).as_posix() for name in _PACKAGES)
    return not (is_standard or file.startswith(_LIBRARIES) or file == "<string>" or "<frozen" in file)


@contextmanager
def without_printed_graphs(exporter: ModuleType) -> Iterator[None]:
    """Suppress the graph that torch prints on stderr, twice, before it raises an error.

    Args:
        exporter: the module of torch that prints it.
    """
    vars(exporter)["print"] = lambda *values, **options: None
    try:
        yield
    finally:
        del vars(exporter)["print"]
