"""The filter of what libraries print: noise goes, everything else stays, also the last words of a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.programs import save_sum
from tests.support.plugins import Site

START = """
import os, sys; from delegate.common import vendor_output as v; v.separate(); v.start(); v.expect(['# noise .*'])
"""


def run(code: str, start: str = START) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("code", "stderr"),
    [
        ("os.write(2, b'# noise 1\\n')", ""),
        ("os.write(1, b' # noise 1\\nkept\\n# noise 2\\n')", "kept\n"),
        ("os.write(2, b'before # noise\\n')", "before # noise\n"),
        ("os.write(2, b'no end')", "no end"),
        ("os.write(2, b'start '); v.expect(['other']); os.write(2, b'end\\nother\\n')", "start end\n"),
        ("os.system('echo from a child; echo \"# noise 1\"')", "from a child\n"),
        ("import ctypes; ctypes.CDLL(None).printf(b'# noise 1\\nheld by C\\n')", "held by C\n"),
        ("print('ours', file=sys.stderr)", "ours\n"),
        ("[os.write(2, b'x' * 999 + b'\\n') for _ in range(500)]", ("x" * 999 + "\n") * 500),
    ],
)
def test_noise_goes_and_all_else_stays(code: str, stderr: str) -> None:
    done = run(code + "\nprint('# noise is a result here')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "# noise is a result here\n", stderr)


@pytest.mark.parametrize("end", ["os.abort()", "os.kill(os.getpid(), 9)", "os._exit(3)"])
def test_last_words_arrive(end: str) -> None:
    done = run(f"os.write(2, b'# noise 1\\nterminate called after\\nand half a line'); {end}")
    assert done.returncode != 0
    assert done.stderr == "terminate called after\nand half a line"


def test_without_the_filter_nothing_is_expected() -> None:
    assert run("os.write(2, b'# noise 1\\n')", START.replace("v.start();", "")).stderr == "# noise 1\n"


@pytest.mark.parametrize(("debug", "shown"), [([], "loud: on fire\n"), (["--debug"], "loud: 3 seats\nloud: on fire\n")])
def test_a_command_leaves_out_what_a_backend_declares(site: Site, tmp_path: Path, debug: list[str], shown: str) -> None:
    site.backend("adder")
    for module in site.root.glob("*adder*.py"):
        text = module.read_text().replace("api_version=", "noise=(r'loud: \\d+ seats',), api_version=")
        text = text.replace("return Sum()", "import os; os.write(1, b'loud: 3 seats\\nloud: on fire\\n'); return Sum()")
        module.write_text(text)
    command = [sys.executable, "-m", "delegate", "run", str(save_sum(tmp_path / "sum.dlg")), *debug]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(site.root), *sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, shown)
    assert "loud" not in done.stdout
