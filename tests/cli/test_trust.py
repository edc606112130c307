"""Machine code of a program file runs only if the user trusts it: every command and function that takes such a file."""

from __future__ import annotations

import contextlib
import csv
import inspect
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.errors import DelegateError
from delegate.program import file
from delegate.registry import default_registry
from tests.support.plugins import HALVES, RUNTIME, Site, installed

# A backend whose blobs are machine code, as it says. To open one leaves a mark.
CODED = HALVES.replace(RUNTIME, "").replace("{name}", "coded") + RUNTIME.replace(
    "def init(self, blob, compile_specs):",
    """def runs_code(self, compile_specs):
        return True

    def init(self, blob, compile_specs):
        import os, pathlib
        pathlib.Path(os.environ["MARK"]).touch()""",
).replace("np.add(*inputs,", "np.add(inputs[0], inputs[0],")
MODEL = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x + x)

def net(): return Net(), (torch.ones(1, 3),)
"""

# Command lines by the command and its parameter that takes a program file.
RUN = {  # these run the program
    ("run", "FILE"): "run coded.dlg",
    ("report", "MODEL|FILE"): "report coded.dlg --repeat 1 -o new.html",
    ("diff", "A.dlg"): "diff coded.dlg plain.dlg --inputs x.npy",
    ("diff", "B.dlg"): "diff plain.dlg coded.dlg --inputs x.npy",
    ("debug", "--from"): "debug coded_model:net --from coded.dlg",
    ("measure", "FILE"): "measure coded.bundle",
    ("llm run", "FILE"): "llm run coded.dlg -p text",
    ("llm chat", "FILE"): "llm chat coded.dlg",
    ("batch", "FILE"): "batch coded.dlg --input rows.csv --column x=a,b,c -o rows",
}
READ = {  # these do not run it
    ("inspect", "FILE"): "inspect coded.dlg",
    ("explain", "MODEL|FILE"): "explain coded.dlg",
    ("report", "MODEL|FILE"): "report coded.dlg -o new.html",
    ("export-graph", "MODEL|FILE"): "export-graph coded.dlg -o new.json",
    ("diff", "A.dlg"): "diff coded.dlg plain.dlg",
    ("strip", "FILE"): "strip coded.dlg -o new.dlg",
}
REFUSE = {  # these take a model, and a program file is none
    ("lower", "MODEL"): "lower coded.dlg -o new.dlg",
    ("debug", "MODEL"): "debug coded.dlg",
    ("config check", "FILE"): "config check coded.dlg",
    ("lock diff", "LOCK"): "lock diff coded.dlg coded.lock",
    ("lock check", "LOCK"): "lock check coded.dlg coded_model:net",
    ("lock check", "MODEL"): "lock check coded.lock coded.dlg",
}
ELSEWHERE = {
    ("serve", "[NAME=]FILE"): "test_a_server_runs_no_code, below",
    ("llm run", "--draft"): "test_a_draft_runs_no_code, below",
}
FOLDERS = {("llm export", "MODEL")}  # of transformers
# What other parameters take: files that are written, the user's own configuration, or data, none of which has blobs.
OTHER = {
    "--output", "--trace", "--lock", "--bundle", "--config", "--locked", "--costs", "JOBS", "--debug-result", "--tests",
    "--calibration", "--input", "--adapter",
}  # fmt: skip


def parameters() -> Iterator[tuple[str, str, Any]]:
    """Each command, also those of plugins, with its parameters that may take a file: by option, or by metavar."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, str, Any]]:
        names = command.list_commands(None) if hasattr(command, "list_commands") else ()
        for name in names:
            yield from walk(command.get_command(None, name), (*path, name))
        for parameter in () if names else command.params:
            if re.search(r"FILE|MODEL|FOLDER|DIR|LOCK|JOBS|COSTS|PATH|DATA|\.dlg", parameter.metavar or ""):
                is_option = parameter.param_type_name == "option"
                name = next(o for o in parameter.opts if o.startswith("--")) if is_option else parameter.metavar
                yield " ".join(path), name, command

    yield from walk(typer.main.get_command(app), ())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with programs, inputs, a model, a bundle and a lockfile; and the site of the backend."""
    folder = tmp_path_factory.mktemp("trust")
    (folder / "site").mkdir()
    site = Site(folder / "site")
    site.backend("coded")
    site.module("coded_halves", CODED)
    site.module("coded_model", MODEL)
    np.save(folder / "x.npy", np.ones((1, 3), np.float32))
    with (folder / "rows.csv").open("w") as rows:
        csv.writer(rows).writerows([("a", "b", "c"), (1, 2, 3)])
    with pytest.MonkeyPatch.context() as patch, surroundings(folder, patch):
        delegate.to_backend(exported(), "coded", placement=delegate.ByPreference(folder / "coded.lock")).save(
            folder / "coded.dlg"
        )
        delegate.to_backend(exported(), []).save(folder / "plain.dlg")
        if has_bundles():
            delegate.to_backend(exported(), "coded", placement=delegate.Remote(bundle=folder / "coded.bundle"))
    return folder


@pytest.fixture
def mark(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the machine code leaves behind. The working directory has what the command lines name."""
    with surroundings(made, monkeypatch) as mark:
        monkeypatch.chdir(made)
        mark.unlink(missing_ok=True)
        yield mark


