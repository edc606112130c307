"""Wheels and source distributions of every package are complete, and run programs in an environment without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.support.environments import Environment
from tests.support.lowering import assert_runs
from tests.support.sources import ROOT

pytestmark = pytest.mark.slow

NOT_SOURCES = (".*", "__pycache__", "*.egg-info", "build", "dist")
PACKAGES = {
    "delegate": Path("."),
    "delegate_devtools": Path("plugins/devtools"),
    "delegate_cuda": Path("plugins/cuda"),
    "delegate_demo": Path("plugins/demo"),
    "delegate_kernels_extra": Path("plugins/kernels-extra"),
    "delegate_llm": Path("plugins/llm"),
    "delegate_numba": Path("plugins/numba"),
    "delegate_openvino": Path("plugins/openvino"),
    "delegate_onnxruntime": Path("plugins/onnxruntime"),
    "delegate_ray": Path("plugins/ray"),
    "delegate_remote": Path("plugins/remote"),
    "delegate_serve": Path("plugins/serve"),
    "delegate_testing": Path("plugins/testing"),
    "delegate_torch_compile": Path("plugins/torch-compile"),
    "delegate_vendor_kit": Path("plugins/vendor-kit"),
}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """Build each source distribution, and each wheel from it, without an index."""
    folder = tmp_path_factory.mktemp("dist")
    source = shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*NOT_SOURCES))
    shutil.copytree(ROOT / ".ci", source / ".ci")
    shutil.copytree(ROOT / ".github", source / ".github")
    shutil.copy(ROOT / ".pre-commit-config.yaml", source)
    for path in PACKAGES.values():
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source / path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def wheel(folder: Path, package: str) -> Path:
    return next(folder.glob(f"{package}-*.whl"))


def files_of(folder: Path) -> set[str]:
    """Return the files below a folder of sources, relative to it."""
    ignored = shutil.ignore_patterns(*NOT_SOURCES)
    found = set()
    for place, folders, files in os.walk(folder):
        folders[:] = set(folders) - ignored(place, folders)
        found |= {str(Path(place, name).relative_to(folder)) for name in set(files) - ignored(place, files)}
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_has_every_file_of_its_package_and_no_other(package, distributions):
    expected = {f"{package}/{name}" for name in files_of(ROOT / PACKAGES[package] / package)}
    names = {name for name in zipfile.ZipFile(wheel(distributions, package)).namelist() if ".dist-info/" not in name}
    assert names == expected


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_has_its_licences(package, distributions):
    names = zipfile.ZipFile(wheel(distributions, package)).namelist()
    licences = {name.partition(".dist-info/licenses/")[2] for name in names if ".dist-info/licenses/" in name}
    others = {"THIRD_PARTY.md", "delegate/report/page/vendor/dagre.LICENSE"} if package == "delegate" else set()
    assert licences == {"LICENSE", *others}


def test_a_source_distribution_has_all_that_the_tests_need(distributions):
    with tarfile.open(next(distributions.glob("delegate-*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = files_of(ROOT) | {".ci/newest", ".ci/run", ".pre-commit-config.yaml"}
    assert expected - names == set()


def test_twine_accepts_them(distributions):
    archives = [str(path) for path in distributions.iterdir() if path.is_file()]
    assert len(archives) == 2 * len(PACKAGES)
    command = [sys.executable, "-m", "twine", "check", "--strict", *archives]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


RUN = """
import sys
import numpy as np
import delegate
program = delegate.load("model.dlg")
np.save("result.npy", program(np.load("input.npy")))
assert not {"torch", "typer", "pydantic", "yaml"} & set(sys.modules)
assert {"LICENSE", "THIRD_PARTY.md"} <= {p.name for p in __import__("importlib.metadata").metadata.files("delegate")}
print(delegate.__file__)
"""


def test_an_installed_wheel_runs_a_program_without_torch(distributions, tmp_path):
    """A fresh environment has NumPy, flatbuffers and LiteRT, and no part of the checkout."""
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Softmax(1))
    x = torch.randn(2, 3, 8, 8)
    program = delegate.to_backend(delegate.export(module.eval(), (x,)), "xnnpack")
    assert_runs(program, "xnnpack")
    program.save(tmp_path / "model.dlg")
    np.save(tmp_path / "input.npy", x.numpy())
    environment = Environment.create(
        tmp_path / "venv",
        ["numpy", "flatbuffers", "ai-edge-litert", "backports.strenum", "ml_dtypes", "protobuf", "tqdm",
         "typing-extensions"],
    )  # fmt: skip
    environment.install(wheel(distributions, "delegate"))
    done = subprocess.run(
        [environment.python, "-c", RUN],
        cwd=tmp_path,
        env=environment.variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "venv")
    assert_same(np.load(tmp_path / "result.npy"), module(x).detach().numpy())
    command = [tmp_path / "venv" / "bin" / "delegate", "--version"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment.variables(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "error: the command line needs rich: pip install 'delegate[cli]'\n")
