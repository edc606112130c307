"""Models that the AOT part does not write are rejected with the reason, before LiteRT reads them.

LiteRT follows some numbers of a model without checks: it has ended the process for omitted operands, numbers of
outputs, missing scales and amounts of padding that overflow. The changes here are others, in the same tables: LiteRT
rejects them too, or they change nothing for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import flatbuffers
import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from torch import nn

import delegate
from delegate.backends.xnnpack.aot.tflite import _Buffer as AlignedBuffer
from delegate.backends.xnnpack.runtime import delegate as runtime
from delegate.backends.xnnpack.runtime.delegate import XnnpackRuntime
from delegate.backends.xnnpack.runtime.interpreted import open_interpreter
from delegate.backends.xnnpack.runtime.schema import OPERATORS, OPTIONS, Malformed
from delegate.backends.xnnpack.runtime.verifier import FLOAT, VerifiedTensor, pads, verify
from delegate.errors import BackendFailed
from delegate.program.cores import cores
from delegate.runtime.backend import TensorType
from tests.backends.xnnpack.harness import lower
from tests.support.cases.integer_operators import case as integer_case
from tests.support.children import run_cases
from tests.support.functions import Function
from tests.support.qdq import QD

Case = tuple[bytes, list[int], list[int]]  # a model, its inputs, its outputs

MODELS = {
    "convolutions": (nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4)), (1, 3, 9, 9)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, 2), (1, 3, 5, 5)),
    "pools": (nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2)), (1, 3, 9, 9)),
    "linear": (nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5), nn.Softmax(-1)), (3, 6)),
    "shapes": (
        Function(lambda a: torch.cat([a.permute(0, 2, 1), a.transpose(1, 2) * 2], 1)[:, 1:4].reshape(-1)),
        (2, 3, 4),
    ),
    "split": (Function(lambda a: torch.add(*a.chunk(2, 1)).amax(1)), (2, 4, 3)),
    "resize": (Function(lambda a: nn.functional.interpolate(a, scale_factor=2, mode="bilinear")), (1, 2, 4, 4)),
    "product": (Function(lambda a: a @ a.transpose(-1, -2)), (2, 3, 4)),
}


# Operators of test_integers; and layers of int4 in blocks and per channel, quantized at run time.
INTEGERS = ("conv relu6", "depthwise", "transposed", "linear", "cat", "add", "mean", "matmul", "silu", "bilinear")


NAMES = (
    *MODELS,
    *(f"{name}, integers" if name in MODELS else name for name in INTEGERS),
    "blocks of 32",
    "blocks of 64",
)


def integers() -> Iterator[tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    for name in INTEGERS:
        module, values, _ = integer_case(name, 1)
        yield module, tuple(values)
    for size in (32, 64):
        yield Blocks(size), (torch.randn(3, 64),)


class Blocks(nn.Module):
    """A layer of int4 weights in blocks, its activations quantized at run time."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("weight", torch.randint(-8, 8, (5, 64), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(5, 64 // size) + 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero = QD.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
        coded = QD.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        x = QD.dequantize_per_tensor.tensor(coded, scale, zero, -128, 127, torch.int8)
        ends = (-8, 7, torch.int8, self.size, torch.float32)
        return nn.functional.linear(x, QD.dequantize_per_channel_group(self.weight, self.scales, None, *ends))


@pytest.fixture(scope="module")
def seeds() -> list[Case]:
    torch.manual_seed(0)
    cases = []
    for module, shape in MODELS.values():
        result = lower(module.eval(), (torch.randn(shape),)).result
        cases.append((result.blob, result.compile_specs["inputs"], result.compile_specs["outputs"]))
    for module, values in integers():
        program = delegate.to_backend(torch.export.export(module.eval(), values), "xnnpack").program
        (spec,) = program.delegates
        specs = spec.compile_specs
        cases.append((bytes(program.segments[spec.segment]), list(specs["inputs"]), list(specs["outputs"])))
    return cases


def test_the_tables_are_those_of_the_schema():
    assert {name: row.code for name, row in OPERATORS.items()} == {
        name: getattr(schema.BuiltinOperator, name) for name in OPERATORS
    }
    assert {name: code for name, (code, _) in OPTIONS.items() if name} == {
        name: getattr(schema.BuiltinOptions, name) for name in OPTIONS if name
    }
    assert {row.options for row in OPERATORS.values()} == set(OPTIONS)


def test_models_of_the_aot_part_pass(seeds):
    for blob, inputs, outputs in seeds:
        graph = verify(memoryview(blob), inputs, outputs)
        assert (len(graph.inputs), len(graph.outputs)) == (len(inputs), len(outputs))