@contextlib.contextmanager
def surroundings(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the backend; packages in plugins/ may be used, but for their backends. Yield the path of the mark."""
    patch.setenv("DELEGATE_BLOCK_PLUGINS", "openvino,onnxruntime")
    patch.setenv("MARK", str(folder / "mark"))
    with installed(folder / "site"):
        yield folder / "mark"


def exported() -> torch.export.ExportedProgram:
    import coded_model

    module, inputs = coded_model.net()
    return torch.export.export(module, inputs)


def has_bundles() -> bool:
    return any(state.name == "bundle" for state in default_registry().measurements)


def require_installed(command: str) -> None:
    if command not in {path for path, *_ in parameters()}:
        pytest.skip(f"no package with {command} is installed")


@pytest.mark.extended
@pytest.mark.parametrize("command", RUN, ids=" ".join)
def test_no_trust_no_code(mark: Path, command: tuple[str, str]) -> None:
    require_installed(command[0])
    arguments = RUN[command].split()
    refused = CliRunner().invoke(app, arguments)
    assert "machine code" in refused.output, refused.output
    assert not mark.exists()
    CliRunner().invoke(app, [*arguments, "--trust-code"])
    assert mark.exists()


@pytest.mark.parametrize(("line", "code"), [*((r, 0) for r in READ.values()), *((r, 1) for r in REFUSE.values())])
def test_commands_that_run_nothing(mark: Path, line: str, code: int) -> None:
    if line.startswith("debug"):
        require_installed("debug")
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == code, done.output
    assert not mark.exists()


def test_every_parameter_of_a_command_has_a_decision() -> None:
    decided = {*RUN, *READ, *REFUSE, *ELSEWHERE, *FOLDERS}
    assert not [(path, name) for path, name, _ in parameters() if (path, name) not in decided and name not in OTHER]
    can_trust = {path for path, _, command in parameters() if any("--trust-code" in p.opts for p in command.params)}
    assert can_trust == {path for path, _ in (*RUN, *ELSEWHERE)} & {path for path, *_ in parameters()}


def serve(mark: Path, *options: str) -> str:
    """Start a server until it ends, or has opened the program; return what it prints."""
    code = "from delegate.cli.main import main; main()"
    command = [sys.executable, "-c", code, "serve", "coded.dlg", "--port", "0", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        end = time.monotonic() + 60
        while server.poll() is None and not mark.exists() and time.monotonic() < end:
            time.sleep(0.05)
        server.terminate()
        return server.communicate(timeout=30)[0]
    finally:
        os.killpg(server.pid, signal.SIGKILL) if server.poll() is None else None


def test_a_server_runs_no_code(mark: Path) -> None:
    require_installed("serve")
    assert "machine code" in serve(mark)
    assert not mark.exists()
    serve(mark, "--trust-code")
    assert mark.exists()


@pytest.mark.slow
def test_a_draft_runs_no_code(mark: Path, tmp_path: Path) -> None:
    require_installed("llm run")
    from tests.support.language_models import made as make_language_model

    make_language_model(tmp_path, "llama", guesses=2)
    arguments = ["llm", "run", str(tmp_path / "model.dlg"), "--numbers", "-p", "5 17", "--draft", "coded.dlg"]
    assert "machine code" in CliRunner().invoke(app, arguments).output
    assert not mark.exists()
    CliRunner().invoke(app, [*arguments, "--trust-code"])
    assert mark.exists()


def debug(path: Path, **trust: bool) -> None:
    pytest.importorskip("delegate_devtools").debug(exported(), program_file=path, budget=0, **trust)


def converse(path: Path, **trust: bool) -> None:
    pytest.importorskip("delegate_llm.runtime.model").Model(path, **trust)


def predict(path: Path, **trust: bool) -> None:
    pytest.importorskip("delegate_ray").Predictor(path, {"x": "x"}, **trust)


def measure(path: Path, **trust: bool) -> None:
    costs = pytest.importorskip("delegate_remote.runtime.measuring").measure(path.with_suffix(".bundle"), **trust)
    for program in costs.methods["forward"].programs.values():
        if program.record.failure:
            raise DelegateError(program.record.failure)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "load": delegate.load,
    "load, isolated": lambda path, **trust: delegate.load(path, isolate=True, **trust),
    "load, of bytes": lambda path, **trust: delegate.load(path.read_bytes(), **trust),
    "LoadedProgram": lambda path, **trust: delegate.LoadedProgram(file.load(path), **trust),
    "delegate_devtools": debug,
    "delegate_llm": converse,
    "delegate_ray": predict,
    "bundles": measure,
}
# Public functions with other paths, or with objects that were made here.
OTHERS = {
    "to_backend",
    "explain",
    "export",
    "ByPreference",
    "Estimated",
    "Measured",
    "Remote",
    "Replay",
    "CompiledProgram",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(mark: Path, name: str) -> None:
    function = FUNCTIONS[name]
    with pytest.raises(DelegateError, match="machine code"):
        function(Path("coded.dlg"))
    assert not mark.exists()
    try:
        function(Path("coded.dlg"), trust_code=True)
    except DelegateError:
        assert name == "delegate_llm"  # it is no language model, which is read in the opened program
    assert mark.exists()


def test_every_public_function_that_takes_a_file_is_here() -> None:
    taking = set()
    for name in delegate.__all__:
        value = getattr(delegate, name)
        if callable(value) and not (inspect.isclass(value) and issubclass(value, Exception)):
            annotations = [str(p.annotation) for p in inspect.signature(value).parameters.values()]
            taking |= {name for text in annotations if re.search(r"Path|Source|Model|\bProgram\b", text)}
    assert taking == {name for name in FUNCTIONS if name in delegate.__all__} | OTHERS
