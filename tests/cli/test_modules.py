"""What a command imports, which is most of the time that it takes to start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

import delegate
from delegate.cli.app import app
from delegate.cli.commands import Group

START = {
    "delegate", "delegate.cli", "delegate.cli.app", "delegate.cli.commands", "delegate.cli.main", "delegate.cli.output",
    "delegate.errors",
    "delegate.events", "delegate.events.kinds",
    "delegate.common", "delegate.common.text_table", "delegate.common.vendor_output",
    "delegate.plugins",
}  # fmt: skip
RUN = START | {
    "delegate.runtime.arguments", "delegate.cli.arrays", "delegate.cli.options",
    "delegate.cli.run", "delegate.plugins.user_modules", "delegate.common.field_checks",
    "delegate.common.files", "delegate.report.measured",
    "delegate.runtime.option_rules",
    "delegate.registry", "delegate.report", "delegate.report.rows", "delegate.common.user_warnings", "delegate.verdict",
}  # fmt: skip
RUNTIME = {"delegate.kernels", "delegate.memory", "delegate.program", "delegate.runtime"}  # packages that run programs
OF_PLUGINS = {"delegate.cli.options", "delegate.plugins.user_modules", "delegate.common.files", "delegate.usage_data"}
TYPER = {"annotated_doc", "rich", "shellingham", "typer"}
# Typer reads the arguments of a command with pydantic.
ARGUMENTS = TYPER | {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}

CODE = """
import json, sys
before = {{*sys.modules}}  # what Python's own start imports, e.g. a distribution's sitecustomize
from delegate.cli.main import main
sys.argv[1:] = {arguments!r}
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
finally:
    with open({listing!r}, "w") as file:
        json.dump([name for name in sys.modules if name not in before], file)
"""


def _modules(folder: Path, *arguments: str) -> tuple[set[str], set[str]]:
    """Return what a command imports: the modules of this project, and the packages of others."""
    listing = folder / "modules.json"
    path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    environment = {**os.environ, "PYTHONPATH": path, "DELEGATE_BLOCK_PLUGINS": "kernels-extra,numba"}
    code = CODE.format(arguments=arguments, listing=str(listing))
    subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=True, capture_output=True)
    files = json.loads(listing.read_text())
    own = {name for name in files if name.partition(".")[0] == "delegate"}
    others = {name.partition(".")[0] for name in files} - sys.stdlib_module_names - {"cython_runtime", "delegate"}
    return own, {name for name in others if not name.startswith("_")}


def test_the_version_imports_neither_numpy_nor_a_command(tmp_path):
    own, others = _modules(tmp_path, "--version")
    assert own == START
    assert others <= TYPER


def test_the_help_imports_commands_of_other_packages_alone(tmp_path):
    own, others = _modules(tmp_path, "--help")
    assert own <= START | OF_PLUGINS
    assert {name for name in others if not name.startswith("delegate_")} <= TYPER


@pytest.mark.parametrize(
    ("backend", "packages", "libraries"),
    [
        ("portable", {"delegate.backend", "delegate.cache"}, set()),
        ("xnnpack", {"delegate.backend", "delegate.backends"}, {"ai_edge_litert"}),
    ],
)
def test_run_imports_what_runs_programs_alone(backend, packages, libraries, tmp_path):
    file = tmp_path / "net.dlg"
    delegate.to_backend(torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),)), backend).save(file)
    own, others = _modules(tmp_path, "run", str(file))
    used = {".".join(name.split(".")[:2]) for name in own - RUN}
    assert used == RUNTIME | packages
    assert others - ARGUMENTS == {"flatbuffers", "numpy"} | libraries


def test_the_list_of_commands_says_what_their_help_says():
    group = typer.main.get_command(app)
    assert {name: group.summary(None, name) for name in group.commands} == {
        name: Group.summary(group, None, name) for name in group.commands
    }
