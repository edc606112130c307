"""GPU and DSP through the whole project, on the real libraries: several backends in one program, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from delegate_onnxruntime.dsp import runtime
from delegate_onnxruntime.dsp.info import versions
from delegate_onnxruntime.dsp.targets import TARGETS, local_target
from delegate_onnxruntime.onnx.runtime import session
from torch import nn

import delegate
from delegate.errors import BackendFailed, ConfigError, LoweringError
from delegate.runtime.loaded import LoadedProgram
from delegate.verdict import Reason
from tests.support.availability import require
from tests.support.device_models import Stages, image
from tests.support.functions import NamedFunction
from tests.support.lowering import answers, assert_runs, assert_same, backend_delegates, compiled, relative_error


def test_three_backends_and_kernels_in_one_program(tmp_path):
    require("webgpu")
    require("dsp")
    torch.manual_seed(0)
    module, x = Stages(), image()
    config = {
        "backends": ["webgpu", "dsp", "xnnpack"],
        "partitioning": {"pins": {"first*": "webgpu", "second*": "dsp", "third*": "xnnpack"}},
    }
    program = compiled(module, (x,), config=config, portable={"aten.logcumsumexp.default": 1})
    assert {p.backend for p in program.report.partitions} == {"webgpu", "dsp", "xnnpack"}
    program.save(tmp_path / "all.dlg")
    with delegate.load(tmp_path / "all.dlg", trust_code=True) as loaded:
        assert relative_error(loaded(x.numpy()), module(x)) < 2e-5


@pytest.mark.parametrize("backend", ["webgpu", "dsp"])
def test_calls_do_not_disturb_each_other(backend):
    require(backend)
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    program = compiled(module, (torch.ones(2, 6),), backends=backend)
    assert_runs(program, backend)
    x = torch.empty(2, 6)
    for scale in (1.0, -2.0, 3.0):
        x.fill_(scale)  # in one place: what lies there must be read anew
        assert relative_error(program(x), module(x)) < 1e-3


@pytest.mark.parametrize("backend", ["webgpu", "dsp"])
def test_a_session_that_has_failed_is_made_anew(backend):
    require(backend)
    module, x = nn.Linear(6, 5), torch.ones(2, 6)
    program = LoadedProgram(compiled(module, (x,), backends=backend).program, trust_code=backend == "dsp")
    (opened,) = backend_delegates(program)
    first, result = opened._session, np.empty((2, 5), np.float32)
    with pytest.raises(BackendFailed, match="failed at a partition"):
        opened.execute([np.ones((3, 7), np.float32)], [result])
    for _ in range(2):
        assert relative_error(program(x.numpy()), module(x)) < 6e-4
    assert opened._session is not first


def test_a_dynamic_batch_stays_off_the_dsp():
    require("dsp")
    sizes, portable = ({0: torch.export.Dim("batch", max=8)},), {"aten.linear.default": 1}
    program = compiled(nn.Linear(6, 5), (torch.ones(2, 6),), backends="dsp", dynamic_shapes=sizes, portable=portable)
    assert {str(n.verdicts["dsp"].reason) for n in program.report.nodes} == {"dynamic shape"}


class _Nothing(nn.Module):
    def forward(self, x):
        return x.relu(), x.sum(0)


LONG = torch.arange(20).reshape(4, 5) + 2**40
AT = torch.tensor([2, 1])
MOVES = {
    "index_select": (lambda x: x.index_select(1, AT), LONG),
    "gather": (lambda x: x.gather(1, AT[None].expand(4, 2)), LONG),
    "index": (lambda x: x[AT], LONG),
    "index_copy": (lambda x: x.index_copy(1, AT, x[:, :2] * 2), LONG),
    "embedding": (lambda x: F.embedding(AT, x), LONG),
    "scatter": (lambda x: x.scatter(1, AT[None].expand(4, 2), x * 2), LONG),
    "max": (lambda x: x.max(1)[0], LONG),
}


@pytest.mark.parametrize("backend", ["dsp", "webgpu"])
@pytest.mark.parametrize("name", MOVES)
def test_long_integers_are_whole(name, backend):
    """Indices are int64 that fit 32 bits; what is moved by them may not: QNN kept the lower halves."""
    require(backend)
    function, x = MOVES[name]
    program = delegate.to_backend(torch.export.export(NamedFunction(function).eval(), (x,)), backend)
    assert answers(program, backend).keys() == {"dtype"}
    assert torch.equal(program(x), function(x))


def test_tensors_that_hold_nothing():
    require("webgpu")
    x = torch.empty(0, 4)
    portable = {"aten.relu.default": 1, "aten.sum.dim_IntList": 1}
    program = compiled(_Nothing(), (x,), backends="webgpu", portable=portable)
    assert answers(program, "webgpu") == {"operator": 2}  # both are left to kernels
    assert_same(program(x), _Nothing()(x))


# QNN's compiler has ended the process for these, so only the verdicts are tested: nothing is compiled.
VERDICTS = {
    "tensors that hold nothing": (_Nothing(), torch.empty(0, 4), [Reason.OPERATOR] * 2),
    "pools": (nn.MaxPool2d((3, 1), 2), torch.ones(1, 2, 8, 8), [Reason.ATTRIBUTE]),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_what_the_compiler_of_the_dsp_never_gets(name):
    module, x, expected = VERDICTS[name]
    report = delegate.explain(torch.export.export(module, (x,)), "dsp")
    assert [n.verdicts["dsp"].reason for n in report.nodes] == expected


class Gates(nn.Module):
    """Where QNN's own operators are inexact or wrong; see delegate_onnxruntime/dsp/aot/rewrite.py."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * nn.functional.hardsigmoid(x), nn.functional.hardsigmoid(x + 1) * (x + 1), nn.functional.hardswish(x)


