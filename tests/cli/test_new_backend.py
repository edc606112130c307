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
from tests.support.packages import install
from tests.support.plugins import Site

ROOT = Path(delegate.__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorials" / "backend.md").read_text()
FILES = dict(re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", TUTORIAL, re.DOTALL))
SCRIPT = next(code for code in re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL) if "print(" in code)


def write(folder: Path, *args: str) -> str:
    done = CliRunner().invoke(app, ["new-backend", *args, "--output", str(folder)])
    assert done.exit_code in (0, 1), done.output
    return done.stderr or done.stdout


def test_the_tutorial_shows_what_it_writes(tmp_path: Path) -> None:
    write(tmp_path / "made", "acme")
    written = {str(p.relative_to(tmp_path / "made")): p.read_text() for p in (tmp_path / "made").rglob("*.*")}
    assert set(FILES) == set(written) - {"README.md"}
    for name, text in FILES.items():
        assert text == written[name], name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xnnpack", "there is already a backend 'xnnpack': use another name"),
        ("Acme", "'Acme' is not a valid name for a backend: use lowercase letters"),
        ("class", "'class' is not a valid name for a backend"),
        ("../acme", "'../acme' is not a valid name for a backend"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, name: str, words: str) -> None:
    assert words in write(tmp_path / "made", name)
    assert not (tmp_path / "made").exists()


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "already exists: give another folder with --output" in write(tmp_path, "acme")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


class Made:
    """A backend as it is written, installed into a folder of its own."""

    def __init__(self, folder: Path, template: str = "table") -> None:
        self.source = folder / "made"
        write(self.source, "my_npu", "--template", template)
        path = f"{install(folder / 'site', self.source)}{os.pathsep}{ROOT}"
        self._environment = {**os.environ, "PYTHONPATH": path, "DELEGATE_CACHE": str(folder / "kept")}

    def python(self, *args: str, stderr: str = "") -> str:
        command = [sys.executable, *args]
        done = subprocess.run(
            command, cwd=self.source, env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert stderr in done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("backend"))


def require_passing(made: Made, *tests: str) -> None:
    own = made.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", *tests)
    assert re.search(r"\d+ passed(, \d+ deselected)? in", own), "and nothing is skipped"


@pytest.mark.extended
@pytest.mark.parametrize("tests", [["-k", "another_version"], pytest.param([], marks=pytest.mark.slow)])
def test_it_passes_as_it_is(made: Made, tests: list[str]) -> None:
    require_passing(made, *tests)
    assert "my_npu" in made.python("-c", SCRIPT.replace("acme", "my_npu"))


@pytest.mark.slow
@pytest.mark.parametrize("template", ["ask", "compiler"])
def test_the_other_templates_pass_as_they_are(tmp_path: Path, template: str) -> None:
    require_passing(Made(tmp_path, template))


@pytest.mark.slow
def test_it_is_checked_without_a_test(made: Made) -> None:
    checked = json.loads(made.python("-m", "delegate", "check-backend", "my_npu", "--json", stderr="testing my_npu: "))
    assert (checked["state"], checked["parts"]) == ("ok", {"aot": "ok", "runtime": "ok"})
    assert {test["outcome"] for test in checked["tests"]} == {"passed"}, "not even altered blobs are skipped"
    assert checked["operators"]["aten.add.Tensor"] == "yes"
    assert "my_npu has no lowering of aten.tanh.default" in checked["operators"]["aten.tanh.default"]
    assert checked["call"]["seconds"] > 0


@pytest.mark.extended
def test_one_that_cannot_be_checked(site: Site) -> None:
    site.backend("absent", ok=False, reason="no device")
    done = CliRunner().invoke(app, ["check-backend", "absent", "--json"])
    assert done.exit_code == 1
    checked = json.loads(done.stdout)
    assert (checked["state"], checked["tests"]) == ("unavailable", [])
    assert "no device" in checked["detail"]