def operator(model: Any, name: str) -> Any:
    """The first operator of a kind."""
    code = getattr(schema.BuiltinOperator, name)
    return next(o for o in model.subgraphs[0].operators if model.operatorCodes[o.opcodeIndex].builtinCode == code)


def tensor(model: Any, name: str) -> Any:
    """The result of the first operator of a kind."""
    return model.subgraphs[0].tensors[operator(model, name).outputs[0]]


def filter_of(model: Any) -> Any:
    return model.subgraphs[0].tensors[operator(model, "FULLY_CONNECTED").inputs[1]]


def another_graph(model: Any) -> None:
    model.subgraphs.append(model.subgraphs[0])


def another_code(model: Any) -> None:
    """Of an operator that LiteRT has, and the AOT part does not write."""
    code = model.operatorCodes[operator(model, "RELU_N1_TO_1").opcodeIndex]
    code.builtinCode, code.deprecatedBuiltinCode = schema.BuiltinOperator.RELU_0_TO_1, 127


def another_version(model: Any) -> None:
    model.operatorCodes[operator(model, "ADD").opcodeIndex].version = 99


def another_old_code(model: Any) -> None:
    model.operatorCodes[operator(model, "MUL").opcodeIndex].deprecatedBuiltinCode = 1


def fewer_scales(model: Any) -> None:
    scales = filter_of(model).quantization
    scales.scale, scales.zeroPoint = scales.scale[:-1], scales.zeroPoint[:-1]


def scales_of_floats(model: Any) -> None:
    scales = schema.QuantizationParametersT()
    scales.scale, scales.zeroPoint = np.array([0.5], np.float32), np.array([0])
    tensor(model, "ADD").quantization = scales


def integers_beside_floats(model: Any) -> None:
    operator(model, "ADD").inputs = np.array([operator(model, "ADD").inputs[0], model.subgraphs[0].inputs[0]], np.int32)


def put(find: Callable[[Any], Any], name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(find(model), name, value)


def op(name: str) -> Callable[[Any], Any]:
    return lambda model: operator(model, name)


def result(name: str) -> Callable[[Any], Any]:
    return lambda model: tensor(model, name)


def scales_of(name: str) -> Callable[[Any], Any]:
    return lambda model: tensor(model, name).quantization


# What is changed -> the model, the change, what the verifier says.
CHANGES: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "version": ("split", put(lambda m: m, "version", 4), "its version is 4, not 3"),
    "graphs": ("split", another_graph, "it has 2 graphs, not 1"),
    "a field": ("split", put(lambda m: m, "description", "mine"), "has unknown fields"),
    "code": ("split", another_code, "operator 152, version 1, is unknown"),
    "operator version": ("split", another_version, "operator 0, version 99, is unknown"),
    "old code": ("split", another_old_code, "operator MUL has two codes"),
    "no code": ("split", put(op("ADD"), "opcodeIndex", 99), "operator 1 has no code"),
    "size": ("split", put(result("ADD"), "shape", np.array([2, -2, 3], np.int32)), "a tensor has an invalid shape"),
    "buffer": ("split", put(result("ADD"), "buffer", 99), "buffer 99 is missing"),
    "scales of floats": ("split", scales_of_floats, "a tensor of floats has scales"),
    "zero points": ("add", put(scales_of("ADD"), "zeroPoint", np.array([2, 2])), "different numbers of zero points"),
    "a zero point": ("add", put(scales_of("ADD"), "zeroPoint", np.array([300])), "a zero point outside its range"),
    "a scale": ("add", put(scales_of("ADD"), "scale", np.array([np.nan], np.float32)), "a tensor has a scale outside"),
    "axis": ("add", put(scales_of("ADD"), "quantizedDimension", 9), "the scales of a tensor are along axis 9"),
    "scales": ("linear, integers", fewer_scales, "the number of scales of a tensor does not match its axis"),
    "blocks": (
        "blocks of 32", put(lambda m: filter_of(m).quantization.details, "blockSize", 64), "have no matching scales",
    ),
    "more operands": ("split", put(op("ADD"), "inputs", np.array([2, 3, 2], np.int32)), "ADD, has 3 inputs"),
    "fewer operands": ("split", put(op("ADD"), "inputs", np.array([2], np.int32)), "ADD, has 1 inputs"),
    "an operand": ("split", put(op("RELU_N1_TO_1"), "inputs", np.array([99], np.int32)), "reads tensor 99 before it"),
    "kind of operand": ("split", put(op("SUM"), "inputs", np.array([7, 9], np.int32)), "not support a tensor like 9"),
    "results": ("split", put(op("ADD"), "outputs", np.array([4, 7], np.int32)), "ADD, has 2 outputs"),
    "a constant result": ("split", put(op("RELU_N1_TO_1"), "outputs", np.array([9], np.int32)), "not write tensor 9"),
    "options": ("split", put(lambda m: operator(m, "ADD").builtinOptions, "fusedActivationFunction", 4),
                "ADD, has the invalid option activation=4"),
    "an axis": ("shapes", put(lambda m: operator(m, "CONCATENATION").builtinOptions, "axis", 9), "option axis=9"),
    "kinds": ("add", integers_beside_floats, "ADD, mixes floats and integers"),
    "an output": ("split", put(lambda m: m.subgraphs[0], "outputs", np.array([99], np.int32)), "99, an output, is"),
}  # fmt: skip


