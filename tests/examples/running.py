"""Scripts of examples/ in this process, which has imported torch already."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.sources import ROOT
from tests.support.zoo import libraries

EXAMPLES = ROOT / "examples"


def run(script: str, *arguments: str | Path, code: int = 0) -> str:
    """Run a script with these arguments, assert its exit code, and return what it prints.

    Modules beside the script are forgotten afterwards, because other examples have modules of the same names.
    """
    path = EXAMPLES / script
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        for name in _modules_of_examples():  # that another test has imported
            patch.delitem(sys.modules, name)
        patch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        patch.setattr(sys, "path", [str(path.parent), *sys.path])
        ended: int | str | None = 0
        try:
            with libraries():
                runpy.run_path(str(path), run_name="__main__")
        except SystemExit as error:
            ended = error.code
        finally:
            for name in _modules_of_examples():
                del sys.modules[name]
    if isinstance(ended, str):  # as Python prints it
        out.write(ended + "\n")
        ended = 1
    assert (ended or 0) == code, out.getvalue()
    return out.getvalue()


def _modules_of_examples() -> list[str]:
    files = {name: str(getattr(module, "__file__", "")) for name, module in sys.modules.items()}
    return [name for name, file in files.items() if file.startswith(str(EXAMPLES))]
