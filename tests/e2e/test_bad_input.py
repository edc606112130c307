"""What users get wrong: one clear line each."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.errors import (
    BackendNotFound,
    ConfigError,
    DelegateError,
    ExportError,
    InputError,
    ProgramError,
)
from tests.support.lowering import assert_runs, assert_same, compiled
from tests.support.processes import run

CLI = "from delegate.cli.main import main; main()"


class Net(nn.Module):
    def forward(self, image: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return torch.relu(image) + shift


ARGS = (torch.ones(2, 3), torch.ones(3))


def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Net(), ARGS)


@pytest.fixture(scope="module")
def program() -> delegate.CompiledProgram:
    program = delegate.to_backend(exported(), "xnnpack")
    assert_runs(program, "xnnpack")
    return program


@pytest.fixture
def saved(program, tmp_path) -> Path:
    program.save(tmp_path / "net.dlg")
    return tmp_path / "net.dlg"


def one_line(error: BaseException, *words: str) -> None:
    """The message is one line and has these words."""
    text = str(error)
    assert "\n" not in text
    for word in words:
        assert word in text, text


LOWERING = {
    "module": (lambda: delegate.to_backend(Net(), "xnnpack"), ExportError, ("Net", "delegate.export(")),
    "number": (lambda: delegate.to_backend(3), ExportError, ("a int is not a model", "ExportedProgram")),
    "no file": (lambda: delegate.to_backend("absent.pt2"), ExportError, ("absent.pt2",)),
    "no methods": (lambda: delegate.to_backend({}), ExportError, ("empty", "at least one method")),
    "module among methods": (lambda: delegate.to_backend({"a": Net()}), ExportError, ("Net", "export it first")),
    "unknown backend": (
        lambda: delegate.to_backend(exported(), "xnnpak"), BackendNotFound, ("'xnnpak'", "did you mean 'xnnpack'?"),
    ),
    "unknown key": (
        lambda: delegate.to_backend(exported(), config={"backend": []}), ConfigError, ("backend", "backends"),
    ),
    "wrong value": (
        lambda: delegate.to_backend(exported(), config={"partitioning": {"min_partition_size": "many"}}),
        ConfigError,
        ("partitioning.min_partition_size",),
    ),
    "wrong option": (
        lambda: delegate.to_backend(exported(), config={"backends": [{"name": "xnnpack", "options": {"treads": 1}}]}),
        ConfigError,
        ("treads", "threads"),
    ),
    "more threads than any machine has": (
        lambda: delegate.to_backend(
            exported(), config={"backends": [{"name": "xnnpack", "options": {"threads": 10**20}}]}
        ),
        ConfigError,
        ("threads", "less than or equal to 1024"),
    ),
    "unknown place of a pin": (
        lambda: delegate.to_backend(exported(), "xnnpack", config={"partitioning": {"pins": {"a": "xnnpak"}}}),
        DelegateError,
        ("xnnpak",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOWERING)
def test_lowering(name):
    attempt, kind, words = LOWERING[name]
    with pytest.raises(kind) as caught:
        attempt()
    one_line(caught.value, *words)


INPUTS = {  # others are among the tests of runs
    "nothing": ((None, np.ones(3, np.float32)), ("'image'", "NoneType")),
    "masked": ((np.ma.masked_array(np.ones((2, 3), np.float32), True), np.ones(3)), ("'image'", "masked", ".filled()")),
    "tensors that require gradients, in a list": (([torch.ones(3, requires_grad=True)] * 2, np.ones(3)), ("'image'",)),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(program, name):
    args, words = INPUTS[name]
    with pytest.raises(InputError) as caught:
        program.loaded(*args)
    one_line(caught.value, *words)


TENSORS = {
    "meta": (torch.ones(2, 3, device="meta"), ("'image'", "no data", "give a dense tensor")),
    "sparse": (torch.ones(2, 3).to_sparse(), ("'image'", "give a dense tensor")),
    "dtype": (torch.ones(2, 3).double(), ("'image'", "float64", "convert it to float32")),
    "list of a tensor": ([torch.ones(2, 3)], ("'image'", "[1, 2, 3]")),
    "dict": ({"a": torch.ones(2, 3)}, ("'image'", "dict")),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(program, name):
    given, words = TENSORS[name]
    with pytest.raises(InputError) as caught:
        program(given, ARGS[1])
    one_line(caught.value, *words)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("backends", ["xnnpack", []], ids=["xnnpack", "portable"])
def test_matrices_are_arrays(backends):
    """A matrix of NumPy multiplies and selects otherwise than an array."""

    class Rows(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x[0] * x[1], x * x, x.sum(0)

    given = torch.arange(9.0).reshape(3, 3)
    program = compiled(Rows(), (given,), backends=backends)
    for result, expected in zip(program.loaded(np.matrix(given.numpy())), Rows()(given), strict=True):
        assert type(result) is np.ndarray
        assert_same(result, expected)


def fails(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert that a command ended with exit code 1 and one line, which has these words."""
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


ABSENT = ("ai_edge_litert",)


def test_absent_library(saved):
    done = run("import delegate; delegate.load(sys.argv[1])", saved, absent=ABSENT)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("delegate.errors.BackendUnavailable: ")
    assert "xnnpack" in last
    assert "pip install" in last
    assert "ai-edge-litert" in last
    fails(run(CLI, "run", saved, absent=ABSENT), "xnnpack", "pip install", "ai-edge-litert")
    listed = run(CLI, "backends", absent=ABSENT)
    assert listed.returncode == 0
    row = next(line for line in listed.stdout.splitlines() if line.startswith("xnnpack"))
    assert "unavailable" in row
    assert "ai-edge-litert" in listed.stdout


@pytest.mark.parametrize("place", [None, 3, b"net.dlg", io.BytesIO()])
def test_what_is_no_path(program, place):
    with pytest.raises(ProgramError) as caught:
        program.save(place)
    one_line(caught.value, type(place).__name__, "pass the path of a file")


def test_who_may_read_the_old_file_may_read_the_new_one(program, saved):
    saved.chmod(0o600)
    program.save(saved)
    assert saved.stat().st_mode & 0o777 == 0o600
