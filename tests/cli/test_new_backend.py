"""`delegate new-backend`: what it writes is what the tutorial shows, installs as it is, and passes all tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from tests.packages import install

ROOT = Path(delegate.__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
FILES = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", TUTORIAL, re.DOTALL))
SCRIPT = next(code for code in re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL) if "print(" in code)


def write(folder: Path, *args: str) -> str:
    done = CliRunner().invoke(app, ["new-backend", *args, "--output", str(folder)])
    assert done.exit_code in (0, 1), done.output
    return done.stderr or done.stdout


def test_the_tutorial_shows_what_it_writes(tmp_path: Path) -> None:
    write(tmp_path / "made", "acme")
    written = {str(p.relative_to(tmp_path / "made")): p.read_text() for p in (tmp_path / "made").rglob("*.*")}
    assert set(FILES) == set(written) - {"README.md", "delegate_acme/__init__.py"}
    for name, text in FILES.items():
        assert text == written[name], name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xnnpack", "there is a backend 'xnnpack' here: use another name"),
        ("Acme", "'Acme' is no name for a new backend: use small letters"),
        ("class", "'class' is no name for a new backend"),
        ("../acme", "'../acme' is no name for a new backend"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, name: str, words: str) -> None:
    assert words in write(tmp_path / "made", name)
    assert not (tmp_path / "made").exists()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is there already: give another folder by --output" in write(tmp_path, "acme")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_it_passes_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "made", "my_npu")
    site = install(tmp_path / "site", tmp_path / "made")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
        "DELEGATE_CACHE": str(tmp_path / "kept"),
    }

    def python(*args: str, folder: Path) -> str:
        done = subprocess.run(
            [sys.executable, *args], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    own = python("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=tmp_path / "made")
    assert re.search(r"\d+ passed in", own), "and nothing is skipped"
    checked = json.loads(python("-m", "delegate", "check-backend", "my_npu", "--json", folder=tmp_path))
    assert (checked["state"], checked["halves"]) == ("ok", {"aot": "ok", "runtime": "ok"})
    outcomes = {test["outcome"] for test in checked["tests"]}
    assert outcomes == {"passed", "skipped"}
    assert checked["operators"]["aten.add.Tensor"] == "yes"
    assert "my_npu has no lowering of aten.tanh.default" in checked["operators"]["aten.tanh.default"]
    assert checked["call"]["seconds"] > 0
    assert "my_npu" in python("-c", SCRIPT.replace("acme", "my_npu"), folder=tmp_path)
