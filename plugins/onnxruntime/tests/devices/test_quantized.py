"""Programs that PT2E quantized, on the emulated DSP: whole, in integers, and as eager to the step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from delegate_onnxruntime.dsp.aot.backend import DspBackend
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.graph import CodeGen

import delegate
from delegate.compile import explain
from examples.digits.model import digits, trained
from tests.support import zoo
from tests.support.availability import require
from tests.support.lowering import assert_same, compiled, relative_error, steps_of

pytest.importorskip("torchao", reason="torchao quantizes the programs of these tests")
with zoo.libraries():
    from delegate.quantization import quantize
from tests.support.quantized import settings_of
from tests.support.quantizing import last_step, quantized

aten = torch.ops.aten


class Block(nn.Module):
    """A block of a transformer: attention written out, norms, a GELU network, residuals."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norms[0](x)).chunk(3, -1)
        weights = (query @ key.transpose(1, 2) * 0.2).softmax(-1)
        x = x + self.out(weights @ value)
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5))


def samples(*shape: int, count: int = 8) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(shape, generator=generator),) for _ in range(count)]


# Name -> module, batches, largest difference in steps of the result: in 8 bits, in 16 bits.
MODELS = {
    "digits": (trained, [(torch.from_numpy(x[None]),) for x in digits()[1][:32]], (1, 4)),
    "perceptron": (perceptron, samples(2, 16), (1, 4)),
    "block": (Block, samples(1, 8, 32), (2, 40)),
}
TYPES = [(torch.int8, True), (torch.int8, False), (torch.uint8, True), (torch.int16, True), (torch.uint16, False)]
QUICK = {("perceptron", torch.int8, False), ("block", torch.int8, True), ("block", torch.int16, True)}
CASES = [
    pytest.param(name, dtype, per_channel, marks=[] if (name, dtype, per_channel) in QUICK else pytest.mark.slow)
    for name in MODELS
    for dtype, per_channel in TYPES
]