@pytest.fixture(scope="module")
def changed(seeds) -> list[Case]:
    """The changed models, in the order of the table."""
    cases = []
    for name, change, _ in CHANGES.values():
        blob = dict(zip(NAMES, seeds, strict=True))[name][0]
        model = schema.ModelT.InitFromPackedBuf(blob, 0)
        change(model)
        for buffer in model.buffers:
            buffer.__class__ = AlignedBuffer
        builder = flatbuffers.Builder(len(blob))
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        graph = model.subgraphs[0]
        cases.append((bytes(builder.Output()), [int(i) for i in graph.inputs], [int(i) for i in graph.outputs]))
    return cases


@pytest.mark.parametrize("name", CHANGES)
def test_changed_models_are_rejected(changed, name):
    blob, inputs, outputs = changed[list(CHANGES).index(name)]
    with pytest.raises(Malformed, match=CHANGES[name][2]):
        verify(memoryview(blob), inputs, outputs)


def test_the_changes_are_harmless_to_the_library(changed):
    """LiteRT alone, in a child process, rejects the changed models or runs them."""

    def run(number: int) -> None:
        blob, inputs, outputs = changed[number]
        try:
            wrapper = open_interpreter(blob, 1)._interpreter
            wrapper.AllocateTensors()
            for index in inputs:
                wrapper.tensor(wrapper, index)[...] = 1
            wrapper.Invoke()
            for index in outputs:
                np.array(wrapper.tensor(wrapper, index)).sum()
        except (BackendFailed, ValueError, RuntimeError):
            pass

    assert list(run_cases(run, iter(range(len(changed))), seconds=5)) == []


def test_truncated_models_are_refused(seeds):
    for blob, inputs, outputs in seeds:
        for size in range(0, min(len(blob), 2000), 37):
            with pytest.raises(Malformed):
                verify(memoryview(blob[:size]), inputs, outputs)


def _with_amounts(amounts: list[list[int]]) -> tuple[bytes, dict[str, object]]:
    """Return a model with other padding amounts: originally one element after each dimension of 2, 3 and 4."""
    program = delegate.to_backend(
        torch.export.export(
            Function(lambda a: nn.functional.pad(a, (0, 1, 0, 1, 0, 1)).relu()), (torch.randn(2, 3, 4),)
        ),
        ["xnnpack"],
    ).program
    (spec,) = program.delegates
    whole, old = bytes(program.segments[spec.segment]), np.array([[0, 1]] * 3, np.int32).tobytes()
    assert whole.count(old) == 1
    return whole.replace(old, np.array(amounts, np.int32).tobytes()), dict(spec.compile_specs)


@pytest.mark.parametrize("amounts", [[[0, 1], [0, 1], [-1, 2]], [[0, 1], [0, 1], [0, 2]]])
def test_amounts_of_padding_match_the_sizes(amounts):
    blob, specs = _with_amounts(amounts)
    message = ", ".join(str(amount) for pair in amounts for amount in pair)
    with pytest.raises(BackendFailed, match=rf"PAD, has the invalid padding \[{message}\]"):
        XnnpackRuntime().init(memoryview(blob), specs)
    XnnpackRuntime().init(memoryview(_with_amounts([[0, 1]] * 3)[0]), specs).close()


def test_padding_of_dynamic_sizes_is_limited():
    """LiteRT adds sizes in 32 bits, so the sum is checked before: this is the check alone."""
    dynamic = VerifiedTensor((3,), (-1,), FLOAT, False)
    assert pads(dynamic, [2**28, 2**28], dynamic)
    assert not pads(dynamic, [2**28, 2**28 + 1], dynamic)
    assert not pads(dynamic, [2**31 - 1] * 2, dynamic)


