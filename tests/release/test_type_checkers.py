"""A type checker finds an editable install of this checkout: uses of the public API pass, and mistakes are reported."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.environments import Environment
from tests.support.sources import ROOT

pytestmark = pytest.mark.slow

# Each type that `reveal_type` shows is the comment of its line.
RIGHT = """\
import numpy as np
import torch

import delegate
from delegate.quantization import Quantization, quantize

x = torch.ones(2, 8)
exported = delegate.export(torch.nn.Linear(8, 4), (x,))
int8 = quantize(exported, Quantization(backend="xnnpack", scheme="dynamic_int8"))
program = delegate.to_backend(int8, ["xnnpack", "portable"], verify=delegate.Verify((x,), sqnr_db=20))
reveal_type(program)  # CompiledProgram
reveal_type(program.report.summary)  # str
reveal_type(delegate.explain(exported, "xnnpack"))  # Report
reveal_type(delegate.cached_attention(x, x, x, x))  # Tensor
program.save("model.dlg")
with delegate.load("model.dlg") as loaded, loaded.profile() as profile:
    loaded(np.zeros((2, 8), np.float32))
reveal_type(loaded)  # LoadedProgram
reveal_type(profile)  # Profile
try:
    delegate.load(b"no program")
except delegate.ProgramError as error:
    reveal_type(error.what)  # str
"""
# Each line is a mistake, and its comment is a part of mypy's message.
WRONG = """\
import delegate
delegate.load(3)  # incompatible type "int"
delegate.to_backnd("model.pt2")  # no attribute "to_backnd"
delegate.to_backend("model.pt2", backend="xnnpack")  # did you mean "backends"?
delegate.Verify(sqnr_db="60")  # incompatible type "str"
delegate.load("model.dlg").report.sumary  # no attribute "sumary"
delegate.cached_attention(1, 2, 3)  # Missing positional argument "positions"
"""


def comments(code: str) -> dict[int, str]:
    return {n: line.partition("  # ")[2] for n, line in enumerate(code.splitlines(), 1) if "  # " in line}


def messages(output: str, file: str, kind: str) -> dict[int, str]:
    """Return the messages on each line of a file."""
    found: dict[int, str] = {}
    for line, message in re.findall(rf"^{file}:(\d+): {kind}: (.*)$", output, re.MULTILINE):
        found[int(line)] = found.get(int(line), "") + message
    return found


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what mypy prints on both files in a fresh folder."""
    folder = tmp_path_factory.mktemp("types")
    environment = Environment.create(folder / "venv", ["setuptools", "numpy", "torch", "typing-extensions"])
    environment.install("--no-build-isolation", "--editable", ROOT)
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", environment.python]
    done = subprocess.run(
        [*mypy, "right.py", "wrong.py"],
        cwd=folder,
        env=environment.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_right_uses_have_their_types(output: str) -> None:
    assert messages(output, "right.py", "error") == {}
    types = messages(output, "right.py", "note")
    expected = comments(RIGHT)
    assert {line: re.split(r'[."]', shown)[-2] for line, shown in types.items()} == expected


def test_mistakes_are_reported(output: str) -> None:
    found = messages(output, "wrong.py", "error")
    expected = comments(WRONG)
    assert found.keys() == expected.keys()
    assert [f"{n}: {part}" for n, part in expected.items() if part not in found[n]] == []
