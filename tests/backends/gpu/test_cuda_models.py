"""Whole models by TVM: right on the host's CPU, and compiled ahead of time for GPUs that are not here."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.utils._pytree as pytree

import delegate
from delegate.compiled import CompiledProgram
from tests import zoo
from tests.lowering import relative_error

pytest.importorskip("tvm_ffi", reason="TVM is not installed: pip install 'delegate[cuda]'")

QUICK = ("mobilenet_v3_small", "bert_mini")


def slow(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.slow)


def lowered(name: str, arch: str) -> CompiledProgram:
    options = {"arch": arch}
    program = delegate.to_backend(zoo.export(name), config={"backends": [{"name": "cuda", "options": options}]})
    assert len(program.report.partitions) == 1
    assert {n.backend for n in program.report.nodes} == {"cuda"}
    return program


@pytest.mark.parametrize("name", [*QUICK, *map(slow, ["mobilenet_v2", "resnet18", "vit_tiny"])])
def test_model_on_the_host(name, tmp_path):
    module, inputs = zoo.make(name)
    lowered(name, "llvm").save(tmp_path / "model.dlg")
    with delegate.load(tmp_path / "model.dlg", trust_code=True) as loaded, torch.no_grad():
        actual = loaded.method("forward").run([x.numpy() for x in inputs])
        expected = pytree.tree_leaves(module(*inputs))
    assert max(relative_error(a, e) for a, e in zip(actual, expected, strict=True)) <= 1e-4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["mobilenet_v2", "bert_mini"])
def test_model_for_a_gpu(name, arch):
    (partition,) = lowered(name, arch).report.partitions
    assert f"for {arch}, as asked" in partition.notes