@pytest.mark.skipif(sys.platform != "linux", reason="files in memory exist only on Linux")
def test_weights_are_put_where_nothing_was_checked(seeds, monkeypatch):
    """Check that weights cannot overwrite the tables of a model in a file, which is verified without them."""
    monkeypatch.setattr(runtime, "LARGE", 1)
    blob, inputs, outputs = seeds[3]
    specs = {"threads": 1, "dynamic": False, "inputs": inputs, "outputs": outputs}
    changed = np.array([2**31 - 1], np.int32).tobytes()
    places = []
    for place in range(8, len(blob) - 4, 4):  # zeros that mean something: other numbers there are refused
        if blob[place : place + 4] == bytes(4):
            try:
                verify(memoryview(blob[:place] + changed + blob[place + 4 :]), inputs, outputs)
            except Malformed:
                places.append(place)
    assert len(places) > 5
    for place in places:  # with the numbers that were there, so that the model is the same
        rest, own = memoryview(blob[:place] + blob[place + 4 :]), memoryview(blob[place : place + 4])
        with pytest.raises(BackendFailed, match="overlap the place of a constant"):
            XnnpackRuntime().init_with_data(rest, [own], {**specs, "weights": [[place, ""]]})


def spec(shape: tuple[int, ...], dtype: type = np.float32) -> TensorType:
    return TensorType(shape, np.dtype(dtype))


CALLS = {
    "as it is": ([spec((3, 6))], [spec((3, 5))], ""),
    "too few outputs": ([spec((3, 6))], [], "it has 1 outputs, but the program has 0"),
    "too many inputs": ([spec((3, 6))] * 2, [spec((3, 5))], "it has 1 inputs, but the program has 2"),
    "a larger output": ([spec((3, 6))], [spec((3, 50))], r"outputs are float32\[3, 5\]"),
    "another rank": ([spec((3, 6))], [spec((15,))], r"has float32\[15\]"),
    "another dtype": ([spec((3, 6))], [spec((3, 5), np.float64)], "has float64"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_compared_with_the_model(name):
    inputs, outputs, words = CALLS[name]
    delegate = lower(MODELS["linear"][0].eval(), (torch.randn(3, 6),)).delegate
    if not words:
        delegate.prepare(inputs, outputs)
        return
    with pytest.raises(BackendFailed, match=words):
        delegate.prepare(inputs, outputs)


SPECS = {
    "another output": {"outputs": [1]},
    "an output beyond": {"outputs": [99]},
    "no output": {"outputs": []},
    "another input": {"inputs": [1]},
}


@pytest.mark.parametrize("name", SPECS)
def test_forged_compile_specs(name, seeds):
    blob, inputs, outputs = seeds[3]
    specs = {"threads": 1, "dynamic": False, "inputs": inputs, "outputs": outputs, **SPECS[name]}
    with pytest.raises(BackendFailed, match="inputs or outputs differ from the declared"):
        XnnpackRuntime().init(memoryview(blob), specs)


FLOATS = [["float32"], ["float32"]]


def test_threads_are_bounded_by_the_machine(seeds, monkeypatch):
    opened: list[int] = []
    monkeypatch.setattr(runtime, "open_interpreter", lambda model, n: (opened.append(n), open_interpreter(model, n))[1])
    blob, inputs, outputs = seeds[3]
    for threads in (1, cores() + 1):
        specs = {"threads": threads, "dynamic": False, "inputs": inputs, "outputs": outputs, "types": FLOATS}
        XnnpackRuntime().init(memoryview(blob), specs).close()
    assert opened == [1, cores()]


def test_stderr_has_one_line_of_litert(tmp_path, seeds):
    """Check that a model adds nothing to LiteRT's one line about its delegate."""
    blob, inputs, outputs = seeds[3]
    (tmp_path / "blob").write_bytes(blob)
    code = (
        "import sys, os\nfrom delegate.backends.xnnpack.runtime.delegate import XnnpackRuntime\n"
        f"specs = {{'threads': 1, 'dynamic': False, 'inputs': {inputs}, 'outputs': {outputs}, 'types': {FLOATS}}}\n"
        "XnnpackRuntime().init(memoryview(open(sys.argv[1], 'rb').read()), specs)\nos.write(2, b'mine')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "blob")], capture_output=True, check=True)
    assert done.stderr in (b"mine", b"INFO: Created TensorFlow Lite XNNPACK delegate for CPU.\nmine")
