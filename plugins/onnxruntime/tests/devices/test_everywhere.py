"""One program over DSP, GPU, XNNPACK and portable kernels, from a file; the same file where one of them is missing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

import delegate
from delegate.errors import BackendUnavailable
from delegate.registry import default_registry
from tests.support.availability import require
from tests.support.device_models import Stages, image
from tests.support.lowering import relative_error

FILE = Path(__file__).parents[4] / "configs/everywhere.yaml"


def _lower(config: Path):
    torch.manual_seed(0)
    module, x = Stages().eval(), image()
    program = delegate.to_backend(torch.export.export(module, (x,)), config=config)
    return module, x, program


@pytest.fixture
def without_dsp(monkeypatch):
    """Blocks it from the call of what this gives until the end of the test."""
    yield lambda: (monkeypatch.setenv("DELEGATE_BLOCK_PLUGINS", "dsp"), default_registry.cache_clear())
    default_registry.cache_clear()


def _list_used(program) -> set[str]:
    return {n.backend for n in program.report.nodes}


def _file(tmp_path: Path, policy: str) -> Path:
    text = FILE.read_text()
    assert "unavailable: warn" in text
    (tmp_path / "config.yaml").write_text(text.replace("unavailable: warn", f"unavailable: {policy}"))
    return tmp_path / "config.yaml"


def test_all_of_them(tmp_path, without_dsp):
    require("dsp")
    require("webgpu")
    module, x, program = _lower(FILE)
    assert _list_used(program) == {"dsp", "webgpu", "xnnpack", "portable"}
    assert sum(len(p.nodes) for p in program.report.partitions) == sum(
        n.backend != "portable" for n in program.report.nodes
    )
    with torch.no_grad():
        expected = module(x)
    assert relative_error(program(x), expected) < 3e-6
    program.save(tmp_path / "all.dlg")
    without_dsp()
    with pytest.warns(RuntimeWarning, match="dsp"):
        loaded = delegate.load(tmp_path / "all.dlg", trust_code=True)
    with loaded:
        assert {e.backend for e in loaded.fallback_events} == {"dsp"}
        assert relative_error(loaded(x.numpy()), expected) < 1e-5
    with pytest.raises(BackendUnavailable, match="dsp"):
        delegate.load(tmp_path / "all.dlg", fallback="error", trust_code=True)


@pytest.mark.parametrize("policy", ["error", "warn", "skip"])
def test_one_of_them_is_missing(policy, tmp_path, without_dsp):
    require("webgpu")
    file = _file(tmp_path, policy)
    without_dsp()
    if policy == "error":
        with pytest.raises(BackendUnavailable, match="dsp"):
            _lower(file)
        return
    told = pytest.warns(RuntimeWarning, match="not used.*dsp") if policy == "warn" else contextlib.nullcontext()
    with told:
        module, x, program = _lower(file)
    assert _list_used(program) == {"webgpu", "xnnpack", "portable"}
    assert any("dsp" in note for note in program.report.notes)
    with torch.no_grad():
        assert relative_error(program(x), module(x)) < 3e-6
