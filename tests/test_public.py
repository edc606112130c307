"""The public names: resolved when first used, with a clear word where torch is absent."""

import inspect
import subprocess
import sys

import pytest
import torch

import delegate
from delegate.partitioner.partitioner import CapabilityPartitioner

SAYS = """
import sys
import delegate
assert not {"torch", "numpy", "pydantic", "ai_edge_litert"} & set(sys.modules), "importing delegate is cheap"
sys.modules["torch"] = None
try:
    delegate.to_backend
except delegate.errors.DelegateError as error:
    print(error)
delegate.load
"""


def test_names():
    assert set(dir(delegate)) == {*delegate.__all__, "__version__"}
    assert all(getattr(delegate, name) for name in delegate.__all__)
    with pytest.raises(AttributeError, match="no attribute 'to_backnd'"):
        delegate.to_backnd  # noqa: B018


def test_objects_describe_themselves(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    program = delegate.to_backend(delegate.export(module, (torch.zeros(2, 4),)), "xnnpack")
    program.save(tmp_path / "model.dlg")
    summary = "forward: 1 partition on xnnpack, 100% of the operations; 0 nodes portable"
    assert repr(program) == f"<CompiledProgram of {summary}>"
    assert repr(program.report) == f"<Report of {summary}>"
    assert repr(program.plan) == "<SavedPlan of 1 partition on xnnpack>"
    assert repr(program.context()) == "<LoadedContext of forward>"
    assert repr(delegate.load(tmp_path / "model.dlg")) == "<LoadedProgram of forward>"
    assert repr(delegate.KernelTable("mine")) == "<KernelTable 'mine' of 0 operators>"
    assert (
        repr(CapabilityPartitioner("xnnpack", {"threads": 2}))
        == "CapabilityPartitioner('xnnpack', options={'threads': 2})"
    )


def test_help_begins_with_an_example():
    assert "Example::" in inspect.getdoc(delegate.to_backend).split("Args:")[0]


def test_without_torch():
    done = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("delegate.to_backend needs torch, which is not installed")
    assert "pip install 'delegate[aot]'" in done.stdout
