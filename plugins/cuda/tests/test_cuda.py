"""The backend cuda through the whole project, on the host's CPU by TVM, and what it says where something is wrong."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from delegate_cuda.runtime import library
from delegate_cuda.runtime.delegate import CudaWeight, Machine, pack, unpack
from delegate_cuda.runtime.library import CudaTarget
from torch import nn

import delegate
from delegate.backend.info import Availability
from delegate.errors import BackendFailed, BackendUnavailable, ConfigError, LoweringError
from delegate.program.dtypes import DType
from tests.support.lowering import assert_runs, assert_same, compiled, relative_error

pytest.importorskip("tvm_ffi", reason="TVM is not installed: pip install delegate-cuda")
from delegate_cuda.aot import compiling, schedules

X = torch.linspace(-2, 2, 12).view(2, 6)
HERE = library.probe()
no_gpu = pytest.mark.skipif(not HERE.stand_in, reason="an NVIDIA GPU is here")
nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc is here")


def lower_model(arch, *, fallback=False, module=None, args=(X,), **rest):
    torch.manual_seed(0)
    options = {"arch": arch}
    config = {"backends": [{"name": "cuda", "isolate": "none", "options": options}], "fallback": {"keep": fallback}}
    return compiled(module or nn.Sequential(nn.Linear(6, 64), nn.ReLU()), args, config=config, **rest)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A program for the host, as a file."""
    path = tmp_path_factory.mktemp("cuda") / "host.dlg"
    program = lower_model("llvm")
    assert_runs(program, "cuda")
    program.save(path)
    return path


def test_the_report_says_who_stands_in():
    (partition,) = lower_model("llvm").report.partitions
    assert "for host CPU by TVM (stand-in), as requested" in partition.notes


def test_calls_do_not_disturb_each_other():
    module = nn.Sequential(nn.Linear(6, 64), nn.ReLU())
    program = lower_model("llvm", module=module)
    assert_runs(program, "cuda")
    for scale in (1.0, -2.0, 3.0):
        assert relative_error(program(X * scale), module(X * scale)) < 1e-6


def test_inputs_may_be_read_only_and_lie_anywhere(saved):
    with delegate.load(saved, trust_code=True) as program:
        expected = program(X.numpy())
        memory = np.frombuffer(b"\0" * 4 + X.numpy().tobytes(), np.float32)[1:].reshape(2, 6)
        assert not memory.flags.writeable
        np.testing.assert_array_equal(program(memory), expected)