def test_gates_are_as_exact_on_the_dsp_as_float16_is():
    require("dsp")
    x = torch.randn(1, 8, 16, 16, generator=torch.Generator().manual_seed(0)).half().float()
    program = compiled(Gates(), (x,), backends="dsp")
    assert {n.backend for n in program.report.nodes} == {"dsp"}
    for actual, expected in zip(program(x), Gates()(x), strict=True):
        assert_same(actual, expected, 1e-3)


class Behind(nn.Module):
    """An activation behind products, sums and convolutions, into which QNN would draw it."""

    def __init__(self, activation) -> None:
        super().__init__()
        self.activation, self.linear, self.conv = activation, nn.Linear(16, 16), nn.Conv2d(3, 8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product, image = self.linear(x), self.conv(x)
        return tuple(self.activation(y) for y in (product, product + x, image))


@pytest.mark.parametrize("activation", [torch.tanh, torch.sigmoid, F.gelu, F.silu, lambda x: x * x.sigmoid()])
def test_activations_behind_products_are_as_exact_as_float16(activation):
    require("dsp")
    torch.manual_seed(0)
    module, x = Behind(activation), torch.randn(1, 3, 16, 16)
    program = compiled(module, (x,), backends="dsp")
    assert {n.backend for n in program.report.nodes} == {"dsp"}
    for actual, expected in zip(program(x), module(x), strict=True):
        assert relative_error(actual, expected) < 2e-3
        assert (actual - expected).mean().abs() < 1e-3 * expected.abs().mean()  # neither too high nor too low


class Positions(nn.Module):
    """A layer norm behind a sum with what is the same for the whole batch, as BERT begins."""

    def __init__(self) -> None:
        super().__init__()
        self.positions, self.norm = nn.Parameter(torch.randn(1, 16, 64)), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.norm(x + self.positions), self.norm(row + x), self.norm(x + x.flip(0))


def test_layer_norms_behind_sums_are_right_for_a_whole_batch():
    require("dsp")
    torch.manual_seed(0)
    module, given = Positions(), (torch.randn(3, 16, 64), torch.randn(64))
    program = compiled(module, given, backends="dsp")
    assert {n.backend for n in program.report.nodes} == {"dsp"}
    for actual, expected in zip(program(*given), module(*given), strict=True):
        assert relative_error(actual, expected) < 2e-3  # 5.8e-4 is measured: the HTP computes in float16


class RmsNorm(nn.Module):
    """As T5 and Llama have it."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first, self.weight, self.linear = first, nn.Parameter(torch.rand(64) + 0.5), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.linear(self.weight * normal if self.first else normal * self.weight)


@pytest.mark.parametrize("first", [False, True])
def test_root_mean_square_norms_compile_for_the_dsp(first):
    require("dsp")
    torch.manual_seed(0)
    module, x = RmsNorm(first), torch.randn(1, 16, 64)
    program = compiled(module, (x,), backends="dsp")
    assert {n.backend for n in program.report.nodes} == {"dsp"}
    assert relative_error(program(x), module(x)) < 3e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"soc": "SM8560"}, "did you mean 'SM8"),
        ({"htp_arch": 75}, "must be given together"),
        ({"htp_arch": 999, "soc_model": 43}, "no htp_arch 999: known are 68, 69, 73, 75, 79, 81"),
        ({"htp_arch": 77, "soc_model": 9999}, "no htp_arch 77: known are 68"),
        ({"htp_arch": 68, "soc_model": 43}, "soc_model 43 is SM8550, whose htp_arch is 73, not 68: write soc: SM8550"),
        ({"htp_arch": 73, "soc_model": 57}, "soc_model 57 is SM8650, whose htp_arch is 75"),
        ({"soc": "SM8650", "htp_arch": 73, "soc_model": 43}, "soc names the chip already"),
        ({"performance_mode": "fast"}, "burst"),
        ({"optimization_level": 4}, "less than or equal to 3"),
        ({"priority": "urgent"}, "normal_high"),
        ({"rpc_control_latency": -1}, "rpc_control_latency.*greater than or equal to 0"),
        ({"clamp_overflow": "often"}, "clamp_overflow"),
    ],
)
def test_wrong_options(options, message):
    require("dsp")
    with pytest.raises(ConfigError, match=message):
        compiled(nn.ReLU(), (torch.ones(2),), config={"backends": [{"name": "dsp", "options": options}]})


@pytest.mark.parametrize(
    ("options", "heard"),
    [
        ({"performance_mode": "extreme_power_saver"}, "Updating htp performance mode to: extreme_power_saver"),
        ({"optimization_level": 3}, "HTP graph finalization optimization mode: 3"),
        ({"vtcm_mb": 4}, "vtcm_mb: 4"),
        ({"priority": "high"}, "QNN context priority: high"),
        ({"rpc_control_latency": 100}, "Updating rpc control latency to: 100us"),
        ({"clamp_overflow": True}, "enable_htp_fp16_clamp_overflow: 1"),
        ({"soc": "SM8650"}, "User specified soc_model: 57"),
    ],
)
def test_options_reach_the_library_and_run(options, heard, monkeypatch, capfd):
    """QNN's provider tells what it was given in its log, and some of it to whom it passed that on."""
    require("dsp")
    monkeypatch.setattr(session, "FATAL", 0)  # every line
    x = torch.ones(2, 6)
    choice = {"name": "dsp", "options": options, "isolate": "none"}  # so that its log is of this process
    program = compiled(nn.ReLU(), (x,), config={"backends": [choice]})
    assert_runs(program, "dsp")
    compiling = "".join(capfd.readouterr())
    with LoadedProgram(program.program, trust_code=True) as loaded:
        assert relative_error(loaded(x.numpy()), x) < 5e-7
    assert heard in compiling
    assert heard in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"htp_arch": 73, "soc_model": 9999},
            r"QNN cannot compile for htp_arch 73, soc_model 9999.*name a chip.*soc: SM8550",
        ),
        ({"vtcm_mb": 9999}, r"QNN cannot compile for SM8550 with 9999 MiB of VTCM.*a vtcm_mb that it has"),
    ],
)
def test_a_target_that_qnn_does_not_know(options, message):
    require("dsp")
    with pytest.raises(LoweringError, match=message):
        compiled(nn.ReLU(), (torch.ones(2),), config={"backends": [{"name": "dsp", "options": options}]})