@pytest.mark.parametrize(("name", "dtype", "per_channel"), CASES)
def test_a_quantized_program_is_one_partition_and_as_eager(name, dtype, per_channel, tmp_path):
    require("dsp")
    build, batches, steps = MODELS[name]
    torch.manual_seed(0)
    module, exported = quantized(build(), batches, dtype, per_channel=per_channel)
    program = delegate.to_backend(exported, "dsp")
    assert len(program.report.partitions) == 1
    assert {n.backend for n in program.report.nodes} == {"dsp"}
    program.save(tmp_path / "model.dlg")
    allowed, step = steps[torch.iinfo(dtype).bits // 16], last_step(exported)
    with delegate.load(tmp_path / "model.dlg", trust_code=True) as loaded, torch.no_grad():
        for batch in batches:
            result = torch.from_numpy(loaded(batch[0].numpy()).copy())
            assert_same(steps_of(result, step), steps_of(module(*batch), step), steps=allowed)


class Bottleneck(nn.Module):
    """What mobilenet_v2 is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.project = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 16, 1)
        self.deep = nn.Conv2d(48, 48, 3, padding=1, groups=48)
        self.clamp, self.head = nn.ReLU6(inplace=True), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deep = self.clamp(self.deep(self.clamp(self.expand(x))))
        return self.head((x + self.project(deep)).mean((2, 3)))


class Gated(nn.Module):
    """What mobilenet_v3 is made of: a gate of channels, hard activations."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.project = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 16, 1)
        self.deep = nn.Conv2d(48, 48, 3, padding=1, groups=48)
        self.squeeze, self.excite = nn.Conv2d(48, 16, 1), nn.Conv2d(16, 48, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deep = nn.functional.hardswish(self.deep(nn.functional.hardswish(self.expand(x))))
        gate = self.squeeze(nn.functional.adaptive_avg_pool2d(deep, 1)).relu()
        deep = deep * nn.functional.hardsigmoid(self.excite(gate))
        return self.head((x + self.project(deep)).mean((2, 3)))


class Steps(Interpreter):
    """Runs a quantized program from the integers that are given for its quantized values.

    Args:
        program: its results are all its quantized values.
        given: these values.

    Attributes:
        off: by how many steps each is off what torch makes of those before it.
        rounded: how many steps each lies from the real number that torch rounds there.
    """

    def __init__(self, program: GraphModule, given: Sequence[torch.Tensor]) -> None:
        super().__init__(program)
        self.given = dict(zip(_list_quantized(program), given, strict=True))
        self.off: dict[str, torch.Tensor] = {}
        self.rounded: dict[str, torch.Tensor] = {}

    def run_node(self, n: Node) -> object:
        made = super().run_node(n)
        if n not in self.given:
            return made
        real, scale, zero_point, low, high, _ = self.map_nodes_to_values(n.args, n)
        exact = (real.double() / scale + zero_point).clamp(low, high)
        self.off[n.name] = (self.given[n].int() - made.int()).abs()
        self.rounded[n.name] = (self.given[n].double() - exact).abs()
        return self.given[n]


def _list_quantized(program: GraphModule) -> list[Node]:
    return [n for n in program.graph.nodes if n.target is torch.ops.quantized_decomposed.quantize_per_tensor.default]


def _steps(exported: ExportedProgram, batch: tuple[torch.Tensor, ...]) -> Steps:
    """Every quantized value of a program as the DSP makes it, beside torch's."""
    program = exported.module()
    output = program.graph.output_node()
    output.args = (tuple(_list_quantized(program)),)
    program.graph.set_codegen(CodeGen())
    program.recompile()
    lowered = delegate.to_backend(torch.export.export(program, batch), "dsp")
    assert {n.backend for n in lowered.report.nodes} == {"dsp"}
    steps = Steps(program, lowered(*batch))
    with torch.no_grad():
        steps.run(*batch)
    return steps


def test_every_operator_alone_is_within_a_step():
    """So where a whole network of random weights is many steps off, the network made them of these."""
    require("dsp")
    torch.manual_seed(0)
    batches = samples(1, 16, 28, 28)
    steps = _steps(quantized(Bottleneck(), batches, torch.int8, per_channel=True)[1], batches[0])
    assert len(steps.off) == 7
    assert all(off.max() <= 1 for off in steps.off.values())
    large = [off for off in steps.off.values() if off.numel() > 100]
    assert large
    assert all((off > 0).float().mean() < 0.05 for off in large)


def test_the_dsp_rounds_to_the_next_integer_but_for_what_lies_half_way():
    """Its own scheme: where it differs from torch, the real number is as near to the one integer as to the other."""
    require("dsp")
    torch.manual_seed(0)
    batches = samples(1, 16, 28, 28)
    steps = _steps(quantize(torch.export.export(Gated().eval(), batches[0]), settings_of("dsp"), batches), batches[0])
    assert len(steps.off) == 14
    for name, off in steps.off.items():
        assert off.max() <= 1, name
        assert (off > 0).float().mean() < 0.05 or off.numel() < 100, name
        assert torch.quantile(steps.rounded[name].flatten()[:100_000], 0.999) < 0.6, name


class Partly(nn.Module):
    """Quantized layers, and float operators between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = perceptron(), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.gelu(self.first(x)).tanh())


FLOATS = {aten.gelu.default, aten.tanh.default}


@pytest.mark.parametrize(("precision", "left"), [("float16", set()), ("integer", {"gelu", "tanh"})])
def test_precision_of_what_is_not_quantized(precision, left):
    require("dsp")
    torch.manual_seed(0)
    batches = samples(2, 16)
    module, exported = quantized(Partly(), batches, torch.uint16, per_channel=False, floats=FLOATS)
    config = {"backends": [{"name": "dsp", "options": {"precision": precision}}]}
    program = delegate.to_backend(exported, config=config)
    elsewhere = [n for n in program.report.nodes if n.backend != "dsp"]
    assert {n.name for n in elsewhere} == left
    assert all("which the HTP computes in float16; remedy: quantize it" in str(n.verdicts["dsp"]) for n in elsewhere)
    with torch.no_grad():
        assert relative_error(program(*batches[0]), module(*batches[0])) < 1.2e-3


@pytest.mark.parametrize("build", [perceptron, Block, Bottleneck])
def test_a_quantized_program_is_whole_in_integers(build):
    require("dsp")
    torch.manual_seed(0)
    batches = {perceptron: samples(2, 16), Block: samples(1, 8, 32), Bottleneck: samples(1, 16, 8, 8)}[build]
    exported = quantized(build(), batches, torch.uint8, per_channel=True)[1]
    config = {"backends": [{"name": "dsp", "options": {"precision": "integer"}}]}
    assert {n.backend for n in explain(exported, config=config).nodes} == {"dsp"}


class Residual(nn.Module):
    """What resnet18 is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x + self.second(self.first(x).relu())).relu()
        return self.head(self.pool(x).mean((2, 3)))


# Scheme -> largest difference in steps of the result, least dB to the program in float.
SCHEMES = {"static_int8": (3, 20.0), "static_a16w8": (40, 35.0)}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("build", [Residual, pytest.param(Block, marks=pytest.mark.slow)])
def test_what_the_quantizer_makes_is_one_partition(build, scheme):
    require("dsp")
    quantization = pytest.importorskip("delegate.quantization", reason="quantizers are made of a backend's schemes")
    torch.manual_seed(0)
    module = build().eval()
    batches = {Block: samples(1, 8, 32), Residual: samples(1, 16, 14, 14)}[build]
    floats = torch.export.export(module, batches[0])
    exported = quantization.quantize(floats, settings_of("dsp", scheme), batches)
    program = delegate.to_backend(exported, "dsp", verify=delegate.Verify(batches[:2], reference=floats))
    assert {n.backend for n in program.report.nodes} == {"dsp"}
    assert len(program.report.partitions) == 1
    steps, least = SCHEMES[scheme]
    original, reference = program.report.accuracy  # against the float reference, against the quantized one
    assert reference.figures.max_error <= (steps + 0.01) * last_step(exported)
    assert original.figures.sqnr_db >= least


def test_schemes_of_the_dsp():
    eight, sixteen = DspBackend.quantization()
    assert (eight.activations.dtype, sixteen.activations.dtype) == (torch.uint8, torch.uint16)
    assert len({row.op for row in eight.operators}) == len(eight.operators)
    accepts = {row.op: row.accepts for row in eight.operators}

    def said(module: nn.Module, *shape: int) -> str:
        graph = torch.export.export(module, (torch.ones(shape),)).graph
        node = next(n for n in graph.nodes if n.op == "call_function")
        return accepts["aten.convolution.default" if "conv" in str(node.target) else "aten.relu.default"](node)

    assert said(nn.ConvTranspose2d(4, 4, 2), 1, 4, 5, 5) == ""
    assert "groups" in said(nn.ConvTranspose2d(4, 4, 2, groups=2), 1, 4, 5, 5)
    assert said(nn.ReLU(), 1, 2, 3, 4, 5) == ""
    assert said(nn.ReLU(), 1, 2, 3, 4, 5, 6) == "6 dimensions, but the HTP supports 5"


class Rounded(nn.Module):
    """Nothing but a quantization, which QNN does not take alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.quantized_decomposed.quantize_per_tensor(x, 0.25, 3, -128, 127, torch.int8)


def test_what_the_library_refuses_runs_on_kernels_with_its_word():
    require("dsp")
    (x,) = samples(5, 7)[0]
    portable = {"quantized_decomposed.quantize_per_tensor.default": 1}
    program = compiled(Rounded(), (x,), backends="dsp", portable=portable)
    (node,) = program.report.nodes
    assert node.backend == "portable"
    assert "refused by the library: QNNExecutionProvider does not support this QuantizeLinear" in str(
        node.verdicts["dsp"]
    )
    assert torch.equal(program(x), Rounded()(x))


@pytest.mark.slow
def test_mobilenet_in_16_bits_is_one_partition():
    """In 8 bits a network of random weights is ill-conditioned: a step at its start is many at its end."""
    require("dsp")
    module, inputs = zoo.make("mobilenet_v2")
    eager, exported = quantized(module, [inputs], torch.uint16, per_channel=True)
    program = delegate.to_backend(exported, "dsp")
    assert len(program.report.partitions) == 1
    assert {n.backend for n in program.report.nodes} == {"dsp"}
    with torch.no_grad():
        assert relative_error(program(*inputs), eager(*inputs)) < 1e-2
