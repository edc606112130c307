"""The backend webgpu on the real library: dynamic sizes, element types, limits, options, failures, threads."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from delegate_onnxruntime.webgpu import device
from delegate_onnxruntime.webgpu.runtime import WebGpuRuntime
from torch import nn
from torch.export import Dim

import delegate
from delegate.errors import BackendFailed, ConfigError
from tests.support.availability import require
from tests.support.functions import Function
from tests.support.lowering import assert_runs, assert_same, compiled, relative_error
from tests.support.sampling import every, only

BATCH, LENGTH = Dim("batch", min=1, max=16), Dim("length", min=2, max=64)


class Block(nn.Module):
    """A transformer block over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(50, 16), nn.LayerNorm(16)
        self.inner, self.outer = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, tokens, mask=None):
        x = self.embedding(tokens)
        batch, length, _ = x.shape
        parts = self.inner(self.norm(x)).chunk(3, -1)
        q, k, v = (p.view(batch, length, 4, 4).transpose(1, 2) for p in parts)
        seen = None if mask is None else mask[:, None, None, :]
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=mask is None)
        return x + self.outer(made.transpose(1, 2).reshape(batch, length, 16))


class Flat(nn.Module):
    """Products of all tokens at once, as GPT-2 makes them: two sizes are to be told again after each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(16, 24)), nn.Parameter(torch.randn(24))

    def forward(self, x):
        batch, length, _ = x.shape
        made = torch.addmm(self.bias, x.view(-1, 16), self.weight).view(batch, length, 24)
        return made.view(batch, length, 4, 6).transpose(1, 2), made[:, :1].expand(-1, 3, -1)


def _convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


class Pixels(nn.Module):
    """Pads, pools and resizing by constant places and weights."""

    def forward(self, x):
        x = F.pad(x, (1, 2, 0, 1), mode="circular") + F.pad(x, (1, 2, 0, 1), mode="replicate")
        x = F.adaptive_avg_pool2d(F.max_pool2d(x, 3, 2, ceil_mode=True), (4, 3))
        x = F.interpolate(F.avg_pool2d(x, 2, 2, 1, ceil_mode=True), scale_factor=1.5, mode="bicubic")
        values, places = x.flatten(1).topk(3)
        return values.cumsum(1), places, torch.linalg.vector_norm(x, dim=(2, 3))


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length))


DYNAMIC = {
    "batch": (_convnet, lambda b, _: (torch.randn(b, 3, 8, 8),), ({0: BATCH},)),
    "pixels": (Pixels, lambda b, _: (torch.randn(b, 3, 8, 8),), ({0: BATCH},)),
    "masked": (
        Block,
        lambda b, n: (_tokens(b, n), torch.arange(n).expand(b, n) < n - 1),
        ({0: BATCH, 1: LENGTH}, {0: BATCH, 1: LENGTH}),
    ),
    "flat": (Flat, lambda b, n: (torch.randn(b, n, 16),), ({0: BATCH, 1: LENGTH},)),
    "causal": (Block, lambda b, n: (_tokens(b, n),), ({0: BATCH, 1: LENGTH},)),
}


@pytest.mark.parametrize("case", only(["causal"], DYNAMIC))
def test_dynamic_sizes(case):
    require("webgpu")
    torch.manual_seed(0)
    build, inputs, shapes = DYNAMIC[case]
    module = build().eval()
    program = compiled(module, inputs(3, 5), backends="webgpu", dynamic_shapes=shapes)
    assert [p.backend for p in program.report.partitions] == ["webgpu"]
    assert "portable" not in {n.backend for n in program.report.nodes}
    for sizes in ((3, 5), (1, 2), (4, 33), (3, 5)):
        given = inputs(*sizes)
        with torch.no_grad():
            assert_same(program(*given), module(*given))


@pytest.mark.parametrize(
    ("groups", "taken", "made", "runs_on"), [(2, 2, 1, "portable"), (4, 1, 1, "webgpu"), (2, 2, 2, "webgpu")]
)
def test_transposed_convolutions_in_groups(groups, taken, made, runs_on):
    """The library is wrong where a group makes one channel of several."""
    require("webgpu")
    module = nn.ConvTranspose1d(groups * taken, groups * made, 3, groups=groups).eval()
    x = torch.randn(1, groups * taken, 6)
    portable = {"aten.convolution.default": 1} if runs_on == "portable" else None
    program = compiled(module, (x,), backends="webgpu", portable=portable)
    assert {n.backend for n in program.report.nodes} == {runs_on}
    with torch.no_grad():
        assert_same(program(x), module(x))


class _Twice(nn.Module):
    def forward(self, x, y):
        return x != y, torch.logical_not(x == y), (x != y).any()


def test_a_value_that_is_two_results():
    """The exporter finds that both are one, and copies it by Identity, which WebGPU has for no booleans."""
    require("webgpu")
    given = torch.tensor([1.0, 2, 3]), torch.tensor([1.0, 0, 3])
    program = compiled(_Twice(), given, backends="webgpu")
    assert {n.backend for n in program.report.nodes} == {"webgpu"}
    assert [r.tolist() for r in program(*given)] == [[False, True, False]] * 2 + [True]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_element_types_that_the_gpu_lacks_have_a_reason(dtype):
    require("webgpu")
    is_there = dtype is torch.float16 and not device.missing(device.FLOAT16)
    portable = None if is_there else {"aten.linear.default": 1}
    layer, x = nn.Linear(6, 5).to(dtype), torch.ones(2, 6, dtype=dtype)
    program = compiled(layer, (x,), backends="webgpu", portable=portable)
    verdicts = {str(n.verdicts["webgpu"]) for n in program.report.nodes}
    if is_there:
        assert verdicts == {"yes"}
    else:
        assert verdicts
        assert all("unsupported dtype" in v and str(dtype).removeprefix("torch.") in v for v in verdicts)


def test_a_float16_program_on_a_gpu_without_float16(tmp_path, monkeypatch):
    require("webgpu")
    if not (reason := device.missing(device.FLOAT16)):
        pytest.skip("the GPU here has float16")
    monkeypatch.setattr(device, "missing", lambda dtype: "")  # as on the machine that lowered it
    program = compiled(nn.ReLU(), (torch.ones(4, dtype=torch.float16),), backends="webgpu")
    program.save(tmp_path / "half.dlg")
    monkeypatch.setattr(device, "missing", lambda dtype: reason if dtype == device.FLOAT16 else "")
    with pytest.raises(BackendFailed, match=r"does not support float16.*partition webgpu_0 of webgpu.*float32"):
        delegate.load(tmp_path / "half.dlg")


def test_a_tensor_beyond_the_limit_of_a_buffer_has_a_reason():
    require("webgpu")
    found = device.adapter(device.provider())
    if found is None:
        pytest.skip("no Vulkan")
    count = found.largest // 4 + 1
    portable = {"aten.expand.default": 1, "aten.relu.default": 1, "aten.amax.default": 1}
    program = compiled(_Expand(count), (torch.ones(1),), backends="webgpu", portable=portable)
    assert any(f"too large: expand has {count * 4} bytes" in str(n.verdicts["webgpu"]) for n in program.report.nodes)


class _Expand(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x):
        return x.expand(self.count).relu().amax()


class _Tables(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.tables = nn.ParameterList(torch.full((1 << 18, 256), float(i)) for i in range(count))  # of 256 MiB

    def forward(self, x):
        return sum(F.embedding(x, table) for table in self.tables)


@pytest.mark.slow
def test_weights_beyond_what_protobuf_holds():
    require("webgpu")
    module, x = _Tables(9).requires_grad_(False), torch.tensor([0, 5, (1 << 18) - 1])
    program = compiled(module, (x,), backends="webgpu", portable={"aten.add.Tensor": 1})  # sum() begins with 0 + x
    data = [program.program.segments[i] for spec in program.program.delegates for i in (spec.segment, *spec.data)]
    assert sum(map(len, data)) > 2**31
    assert relative_error(program(x), module(x)) == 0


class _Outer(nn.Module):
    def forward(self, x, y):
        return (x[:, None] + y).amax(0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("keep", only([False], [False, True]))
def test_memory_that_the_gpu_does_not_have(keep):
    require("webgpu")
    rows, columns = Dim("rows", min=1, max=10**6), Dim("columns", min=1, max=10**6)
    module, small = _Outer(), (torch.arange(3.0), torch.arange(4.0))
    config = {"backends": ["webgpu"], "fallback": {"keep": keep}}
    program = compiled(module, small, config=config, dynamic_shapes=({0: rows}, {0: columns}))
    assert_runs(program, "webgpu")
    assert relative_error(program(*small), module(*small)) == 0
    large = (torch.ones(300_000), torch.ones(1_000))  # 1.2 GB in between
    if not keep:
        large = (torch.ones(1_000_000), torch.ones(10_000))  # 40 GB: large GPUs have 1.2 GB
        with pytest.raises(BackendFailed, match="partition webgpu_0 of webgpu"):
            program(*large)
    else:
        assert program(*large).tolist() == [2.0] * 1_000
    assert relative_error(program(*small), module(*small)) == 0


def test_several_threads_on_several_partitions():
    """WebGPU's plugin has one device for all sessions, whose lock lets one run at a time."""
    require("webgpu")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.Sigmoid(), nn.Linear(32, 32)).eval()
    config = {"backends": ["webgpu"], "partitioning": {"exclude": ["aten.relu", "aten.sigmoid"]}}
    apart = {"aten.relu.default": 1, "aten.sigmoid.default": 1}
    program = compiled(module, (torch.ones(8, 32),), config=config, portable=apart)
    assert len(program.report.partitions) == 3
    inputs = [torch.randn(8, 32) for _ in range(4)]
    contexts = [program.context() for _ in inputs]
    with torch.no_grad():
        expected = [module(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = list(pool.map(lambda c, x: c(x.numpy()), contexts, inputs))
            assert max(relative_error(r, e) for r, e in zip(results, expected, strict=True)) < 1e-5


def test_options_reach_the_session():
    require("webgpu")
    options = {"threads": 1, "memory_pattern": False, "buffer_cache": "simple", "layout": "NCHW", "power": "low-power"}
    config = {"backends": [{"name": "webgpu", "options": options}]}
    module, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    program = compiled(module, (x,), config=config)
    (spec,) = program.program.delegates
    assert (spec.compile_specs["threads"], spec.compile_specs["preferredLayout"]) == (1, "NCHW")
    settings = WebGpuRuntime.settings(spec.compile_specs)
    assert (settings.intra_op_num_threads, settings.enable_mem_pattern) == (1, False)
    assert relative_error(program(x), module(x)) < 1e-5


@pytest.mark.parametrize(
    ("options", "message"), [({"threads": -1}, "greater than or equal to 0"), ({"layout": "NWHC"}, "NHWC")]
)
def test_wrong_options(options, message):
    config = {"backends": [{"name": "webgpu", "options": options}]}
    with pytest.raises(ConfigError, match=message):
        compiled(nn.ReLU(), (torch.ones(2),), config=config)


_RUN = (
    "import sys, delegate; print(delegate.load(sys.argv[1]).method('forward').run([__import__('numpy').ones(3, 'f4')]))"
)


@pytest.mark.extended
@pytest.mark.parametrize("keep", every(2, [True, False]))
def test_a_vulkan_loader_without_driver(keep, tmp_path):
    require("webgpu")
    program = compiled(nn.ReLU(), (torch.ones(3),), config={"backends": ["webgpu"], "fallback": {"keep": keep}})
    program.save(tmp_path / "relu.dlg")
    without = {**os.environ, "VK_DRIVER_FILES": str(tmp_path / "none.json")}
    command = [sys.executable, "-c", _RUN, str(tmp_path / "relu.dlg")]
    ran = subprocess.run(command, env=without, capture_output=True, text=True, check=False)
    said = ran.stdout + ran.stderr
    assert "there is no GPU that Dawn can use" in said
    if keep:
        assert "[array([1., 1., 1.], dtype=float32)]" in ran.stdout
    else:
        assert "BackendUnavailable" in said
        assert "install the GPU's driver" in said
    listed = subprocess.run(
        [sys.executable, "-m", "delegate", "backends", "webgpu"],
        env=without,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "libvulkan1" in listed.stdout
    assert "install" in listed.stdout


EPSILONS = {
    "group_norm": lambda x, eps: F.group_norm(x, 2, torch.tensor([1.0, 2, 3, 4]), torch.ones(4), eps),
    "instance_norm": lambda x, eps: F.instance_norm(
        x, weight=torch.tensor([1.0, 2, 3, 4]), bias=torch.ones(4), eps=eps
    ),
    "batch_norm": lambda x, eps: F.batch_norm(x, torch.zeros(4), torch.ones(4), eps=eps),
    "layer_norm": lambda x, eps: F.layer_norm(x, (5,), eps=eps),
}


@pytest.mark.parametrize("name", EPSILONS)
def test_norms_of_several_epsilons(name):
    """The provider's InstanceNormalization has the epsilon of the first one that the process runs."""
    require("webgpu")
    module = Function(lambda x: tuple(EPSILONS[name](x, eps) for eps in (1e-5, 3.0, 0.5)))
    x = torch.linspace(-2, 3, 80).reshape(1, 4, 4, 5)
    program = compiled(module, (x,), backends="webgpu")
    assert_runs(program, "webgpu")
    assert_same(program(x), module(x), 3e-4)


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: F.celu(x, -1.0), False),  # in parts
        (lambda x: F.celu(x, 1e10), False),
        (lambda x: F.softplus(x, 1, 1e3), False),
        (lambda x: F.softplus(x, 3e38), False),
        (lambda x: (-0.5) ** x, True),
        (lambda x: x / -0.0, True),
        (lambda x: x.clamp(torch.nan, 2), True),
        (lambda x: F.hardtanh(x, -1, torch.nan), True),
        (lambda x: F.leaky_relu(x, torch.nan), True),
    ],
    ids=[
        "celu -1",
        "celu 1e10",
        "softplus beyond",
        "softplus 3e38",
        "power of",
        "over",
        "clamp",
        "hardtanh",
        "leaky_relu",
    ],
)
def test_numbers_that_rows_leave_out(function, left):
    require("webgpu")
    x = torch.tensor([0.5, -1.0, 3.0, 80.0, 1.5, 0.1])
    program = delegate.to_backend(torch.export.export(Function(function), (x,)), "webgpu")
    assert {node.backend for node in program.report.nodes} == {"portable" if left else "webgpu"}
    assert_same(program(x), function(x), 1e-3)
