"""Each example runs as its page says."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

import delegate
from delegate.config import load_config
from tests.examples.running import EXAMPLES, run
from tests.support.packages import install
from tests.support.processes import run as run_code
from tests.support.sources import ROOT

FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and any(path.glob("*.*")))
SMALL = 1e-4  # differences from torch of results near 1


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def difference(printed: str) -> float:
    """Return the last number after "largest difference"."""
    return float(re.findall(r"largest difference.*: (\S+)$", printed, re.M)[-1])


def without_torch(script: str, *arguments: str) -> str:
    """Run a script in a process of its own, and assert that it does not import torch.

    torch is not blocked there, because scikit-learn fails beside a module that is None.
    """
    path = EXAMPLES / script
    code = f"import runpy, sys; sys.path.insert(0, {str(path.parent)!r})"
    start = f"runpy.run_path({str(path)!r}, run_name='__main__')"
    done = run_code(f"{code}\n{start}\nassert 'torch' not in sys.modules", *arguments, path=str(ROOT))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", FOLDERS)
def test_each_folder_has_a_page_in_the_list(name):
    page = (EXAMPLES / name / "README.md").read_text()
    assert f"[{name}]({name}/README.md)" in (EXAMPLES / "README.md").read_text()
    for script in re.findall(r"python (examples/\S+\.py)", page):
        assert (ROOT / script).is_file()
    for link in re.findall(r"\]\(([^)#]+)", page):
        assert (EXAMPLES / name / link).exists(), link
    for script in re.findall(r"^\| `(\S+\.py)` \|", page, re.M):
        assert (EXAMPLES / name / script).is_file()


@pytest.mark.slow
def test_image_classification(folder):
    printed = run("image_classification/compile.py", "-o", "photos.dlg", "--backend", "xnnpack")
    assert "forward: 1 partition on xnnpack, 100% of the operations" in printed
    assert int(re.search(r"(\d+)% of 40 other crops", printed)[1]) >= 90
    assert difference(printed) < 1e-3  # of logits near 10
    lines = without_torch("image_classification/run.py", "photos.dlg").splitlines()
    assert sum(re.fullmatch(r"crop of the (\w+): \1 \(\d+%\)", line) is not None for line in lines) >= 5
    (folder / "image.jpg").write_text("no")
    assert "cannot identify image file" in run("image_classification/run.py", "photos.dlg", "image.jpg", code=1)


def test_text_encoder():
    printed = run("text_encoder/encode.py", "--backend", "xnnpack")
    assert difference(printed) < SMALL
    assert "The soup needs more salt.                  More salt is what the soup needs." in printed


def test_speech(folder):
    printed = run("speech/compile.py", "--backend", "xnnpack", "--steps", "2")
    assert "forward: 1 partition on xnnpack, 100% of the operations" in printed
    assert difference(printed) < SMALL
    with wave.open("recording.wav", "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.zeros(4000, np.int16).tobytes())
    without_torch("speech/run.py", "vowels.dlg", "--wave", "recording.wav")
    (folder / "text.wav").write_text("no")
    assert "text.wav is not a WAV file" in run("speech/run.py", "vowels.dlg", "--wave", "text.wav", code=1)
    with wave.open("fast.wav", "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44100)
    assert "convert it to 1, 16 and 8000" in run("speech/run.py", "vowels.dlg", "--wave", "fast.wav", code=1)


@pytest.mark.slow
def test_speech_that_is_trained():
    printed = run("speech/compile.py", "--backend", "xnnpack")
    assert int(re.search(r"(\d+) of 20 new recordings", printed)[1]) >= 18
    assert without_torch("speech/run.py", "vowels.dlg", "--speak", "aiuoe") == "aiuoe\n"


ONE_BOX = """
import sys, torch, types
from torch.library import custom_op, get_ctx

sys.modules |= {name: types.ModuleType(name) for name in ("torchvision", "torchvision.ops")}
same = custom_op("torchvision::nms", lambda dets, scores, iou: scores.long(), mutates_args=(),
                 schema="(Tensor dets, Tensor scores, float iou) -> Tensor")
same.register_fake(lambda dets, scores, iou: scores.new_empty(get_ctx().new_dynamic_size(min=2), dtype=torch.int64))
sys.modules["torchvision.ops"].nms = torch.ops.torchvision.nms
from suppression import nms


class Boxes(torch.nn.Module):
    def forward(self, boxes, scores):
        return nms(boxes, scores, 0.5)


