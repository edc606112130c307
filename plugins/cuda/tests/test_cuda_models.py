"""Whole models by TVM: right on the host's CPU, and compiled ahead of time for GPUs that are not here."""

from __future__ import annotations

import shutil

import pytest

import delegate
from tests.support import zoo
from tests.support.whole_models import QUICK, check

pytest.importorskip("tvm_ffi", reason="TVM is not installed: pip install delegate-cuda")


def slow(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [*QUICK, *map(slow, ["mobilenet_v2", "mobilenet_v3_small", "vit_tiny"])])
def test_model_on_the_host(name, tmp_path):
    check(name, "cuda", tmp_path, zoo.tolerance(name), {"arch": "llvm"})


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["mobilenet_v2", "bert_mini"])
def test_model_for_a_gpu(name, arch):
    program = delegate.to_backend(zoo.export(name), config={"backends": [{"name": "cuda", "options": {"arch": arch}}]})
    assert {n.backend for n in program.report.nodes} == {"cuda"}
    (partition,) = program.report.partitions
    assert f"for {arch}, as requested" in partition.notes
