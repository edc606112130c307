"""The commands as real processes: exit codes, one clear line, plain output, no torch where none is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.programs import save_sum
from tests.support.lowering import compiled
from tests.support.plugins import Site


def start(site: Site, *args: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line; `before` is Python code that runs first."""
    code = f"import sys; {before}\nfrom delegate.cli.main import main\nmain()"
    environment = {**os.environ, "PYTHONPATH": str(site.root)}
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, env=environment, check=False
    )


@pytest.fixture
def program(site: Site, tmp_path: Path) -> str:
    site.backend("adder")
    return str(save_sum(tmp_path / "sum.dlg"))


@pytest.mark.extended
def test_run_needs_no_torch(site: Site, program: str, tmp_path: Path) -> None:
    absent = "sys.modules.update(torch=None, yaml=None)"
    done = start(site, "run", program, "--output", str(tmp_path), before=absent)
    assert (done.returncode, done.stderr) == (0, "")
    assert np.load(tmp_path / "sum.npy").shape == (2, 3)
    for args in (("backends",), ("inspect", program), ("explain", program)):
        done = start(site, *args, before=absent)
        assert (done.returncode, done.stderr) == (0, ""), args


def test_missing_torch_is_one_line(site: Site, tmp_path: Path) -> None:
    done = start(site, "lower", "a:b", "-o", str(tmp_path / "x.dlg"), before="sys.modules['torch'] = None")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: this command needs torch, which is not installed: pip install 'delegate[aot]'\n"


def test_what_libraries_print_is_no_result(site: Site, program: str) -> None:
    chatter = "import os, atexit; atexit.register(os.write, 1, b'late')"
    quiet = start(site, "inspect", program, "--json")
    noisy = start(site, "inspect", program, "--json", before=chatter)
    assert noisy.stdout == quiet.stdout
    assert "late" in noisy.stderr


@pytest.mark.extended
def test_no_stdout_at_all(site: Site, program: str) -> None:
    for command in (["inspect", program], ["backends"]):
        done = start(site, *command, before="sys.stdout = None")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), command


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_disk_that_is_full(site: Site, program: str) -> None:
    done = start(
        site,
        "inspect",
        program,
        before="sys.stdout = open('/dev/full', 'w'); import os; os.dup2(sys.stdout.fileno(), 1)",
    )
    assert done.returncode == 1
    assert done.stderr == "error: OSError: [Errno 28] No space left on device: `--debug` shows the traceback\n"


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_missing_cli_library_is_one_line(site: Site, library: str) -> None:
    done = start(site, "backends", before=f"sys.modules[{library!r}] = None")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: the command line needs {library}: pip install 'delegate[cli]'\n"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("run", "absent.dlg"), 1, "error: "),
        (("run",), 2, "Missing argument 'FILE'"),
    ],
)
def test_exit_codes(site: Site, args: tuple[str, ...], code: int, message: str) -> None:
    done = start(site, *args)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("args", [("--debug", "run", "absent.dlg"), ("run", "absent.dlg", "--debug")])
def test_debug_shows_the_traceback(site: Site, args: tuple[str, ...]) -> None:
    done = start(site, *args)
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.extended
def test_output_is_plain_when_piped(site: Site, program: str) -> None:
    for args in (("backends",), ("run", program), ("--help",)):
        done = start(site, *args)
        assert done.returncode == 0
        assert "\x1b" not in done.stdout, args
        assert not set("─│╭┏━") & set(done.stdout), args


def test_module_and_version() -> None:
    done = subprocess.run([sys.executable, "-m", "delegate", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("delegate 0.")


def test_warnings_are_one_line(site: Site) -> None:
    compiled(torch.nn.ReLU(), (torch.ones(3),)).save(site.root / "relu.dlg")  # it needs a kernel
    site.module("bad_kernels", "1 / 0")
    site.distribution("bad-dist", "1.0", {"bad": "bad_kernels:TABLE"}, "delegate.kernels")
    done = start(site, "run", str(site.root / "relu.dlg"))
    assert done.returncode == 0
    assert done.stderr.startswith("warning: kernel library 'bad' of bad-dist 1.0 is broken")
    assert done.stderr.count("\n") == 1
