"""Large models are files in memory, without the weights that XNNPACK has packed."""

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.backends.xnnpack.runtime import delegate as runtime
from delegate.backends.xnnpack.runtime import interpreted, sharing
from delegate.backends.xnnpack.runtime.litert import CompiledModel, ModelFile
from delegate.quantization import quantize
from tests.support.lowering import assert_runs, assert_same, backend_delegates
from tests.support.quantized import settings_of

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
# Module, input sizes, quantization scheme, number of weights that only layers read.
CASES = {
    "convolutions": (CONVOLUTIONS, IMAGES, "", 4),
    "linears": (LINEARS, ROWS, "", 2),
    "static_int8": (CONVOLUTIONS, IMAGES, "static_int8", 4),
    "dynamic_int8": (LINEARS, ROWS, "dynamic_int8", 2),
    "dynamic_int4": (LINEARS, ROWS, "dynamic_int4", 4),  # and their scales
    "shared": (Shared(), (64, 64), "", 0),
}


@pytest.fixture
def released(monkeypatch):
    """Record released places. All models count as large, and share every weight of two pages or more."""
    places_released = []
    release = ModelFile.release

    def recorded(self, places):
        places = list(places)
        places_released.extend(places)
        release(self, places)
        for start, size in places:
            inner = self.view[-(-start // PAGE) * PAGE : (start + size) // PAGE * PAGE]
            assert not any(inner)

    monkeypatch.setattr(runtime, "LARGE", 1)
    monkeypatch.setattr(sharing, "LEAST_HOLE", 2 * PAGE)
    monkeypatch.setattr(ModelFile, "release", recorded)
    return places_released


def saved(name, dynamic, path):
    module, shape, scheme, _ = CASES[name]
    dims = ({0: torch.export.Dim("n", min=2, max=16)},) if dynamic else None
    program = torch.export.export(module.eval(), (torch.randn(shape),), dynamic_shapes=dims)
    if scheme:
        data = [torch.randn(shape) for _ in range(2)] if scheme == "static_int8" else None
        program = quantize(program, settings_of("xnnpack", scheme), data)
    compiled = delegate.to_backend(program, "xnnpack")
    assert_runs(compiled, "xnnpack")
    compiled.save(path)


def assert_equal(programs, shape, sizes):
    """Assert that all programs give identical results."""
    for n in sizes:
        x = np.random.default_rng(n).standard_normal((n, *shape[1:])).astype(np.float32)
        first, *others = (program(x) for program in programs)
        for other in others:
            np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_answers_stay(name, dynamic, tmp_path, released, monkeypatch):
    """Compare results with weights packed by an interpreter, in a file, and from another delegate's file."""
    _, shape, _, count = CASES[name]
    if dynamic and name == "shared":
        pytest.skip("its sizes are those of the weight")
    saved(name, dynamic, tmp_path / "model.dlg")
    del released[:]
    with monkeypatch.context() as here:
        here.setattr(sharing, "library", lambda: None)
        small = delegate.load(tmp_path / "model.dlg")
    assert not released
    shared = [delegate.load(tmp_path / "model.dlg") for _ in range(2)]
    assert len(released) >= count
    assert all(type(backend_delegates(p)[0]._engine) is CompiledModel for p in shared)
    used = {id(backend_delegates(p)[0]._engine._packed) for p in shared}
    assert len(used) == 1
    monkeypatch.setattr(runtime, "LARGE", 2**62)
    plain = delegate.load(tmp_path / "model.dlg")
    assert_equal([plain, small, *shared], shape, (2, 7, 16, 2) if dynamic else shape[:1])


@pytest.mark.parametrize("many", [True, False])
def test_small_partitions_share_where_a_program_has_many(many, tmp_path, monkeypatch):
    saved("linears", False, tmp_path / "model.dlg")
    stored = delegate.load(tmp_path / "model.dlg")._shared.program
    size = sum(len(stored.segments[i]) for i in stored.delegates[0].data)
    monkeypatch.setattr(runtime, "LAYER", size)
    monkeypatch.setattr(runtime, "MANY", size if many else size + 1)
    engine = backend_delegates(delegate.load(tmp_path / "model.dlg"))[0]._engine
    assert type(engine) is (CompiledModel if many else interpreted.Interpreted)


def test_without_such_files(tmp_path, released, monkeypatch):
    def nowhere(name):
        raise OSError("no memory")

    saved("linears", False, tmp_path / "model.dlg")
    del released[:]
    monkeypatch.setattr("os.memfd_create", nowhere)
    x = torch.randn(ROWS)
    with torch.no_grad():
        assert_same(delegate.load(tmp_path / "model.dlg")(x), LINEARS(x))
    assert not released


def test_packed_weights_of_other_layers_are_not_taken(tmp_path, released, monkeypatch):
    """Check that missing packed weights of a wrong key are detected, and the weights are restored."""
    saved("linears", False, tmp_path / "model.dlg")
    saved("convolutions", False, tmp_path / "other.dlg")
    monkeypatch.setattr(sharing.Graph, "key", lambda *_: "the same")
    other = delegate.load(tmp_path / "other.dlg")
    program = delegate.load(tmp_path / "model.dlg")
    assert type(backend_delegates(other)[0]._engine) is CompiledModel
    assert type(backend_delegates(program)[0]._engine) is not CompiledModel
    assert "the same" not in sharing._OPEN
    monkeypatch.setattr(runtime, "LARGE", 2**62)
    assert_equal([program, delegate.load(tmp_path / "model.dlg")], ROWS, [2])


def test_file_gives_its_parts_and_only_whole_pages_back():
    content = bytes(range(1, 256)) * 100
    file = ModelFile(len(content) + 8 * PAGE)
    file.write(0, content[:5000])
    file.write(5000, memoryview(content)[5000:])
    assert file.view == content + bytes(8 * PAGE)
    file.release([(10, 3 * PAGE), (4 * PAGE, 20)])
    assert file.view[PAGE : 3 * PAGE] == bytes(2 * PAGE)
    assert file.view[:PAGE] == content[:PAGE]
    assert file.view[3 * PAGE : len(content)] == content[3 * PAGE :]
    file.close()
    file.close()