exported = torch.export.export(Boxes(), (torch.rand(3, 4), torch.rand(3)))
print([r.lower for r in exported.range_constraints.values()])
"""


@pytest.mark.extended
def test_detection_has_images_of_one_object():
    """The shape function that torchvision has excludes them."""
    command = [sys.executable, "-W", "ignore", "-c", ONE_BOX]
    done = subprocess.run(command, cwd=EXAMPLES / "detection", capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[0]\n", "")


@pytest.mark.slow
def test_detection():
    """In a process of its own, since it may define an operator of torchvision."""
    command = [sys.executable, EXAMPLES / "detection" / "compile.py", "--backend", "xnnpack"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    correct, total = map(int, re.search(r"(\d+) of (\d+) shapes are in images", done.stdout).groups())
    assert correct >= 0.7 * total
    assert float(re.search(r"difference of a score from torch: (\S+)", done.stdout)[1]) < SMALL
    printed = without_torch("detection/run.py", "shapes.dlg", "--images", "2")
    assert len(re.findall(r"^image \d: drawn (square|disc)", printed, re.M)) == 2


@pytest.mark.extended
def test_several_backends():
    arguments = ("--backend", "xnnpack", "--budget", "2", "-o", "first.dlg")
    assert difference(run("several_backends/place.py", *arguments)) < SMALL
    replayed = run("several_backends/place.py", "--backend", "xnnpack", "--locked", "place.lock", "-o", "second.dlg")
    assert difference(replayed) < SMALL
    first, second = (delegate.load(name).report for name in ("first.dlg", "second.dlg"))
    assert [n.backend for n in first.nodes] == [n.backend for n in second.nodes]


def test_the_configuration_of_several_backends():
    assert [b.name for b in load_config(EXAMPLES / "several_backends" / "place.yaml").backends] == [
        "xnnpack", "openvino", "onnxruntime",
    ]  # fmt: skip


def test_custom_operator():
    printed = run("custom_operator/sharpen.py", "--backend", "xnnpack")
    assert "forward: 2 partitions on xnnpack" in printed
    assert difference(printed) < 1e-6
    without_torch("custom_operator/run.py", "sharpen.dlg", "image.npy", "result.npy")


@pytest.mark.slow
def test_plugin_backend(folder):
    """As a user installs it; then the tests that every backend has to pass."""
    site = install(folder / "site", EXAMPLES / "plugin_backend")
    tests = EXAMPLES / "plugin_backend" / "tests"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tests, tests]
    environment = {"PYTHONPATH": f"{site}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def test_the_report_notebook():
    """Run all cells; the last expression of a cell can be displayed."""
    cells = json.loads((EXAMPLES / "report_notebook" / "report.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    shown = []
    for cell in cells:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            shown.append(_run_cell("".join(cell["source"]), names))
    assert "<iframe" in shown[1]
    assert Path("report.html").stat().st_size > 10_000


def _run_cell(source: str, names: dict[str, object]) -> str:
    """Run a cell, and return the last expression as a notebook displays it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return ""
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


WRONG = [
    ("image_classification/compile.py", ["--model", "resnet10"], 2, "did you mean"),
    ("image_classification/run.py", ["none.dlg"], 1, "cannot read the program file"),
    ("text_encoder/encode.py", ["--folder", "none"], 1, "there is no config.json in none"),
    ("speech/compile.py", ["--steps", "-1"], 2, "it must be 0 or more"),
    ("speech/run.py", ["none.dlg", "--speak", "xyz"], 2, "it may have the letters a, e, i, o and u"),
    ("speech/run.py", ["none.dlg", "--speak", "a"], 1, "cannot read the program file"),
    ("speech/run.py", ["none.dlg", "--wave", "none.wav"], 1, "No such file"),
    ("detection/run.py", ["none.dlg", "--images", "0"], 2, "it must be 1 or more"),
    ("detection/run.py", ["none.dlg"], 1, "cannot read the program file"),
    ("several_backends/place.py", ["--budget", "0"], 2, "it must be more than 0 seconds"),
    ("several_backends/place.py", ["--backend", "xnnpak"], 1, "did you mean 'xnnpack'"),
    ("several_backends/place.py", ["--backend", "xnnpack", "--locked", "none.lock"], 1, "none.lock"),
    ("custom_operator/sharpen.py", ["--folder", "none"], 2, "there is no folder none"),
    ("custom_operator/run.py", [], 1, "3 files are needed, not 0"),
    ("custom_operator/run.py", ["none.dlg", "a", "b"], 1, "cannot read the program file"),
    ("llama/generate.py", ["none.dlg", "5,x"], 2, "'5,x' is not a list of token numbers"),
    ("llama/generate.py", ["none.dlg", "5,17", "--count", "0"], 2, "it must be 1 or more"),
    ("llama/generate.py", ["none.dlg", "5,17"], 1, "cannot read the program file"),
    ("llama/export.py", ["x.dlg", "--backend", "xnnpak"], 1, "did you mean 'xnnpack'"),
]


@pytest.mark.parametrize(("script", "arguments", "code", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_arguments_are_messages(script, arguments, code, message, folder):
    printed = run(script, *arguments, code=code)
    assert message in printed
    assert "Traceback" not in printed
    assert list(folder.iterdir()) == []
