"""Readers of files of strangers: none waits for a pipe or reads a device, and all open files in one way."""

from __future__ import annotations

import ast
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.common.files import open_to_read, read_bytes, require_regular
from delegate.config import load_config
from delegate.errors import DelegateError
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.runtime.arguments import load_arrays
from tests.support.sources import ROOT

# Modules that open files in another way than by `delegate.common.files`, with the reason.
OTHERS = {
    "delegate/__init__.py": "of this package",
    "delegate/runtime/arguments.py": "after it has looked at the file",
    "delegate/backend/compiler_worker.py": "descriptors of its parent",
    "plugins/onnxruntime/delegate_onnxruntime/dsp/runtime.py": "a file of this process",
    "plugins/onnxruntime/delegate_onnxruntime/dsp/targets.py": "of the system",
    "plugins/cuda/delegate_cuda/aot/compiling.py": "a file of this process",
    "plugins/onnxruntime/delegate_onnxruntime/onnx/runtime/session.py": "a file of this process",
    "delegate/cache/runtime/environment.py": "of the system, and of an installed package",
    "delegate/cache/runtime/store.py": "does not wait, in a private folder",
    "delegate/cli/demo/command.py": "a file of this process",
    "delegate/cli/demo/measuring.py": "a file of this process",
    "delegate/cli/backends.py": "of this package",
    "delegate/costs/profile.py": "of this package",
    "delegate/devtools/page/__init__.py": "of this package",
    "delegate/devtools/trace.py": "of the system",
    "delegate/edge/sources.py": "opened by `open_to_read`, or of the user's own model",
    "delegate/common/files.py": "the one way",
    "delegate/placement/runtime/trials.py": "a file of this process",
    "delegate/placement/runtime/worker.py": "a file of its parent, and of the system",
    "delegate/plugins/__init__.py": "of an installed package",
    "delegate/processes/channel.py": "shared memory of this process",
    "delegate/processes/limits.py": "of the system",
    "delegate/program/cores.py": "files of the kernel below /proc and /sys",
    "delegate/program/source.py": "looks at the file itself",
    "delegate/testing/backend.py": "a file of this process",
    "plugins/llm/delegate_llm/__init__.py": "of this package",
    "plugins/llm/delegate_llm/aot/source.py": "after it has looked at the file",
    "plugins/onnxruntime/delegate_onnxruntime/providers/info.py": "of an installed package",
    "plugins/openvino/delegate_openvino/aot.py": "a file of this process",
    "plugins/ray/delegate_ray/runtime/job.py": "after it has looked at the file",
    "plugins/ray/delegate_ray/runtime/parquet_files.py": "after the scan has looked at the file",
    "plugins/ray/delegate_ray/runtime/text_files.py": "after the scan has looked at the file",
    "plugins/remote/delegate_remote/runtime/bundle.py": "opened by `open_to_read`, or a file of this process",
}
READS = {"read_text", "read_bytes", "is_zipfile", "ZipFile", "ParquetFile", "read_metadata", "safe_open"}


def opens(tree: ast.AST) -> bool:
    """Return True if a module opens files for reading other than by the functions of `delegate.common.files`."""
    return any(isinstance(node, ast.Call) and _opens(node) for node in ast.walk(tree))


def _opens(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id="open"):
            mode = call.args[1].value if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else "r"
            return not (isinstance(mode, str) and {*mode} & {*"wax"})
        case ast.Name(id=name):
            return name == "safe_open"
        case ast.Attribute(value=ast.Name(id="np"), attr="load"):
            return True
        case ast.Attribute(value=ast.Name(id="path" | "file"), attr="open"):
            return True
        case ast.Attribute(attr=name):
            return name in READS
    return False


@pytest.mark.extended
def test_files_are_opened_in_one_way() -> None:
    folders = [ROOT / "delegate", *ROOT.glob("plugins/*/delegate_*")]
    files = [file for folder in folders for file in folder.rglob("*.py") if "skeleton" not in file.parts]
    found = {str(file.relative_to(ROOT)) for file in files if opens(ast.parse(file.read_text("utf-8")))}
    assert found == OTHERS.keys()


@pytest.mark.parametrize(
    "line",
    ["open(p)", "open(p, 'rb')", "p.read_text()", "p.read_bytes()", "np.load(p)", "path.open()", "zipfile.ZipFile(p)"],
)
def test_the_search_finds(line: str) -> None:
    assert opens(ast.parse(line))
    assert not opens(ast.parse("open(p, 'w'); read_bytes(p); open_to_read(p)"))


# -- pipes and devices -------------------------------------------------------------------------------------------------


def command(*words: str) -> Callable[[Path], None]:
    """Return the call of a command, in which FILE is the path."""

    def call(path: Path) -> None:
        named = [word.replace("FILE", str(path)) for word in words]
        done = CliRunner().invoke(app, named, catch_exceptions=False)
        assert done.exit_code in (1, 2), done.output
        raise DelegateError(done.stderr)

    return call


READERS: dict[str, Callable[[Path], object]] = {
    "open_to_read": open_to_read, "read_bytes": read_bytes, "require_regular": require_regular,
    "load_arrays": load_arrays, "load": delegate.load, "plan": SavedPlan.load,
    "lock": Lock.load, "configuration": load_config,
    **{
        name: command(*words)
        for name, words in {
            "inspect": ("inspect", "FILE"), "explain": ("explain", "FILE"), "lower": ("lower", "FILE", "-o", "x.dlg"),
            "report": ("report", "FILE", "-o", "x.html"), "run": ("run", "FILE"), "strip": ("strip", "FILE"),
            "diff": ("diff", "FILE", "FILE"), "export-graph": ("export-graph", "FILE", "-o", "x.json"),
            "inputs": ("run", "PROGRAM", "-i", "FILE"), "archive": ("run", "PROGRAM", "-i", "FILE.npz"),
            "debug result": ("report", "PROGRAM", "-o", "x.html", "--debug-result", "FILE"),
        }.items()
    },
}  # fmt: skip


@pytest.fixture
def limit() -> Iterator[None]:
    """End a test that waits."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / "x", tmp_path / "x.npz"):
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
    program = next((ROOT / "tests" / "hostile" / "seeds").glob("mlp.dlg"))
    (tmp_path / "PROGRAM").symlink_to(program)
    with pytest.raises((DelegateError, OSError)):
        READERS[name](tmp_path / "x")


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_name_that_no_file_has(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PROGRAM").symlink_to(ROOT / "tests" / "hostile" / "seeds" / "mlp.dlg")
    with pytest.raises((DelegateError, OSError)) as caught:
        READERS[name](tmp_path / ("x" * 300))
    if isinstance(caught.value, DelegateError):
        assert "--debug" not in str(caught.value), caught.value  # the remedy of errors that are not of this project


def test_an_archive_that_unpacks_to_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program takes 8 numbers."""
    monkeypatch.chdir(tmp_path)
    np.savez_compressed("x.npz", x=np.zeros(1 << 23, np.float32))
    program = ROOT / "tests" / "hostile" / "seeds" / "mlp.dlg"
    (name,) = (i.name for i in delegate.load(program).method("forward").inputs)
    np.savez_compressed("x.npz", **{name: np.zeros(1 << 23, np.float32)})
    done = CliRunner().invoke(app, ["run", str(program), "-i", "x.npz"])
    assert done.exit_code == 1
    assert "has the shape [8388608], which is more than is needed" in done.stderr
    np.savez_compressed("x.npz", **{name: np.zeros((2, 4), np.float32)})
    assert CliRunner().invoke(app, ["run", str(program), "-i", "x.npz"]).exit_code == 0
