"""Large models lie in a file in memory, whose weights go when XNNPACK has packed them: nothing reads them again."""

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.backends.xnnpack import weights
from delegate.backends.xnnpack.model_file import ModelFile
from delegate.quantization import Settings, quantize

PAGE = 4096


class Shared(nn.Module):
    """A matrix that is a layer's weight and is added as well."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self, x):
        return nn.functional.linear(x, self.weight) + self.weight


CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(64, 128, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(128, 128, 5, groups=128, padding=2),
    nn.ConvTranspose2d(128, 64, 4, 2, 1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 1024),
)
LINEARS = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 64))
IMAGES, ROWS = (2, 64, 9, 9), (2, 64)
CASES = {
    "convolutions": (CONVOLUTIONS, IMAGES, "", 4),
    "linears": (LINEARS, ROWS, "", 2),
    "static_int8": (CONVOLUTIONS, IMAGES, "static_int8", 4),
    "dynamic_int8": (LINEARS, ROWS, "dynamic_int8", 2),
    "dynamic_int4": (LINEARS, ROWS, "dynamic_int4", 2),
    "shared": (Shared(), (64, 64), "", 0),
}


@pytest.fixture
def released(monkeypatch):
    """What has been released, of models all of which are large."""
    found = []
    release = ModelFile.release

    def recorded(self, places):
        found.extend(places)
        release(self, places)
        for start, size in places:
            inner = self.view[-(-start // PAGE) * PAGE : (start + size) // PAGE * PAGE]
            assert not any(inner)

    monkeypatch.setattr(weights, "LARGE", 1)
    monkeypatch.setattr(ModelFile, "release", recorded)
    return found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_answers_stay(name, dynamic, tmp_path, released, monkeypatch):
    module, shape, scheme, count = CASES[name]
    if dynamic and name == "shared":
        pytest.skip("its sizes are those of the weight")
    dims = ({0: torch.export.Dim("n", min=2, max=16)},) if dynamic else None
    program = torch.export.export(module.eval(), (torch.randn(shape),), dynamic_shapes=dims)
    if scheme:
        data = [torch.randn(shape) for _ in range(2)] if scheme == "static_int8" else None
        program = quantize(program, Settings("xnnpack", scheme), data)
    delegate.to_backend(program, "xnnpack").save(tmp_path / "model.dlg")
    small = delegate.load(tmp_path / "model.dlg")
    assert len(released) == count
    monkeypatch.setattr(weights, "LARGE", 2**62)
    plain = delegate.load(tmp_path / "model.dlg")
    assert len(released) == count
    for n in (2, 7, 16, 2) if dynamic else shape[:1]:
        x = np.random.default_rng(n).standard_normal((n, *shape[1:])).astype(np.float32)
        np.testing.assert_array_equal(small(x), plain(x))


def test_without_such_files(tmp_path, released, monkeypatch):
    def nowhere(name):
        raise OSError("no memory")

    monkeypatch.setattr("os.memfd_create", nowhere)
    delegate.to_backend(torch.export.export(LINEARS, (torch.randn(ROWS),)), "xnnpack").save(tmp_path / "model.dlg")
    x = torch.randn(ROWS)
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(delegate.load(tmp_path / "model.dlg")(x)), LINEARS(x))
    assert not released


def test_file_gives_its_parts_and_only_whole_pages_back():
    content = bytes(range(1, 256)) * 100
    file = ModelFile([content[:5000], memoryview(content)[5000:]])
    assert file.view == content
    file.release([(10, 3 * PAGE), (4 * PAGE, 20)])
    assert file.view[PAGE : 3 * PAGE] == bytes(2 * PAGE)
    assert file.view[:PAGE] == content[:PAGE]
    assert file.view[3 * PAGE :] == content[3 * PAGE :]
    file.close()
