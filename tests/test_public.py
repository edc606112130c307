"""The public names: resolved when first used, with a clear word where torch is absent."""

import inspect
import re
import subprocess
import sys
import textwrap
from itertools import takewhile

import numpy as np
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
    assert repr(program.plan) == "<SavedPlan of 1 partition on xnnpack, 2 nodes>"
    assert repr(program.context()) == "<TensorContext of forward>"
    loaded = delegate.load(tmp_path / "model.dlg")
    assert repr(loaded) == "<LoadedProgram of forward: 1 partition on xnnpack>"
    assert repr(loaded.method("forward")) == "<Method forward(input: float32[2, 4])>"
    assert repr(program.method("forward")) == "<TensorMethod forward(input: float32[2, 4])>"
    with loaded.profile() as profile:
        loaded(torch.zeros(2, 4).numpy())
    assert re.fullmatch(r"<Profile of 1 instructions, 1 runs in .* ms>", repr(profile))
    loaded.close()
    assert repr(loaded) == "<LoadedProgram of a closed program>"
    assert repr(delegate.KernelTable("mine")) == "<KernelTable 'mine' of 0 operators>"
    assert (
        repr(CapabilityPartitioner("xnnpack", {"threads": 2}))
        == "CapabilityPartitioner('xnnpack', options={'threads': 2})"
    )


def example(documented: object) -> str:
    """The code of the example before the arguments."""
    lines = inspect.getdoc(documented).split("Args:")[0].partition("Example::\n")[2].splitlines()
    return textwrap.dedent("\n".join(takewhile(lambda line: not line or line.startswith("    "), lines)))


def is_explained_by_an_example(name: str) -> bool:
    value = getattr(delegate, name)
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    # The others are no verbs: a table of kernels has a doctest, and the rest are results.
    return not is_error and name not in {"KernelTable", "SupportTable", "DType"}


DOCUMENTED = [name for name in delegate.__all__ if is_explained_by_an_example(name)]
NEED_MORE = {"Remote", "Measured", "to_backend"}  # other machines, other backends, or more time


@pytest.mark.parametrize("name", DOCUMENTED)
def test_help_begins_with_an_example(name):
    code = compile(example(getattr(delegate, name)), name, "exec")
    assert f"{name}(" in example(getattr(delegate, name)) or inspect.isclass(getattr(delegate, name))
    assert code.co_names


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name not in NEED_MORE])
def test_the_examples_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(8, 4)
    exported = delegate.export(model.eval(), (torch.zeros(1, 8),))
    program = delegate.to_backend(exported, "xnnpack", placement=delegate.ByPreference(lockfile="model.lock"))
    program.save("model.dlg")
    names = {"delegate": delegate, "torch": torch, "np": np, "model": model, "exported": exported, "program": program}
    exec(example(getattr(delegate, name)), names)


def test_help_of_the_package_begins_with_an_example():
    assert "delegate.to_backend" in example(delegate)
    assert "delegate.load" in example(delegate)


def test_names_match_without_case(tmp_path):
    module = torch.nn.Linear(4, 4).eval()
    program = delegate.to_backend(delegate.export(module, (torch.zeros(2, 4),)), ["Portable", "XNNPACK"])
    assert program.plan.backends == ("xnnpack",)
    program.save(tmp_path / "model.dlg")
    loaded = delegate.load(tmp_path / "model.dlg", kernels="ATEN", options={"XNNPACK": {"threads": 1}})
    assert loaded.program.delegates[0].compile_specs["threads"] == 1


def test_without_torch():
    done = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("delegate.to_backend needs torch, which is not installed")
    assert "pip install 'delegate[aot]'" in done.stdout