def test_a_program_runs_without_torch_and_without_the_compiler(saved):
    code = f"""
import sys, numpy, delegate
delegate.load({str(saved)!r}, trust_code=True)(numpy.ones((2, 6), numpy.float32))
assert not {{"torch", "tvm"}} & set(sys.modules), "loaded"
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_machine_code_is_opened_only_where_it_is_trusted(saved, tmp_path):
    with pytest.raises(BackendFailed, match=r"machine code.*trust_code=True"):
        delegate.load(saved)
    lower_model("llvm", fallback=True).save(tmp_path / "kept.dlg")
    with pytest.warns(RuntimeWarning, match="machine code"), delegate.load(tmp_path / "kept.dlg") as program:
        assert program(X.numpy()).shape == (2, 64)


def test_a_dynamic_batch():
    module = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Flatten(), nn.Linear(36, 5), nn.Softmax(1))
    image = torch.linspace(0, 1, 4 * 3 * 49).view(4, 3, 7, 7)
    program = lower_model(
        "llvm", module=module, args=(image,), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},)
    )
    assert {n.backend for n in program.report.nodes} == {"cuda"}
    for batch in (4, 2, 3):
        assert relative_error(program(image[:batch]), module(image[:batch])) < 1e-6


class Quarters(nn.Module):
    def forward(self, x):
        return F.avg_pool2d(x, 4).relu(), x.exp()


class Last(nn.Module):
    def forward(self, x):
        return x[..., 1:].sin(), x[..., :-1]


OF_QUARTERS = ("aten.avg_pool2d.default", "aten.relu.default", "aten.exp.default")


@pytest.mark.parametrize(
    ("module", "size", "reasons", "portable"),
    [
        (Last(), torch.export.Dim("n", min=3, max=40), set(), ()),
        (Quarters(), 4 * torch.export.Dim("n", max=40), {"TVM does not support inputs of size 4*"}, OF_QUARTERS),
    ],
)
def test_dynamic_sizes_that_tvm_has_trouble_with(module, size, reasons, portable):
    x = torch.linspace(-1, 1, 2 * 4 * 16).view(2, 4, 16)
    portable = dict.fromkeys(portable, 1)
    program = lower_model("llvm", module=module, args=(x,), dynamic_shapes=({2: size},), portable=portable)
    left = {n.verdicts["cuda"].message.rstrip("s0123456789") for n in program.report.nodes if n.backend == "portable"}
    assert left == reasons
    for n in (16, 8, 24):
        assert_same(program(x.repeat(1, 1, 2)[..., :n]), module(x.repeat(1, 1, 2)[..., :n]))


def test_what_tvm_does_not_compile_stays_elsewhere(monkeypatch):
    """It says nothing of nodes when its passes fail: they are found."""
    from delegate_cuda.aot import conversions

    def wrong(importer, node):
        from tvm import relax

        return importer.block_builder.emit(
            relax.op.full_like(importer.env[node.args[0]], relax.const(float("inf"), "float32"))
        )

    monkeypatch.setitem(conversions.CONVERSIONS, "sin.default", wrong)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), _Sine(), nn.Linear(8, 4), nn.Sigmoid())
    program = lower_model("llvm", module=module, portable={"aten.sin.default": 1})
    (left,) = (n for n in program.report.nodes if n.backend == "portable")
    assert left.op == "aten.sin.default"
    assert "TVM does not compile it for llvm: argument of type" in str(left.verdicts["cuda"])
    assert relative_error(program(X), module(X)) < 1e-6


class _Sine(nn.Module):
    def forward(self, x):
        return x.sin()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "sm_99"}, "no architecture 'sm_99': did you mean 'sm_"),
        ({"arhc": "sm_90"}, "did you mean 'arch'"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError, match=message):
        compiled(nn.ReLU(), (X,), config={"backends": [{"name": "cuda", "isolate": "none", "options": options}]})


@nvcc
@no_gpu
def test_a_program_for_a_gpu_where_none_is(tmp_path):
    program = tmp_path / "sm_90.dlg"
    with pytest.raises(BackendUnavailable, match=r"NVIDIA's driver|nvidia-smi"):
        lower_model("sm_90")(X)
    lower_model("sm_90", fallback=True).save(program)
    with pytest.warns(RuntimeWarning, match="portable"), delegate.load(program, trust_code=True) as loaded:
        assert loaded(X.numpy()).shape == (2, 64)


@pytest.mark.parametrize(
    ("made", "gpu", "runs"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_90", "sm_80", False),
        ("sm_80", "sm_90", False),
        ("sm_90a", "sm_90", True),
        ("sm_100a", "sm_103", False),
        ("sm_120", "sm_121", True),
    ],
)
def test_what_runs_where(made, gpu, runs):
    assert CudaTarget(made).runs_on(CudaTarget(gpu)) is runs


@nvcc
def test_a_program_for_another_gpu(monkeypatch):
    monkeypatch.setattr(library, "runtime", lambda device: None)
    monkeypatch.setattr(library, "local_gpu", lambda: (CudaTarget("sm_80"), "A100"))
    with pytest.raises(BackendFailed, match=r"compiled for sm_90, but this machine's A100 is sm_80.*arch: sm_80"):
        lower_model("sm_90")(X)


def test_a_library_of_another_version(monkeypatch, saved):
    monkeypatch.setattr(library, "version", lambda: "0.31.2")
    with pytest.raises(BackendFailed, match=r"TVM 0\.27, but this one is 0\.31.*lower it again"):
        delegate.load(saved, trust_code=True)


def test_tvm_is_absent(monkeypatch, saved):
    monkeypatch.setattr(library, "PACKAGE", "apache-tvm-that-is-not-here")
    assert library.probe() == Availability(ok=False, reason="apache-tvm-that-is-not-here is not installed")
    with pytest.raises(BackendUnavailable, match="pip install delegate-cuda"):
        delegate.load(saved, trust_code=True)


@pytest.mark.parametrize("size", [0, 100, -1])
def test_a_blob_that_is_cut(size):
    blob, specs = pack(b"library", [CudaWeight(DType.float32, np.ones((4, 4), np.float32))])
    assert unpack(memoryview(blob), specs)[1][0].array.shape == (4, 4)
    with pytest.raises(ValueError, match=f"but its compile specs state {len(blob)}"):
        unpack(memoryview(blob)[:size], specs)


def test_a_library_that_is_damaged():
    with pytest.raises(Exception, match=r"library\.so"):
        Machine(library.runtime(library.CPU), memoryview(b"no library"), library.CPU)


def test_no_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, *_: None)
    monkeypatch.setattr(compiling, "_has", lambda module: False)  # NVRTC, which a machine with a GPU may have
    with pytest.raises(
        LoweringError, match=r"compiling for sm_80 needs nvcc or NVRTC, and neither is installed.*install"
    ):
        lower_model("sm_80")


def test_no_linker(monkeypatch):
    from tvm.support import cc

    monkeypatch.setattr(cc, "get_cc", lambda: None)
    with pytest.raises(LoweringError, match=r"C\+\+ compiler.*install g\+\+"):
        lower_model("llvm")


@no_gpu
def test_without_an_arch_it_is_what_is_here():
    (partition,) = lower_model(None).report.partitions
    assert "for host CPU by TVM (stand-in), no GPU was found" in partition.notes


@nvcc
def test_what_no_schedule_fits_is_left_to_others(monkeypatch):
    """Without a schedule TVM would compile it for the host, which cannot reach the GPU's memory."""
    only = schedules.rules(CudaTarget("sm_90"))["gemv"]
    monkeypatch.setattr(schedules, "rules", lambda target: {"gemv": only})
    program = lower_model("sm_90", module=nn.ReLU(), portable={"aten.relu.default": 1})
    (node,) = program.report.nodes
    assert node.backend == "portable"
    assert "no schedule for sm_90 fits" in str(node.verdicts["cuda"])
