"""The exit codes of the README, for every command: 0 done, 1 the request failed, 2 wrong usage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

from delegate.cli.app import app
from tests.cli.programs import save_sum
from tests.support.commands import DONE, FAILED, USAGE, require_exit
from tests.support.plugins import Site, installed

FILES = {
    "good.yaml": "backends: [xnnpack]",
    "wrong.yaml": "backend: [xnnpack]",
    "strict.yaml": "{backends: [xnnpack], policy: {portable: error}}",
    "bound.yaml": "{backends: [xnnpack], verify: {sqnr_db: 400}}",
}
# Code -> command lines.
TABLE: dict[int, list[str]] = {
    DONE: [
        "--help",
        "--version",
        "backends",
        "backends adder",
        "lower net.pt2 -b xnnpack -o new.dlg",
        "run sum.dlg",
        "explain net.pt2 -b xnnpack",
        "explain sum.dlg",
        "inspect sum.dlg",
        "strip sum.dlg -o small.dlg",
        "report sum.dlg -o new.html",
        "report net.pt2 -b xnnpack -o new.html",
        "report sum.dlg net.dlg -o new.html",
        "config check good.yaml",
        "config schema",
        "new-backend acme",
        "cache path",
        "cache info",
        "cache clear",
        "lock diff net.lock net.lock",
        "lock check net.lock net.pt2 -b xnnpack",
    ],
    FAILED: [
        "backends xnnpak",
        "lower absent.pt2 -o new.dlg",
        "lower net.pt2 -b xnnpak -o new.dlg",
        "lower net.pt2 -o absent/new.dlg",
        "lower net.pt2 -c strict.yaml -o new.dlg",
        "lower net.pt2 -c bound.yaml -o new.dlg --verify x.npz",
        "calibrate no-such-backend",
        "run absent.dlg",
        "run sum.dlg --input x.npy",
        "run net.pt2",
        "explain absent.pt2",
        "explain net.pt2 -c strict.yaml",
        "inspect net.pt2",
        "strip net.pt2",
        "strip sum.dlg -o absent/new.dlg",
        "report absent.pt2 -o new.html",
        "report sum.dlg -o absent/new.html",
        "report sum.dlg -o sum.dlg",
        "config check absent.yaml",
        "config check wrong.yaml",
        "new-backend xnnpack",
        "new-backend Acme",
        "check-backend xnnpak",
        "check-backend absent",
        "lock diff net.lock absent.lock",
        "lock check net.lock other.pt2 -b xnnpack",
    ],
    USAGE: [
        "unknown",
        "--unknown",
        "backends --unknown",
        "lower",
        "calibrate --unknown",
        "run",
        "run sum.dlg --repeat 0",
        "run sum.dlg --fallback never",
        "explain sum.dlg -b xnnpack",
        "inspect",
        "strip",
        "report sum.dlg",
        "report -o new.html",
        "report sum.dlg sum.dlg sum.dlg -o new.html",
        "config check",
        "config schema --unknown",
        "config unknown",
        "new-backend",
        "check-backend",
        "cache path --unknown",
        "cache info --unknown",
        "cache clear --unknown",
        "lock diff net.lock",
        "lock check net.lock",
    ],
}
ELSEWHERE = {(DONE, "check-backend"), (DONE, "calibrate")}  # test_new_backend.py, tests/e2e/test_estimated_placement.py


class Sorted(nn.Module):
    """An operator that XNNPACK refuses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sort()[0]


MODELS = {"net.pt2": nn.Sequential(nn.Linear(8, 4), nn.Softmax(-1), Sorted()), "other.pt2": nn.Tanh()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, configurations, inputs, a lockfile, and a site with two backends."""
    folder = tmp_path_factory.mktemp("codes")
    for name, module in MODELS.items():
        torch.export.save(torch.export.export(module.eval(), (torch.ones(2, 8),)), folder / name)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    np.save(folder / "x.npy", np.ones((5, 7), np.float32))
    np.savez(folder / "x.npz", np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32))
    written = ["-o", folder / "net.dlg", "--lock", folder / "net.lock"]
    done = CliRunner().invoke(app, ["lower", str(folder / "net.pt2"), "-b", "xnnpack", *map(str, written)])
    assert done.exit_code == 0, done.output
    (folder / "site").mkdir()
    site = Site(folder / "site")
    site.backend("adder")
    site.backend("absent", ok=False, reason="no device")
    return folder


@pytest.fixture
def folder(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The working directory, with the files of `made` and a program file.

    All command lines share a cache and a site, so that each backend is probed once.
    """
    work = tmp_path / "work"
    work.mkdir()
    for file in made.iterdir():
        if file.is_file():
            (work / file.name).symlink_to(file)
    save_sum(work / "sum.dlg")
    monkeypatch.chdir(work)
    monkeypatch.setenv("DELEGATE_CACHE", str(made / "cache"))
    with installed(made / "site"):
        yield work


@pytest.mark.parametrize(("line", "code"), [(line, code) for code, lines in TABLE.items() for line in lines])
def test_exit_code(folder: Path, line: str, code: int) -> None:
    args = line.split()
    require_exit(args, code, has_message=args[0] != "check-backend")


def test_every_command_is_in_the_table() -> None:
    paths = set(commands(typer.main.get_command(app)))
    tried = {(code, path) for code, lines in TABLE.items() for path in paths for line in lines if starts(line, path)}
    wanted = {(code, path) for code in (DONE, USAGE) for path in paths} - ELSEWHERE
    assert wanted <= tried
    able_to_fail = paths - {"config schema", "cache path", "cache info", "cache clear"}
    assert {(FAILED, path) for path in able_to_fail} <= tried


def starts(line: str, path: str) -> bool:
    return line.split()[: len(path.split())] == path.split()


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The words of each command, e.g. "lock diff"."""
    if inner_commands := getattr(command, "commands", None):  # typer has a click of its own
        for name, inner in inner_commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield " ".join(path)