def test_a_blob_for_another_chip(monkeypatch, tmp_path):
    require("dsp")
    program = compiled(nn.Linear(6, 5), (torch.ones(2, 6),), backends="dsp")
    program.save(tmp_path / "dsp.dlg")
    monkeypatch.setattr(runtime, "local_target", lambda: TARGETS["SM8750"])
    with pytest.raises(BackendFailed, match=r"compiled for SM8550, but this machine is a SM8750.*soc: SM8750"):
        delegate.load(tmp_path / "dsp.dlg", trust_code=True)


def test_a_blob_of_another_library_version():
    """Versions are named where a blob does not open; one that opens is taken whoever made it."""
    require("dsp")
    program = compiled(nn.Linear(6, 5), (torch.ones(2, 6),), backends="dsp").program
    (spec,) = program.delegates
    blob, specs = bytes(program.segments[spec.segment]), dict(spec.compile_specs)
    assert specs["versions"] == versions()
    specs["versions"] = {"onnxruntime": "1.0", "onnxruntime-qnn": "0.1"}
    runtime.DspRuntime().init(memoryview(blob), specs).close()
    damaged = blob[: len(blob) // 2] + bytes(len(blob) - len(blob) // 2)
    with pytest.raises(BackendFailed, match=r"compiled by onnxruntime 1\.0 and onnxruntime-qnn 0\.1, but"):
        runtime.DspRuntime().init(memoryview(damaged), specs)


def test_the_chip_of_a_machine(tmp_path):
    machine = tmp_path / "machine"
    machine.write_text("SM8650\n")
    assert local_target(machine) == TARGETS["SM8650"]
    assert local_target(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("backend", "operators"), [("webgpu", {"Gemm", "Relu"}), ("dsp", {"Input", "node_linear", "node_relu", "Output"})]
)
def test_inner_operators(backend, operators):
    require(backend)
    module, x = nn.Sequential(nn.Linear(6, 5), nn.ReLU()), torch.ones(2, 6)
    program = compiled(module, (x,), backends=backend)
    with program.profile(inner=True) as profile:
        for _ in range(2):
            assert relative_error(program(x), module(x)) < 1e-3
    (timing,) = profile.timings
    found = profile.operators_of(timing)
    assert {t.count for t in found} == {2}
    assert {t.what for t in found} == operators
    assert 0 < sum(t.nanoseconds for t in found) < timing.nanoseconds
