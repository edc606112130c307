"""MODEL: files and functions, and a clear sentence for whatever is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import ExportedProgram

from delegate.cli.models import load_model
from delegate.errors import ExportError, InputError

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return x + 1

class Bad(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return x.numpy()

def good(): return Net().train(), (torch.ones(2),)
def exported(): return torch.export.export(Net(), (torch.ones(2),))
def bad(): return Bad(), (torch.ones(2),)
def raising(): raise RuntimeError("no\\n weights")
def leaving(): raise SystemExit(7)
def nothing(): return None
def three(): return 1, 2, 3
def tensor(): return Net(), torch.ones(2)
def swapped(): return (torch.ones(2),), Net()
def traced(): return torch.jit.trace(Net(), torch.ones(2)), (torch.ones(2),)
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a module of models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "my_models", raising=False)
    (tmp_path / "my_models.py").write_text(MODELS)
    return tmp_path


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["good", "exported", "traced"])
def test_functions(name: str) -> None:
    program = load_model(f"my_models:{name}")
    assert isinstance(program, ExportedProgram)
    assert torch.equal(program.module()(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("goood", "module my_models has no function 'goood' ("),
        ("number", "my_models:number is a int, not a function"),
        ("raising", "my_models:raising failed: RuntimeError: no weights"),
        ("leaving", "my_models:leaving failed: SystemExit: 7"),
        ("nothing", "my_models:nothing returned a NoneType: return (module, example_inputs)"),
        ("three", "my_models:three returned a tuple of 3"),
        ("tensor", "my_models:tensor returned inputs that are a Tensor, not a tuple"),
        ("swapped", "my_models:swapped returned a tuple instead of a module"),
        ("bad", "torch.export failed on the module of my_models:bad"),
        ("a.b", "'my_models:a.b' is not a model"),
    ],
)
def test_functions_that_give_no_model(folder: Path, name: str, message: str) -> None:
    with pytest.raises(ExportError) as caught:
        load_model(f"my_models:{name}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# The first bytes of files in the formats of others.
FOREIGN = {
    "model.gguf": b"GGUF\x03\0\0\0", "renamed.pt2": b"GGUF\x03\0\0\0", "model.safetensors": b"\x40\0\0\0\0\0\0\0{\"",
    "model.h5": b"\x89HDF\r\n\x1a\n", "model.tflite": b"\x20\0\0\0TFL3", "model.pte": b"\x20\0\0\0ET12",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module:f", "there is no module 'no_such_module' for model no_such_module:f"),
        ("torch.no_such_part:f", "there is no module 'torch.no_such_part'"),
        ("importing:f", "importing importing failed: ModuleNotFoundError: No module named 'no_such_library'"),
        ("dividing:f", "importing dividing failed: ZeroDivisionError"),
        ("absent.pt2", "'absent.pt2' does not exist"),
        ("folder", "'folder' is a directory"),
        ("text.pt2", "'text.pt2' is not a .pt2 file: export it"),
        ("weights.pt", "'weights.pt' was written by torch.save"),
        ("model.gguf", "'model.gguf' is in the format GGUF, not an exported program: export the model in PyTorch"),
        ("model.safetensors", "'model.safetensors' is in the format safetensors, not an exported program"),
        ("model.h5", "'model.h5' is in the format HDF5"),
        ("model.tflite", "'model.tflite' is in the format LiteRT"),
        ("model.pte", "'model.pte' is in the format ExecuTorch"),
        ("renamed.pt2", "'renamed.pt2' is in the format GGUF"),
    ],
)
def test_what_is_no_model(folder: Path, text: str, message: str) -> None:
    (folder / "importing.py").write_text("import no_such_library")
    (folder / "dividing.py").write_text("1 / 0")
    (folder / "folder").mkdir()
    (folder / "text.pt2").write_text("a program")
    for name, start in FOREIGN.items():
        (folder / name).write_bytes(start + b"\xff" * 40)
    torch.save(nn.Linear(2, 2).state_dict(), folder / "weights.pt")
    with pytest.raises(ExportError) as caught:
        load_model(text)
    assert message in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_file(folder: Path) -> None:
    torch.jit.trace(nn.ReLU(), torch.ones(2)).save(str(folder / "script.pt"))
    np.save(folder / "given.npy", np.array([-1, 2], np.float32))
    program = load_model("script.pt", ["given.npy"])
    assert isinstance(program, ExportedProgram)
    assert torch.equal(program.module()(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    with pytest.raises(
        ExportError, match=r"'script\.pt' is a TorchScript file and needs example inputs: give them with"
    ):
        load_model("script.pt")
    with pytest.raises(InputError, match=r"there is no file 'absent\.npy' for input 'number 1'"):
        load_model("script.pt", ["absent.npy"])
    with pytest.raises(ExportError, match="--input is for TorchScript files"):
        load_model("my_models:good", ["given.npy"])


def test_exported_file(folder: Path) -> None:
    torch.export.save(torch.export.export(nn.ReLU(), (torch.ones(2),)), folder / "relu.pt2")
    assert load_model("relu.pt2") == Path("relu.pt2")
