"""Forged models: accepted ones end no process; rejected ones raise an error with the reason."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from torch import nn

import delegate
from delegate.backends.xnnpack.runtime import delegate as runtime
from delegate.backends.xnnpack.runtime.delegate import XnnpackRuntime
from delegate.backends.xnnpack.runtime.interpreted import ModelFile, open_interpreter
from delegate.backends.xnnpack.runtime.schema import OPERATORS, OPTIONS, Malformed
from delegate.backends.xnnpack.runtime.sharing import share
from delegate.backends.xnnpack.runtime.verifier import verify
from delegate.errors import BackendFailed
from delegate.runtime.backend import TensorType
from tests.backends.xnnpack.forge import Case, crashes, forge
from tests.backends.xnnpack.harness import lower
from tests.support.cases.integer_operators import case as integer_case
from tests.support.functions import Function
from tests.support.qdq import QD

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


def run(case: Case) -> None:
    """Load a model and call it twice."""
    blob, inputs, outputs = case
    try:
        wrapper = open_interpreter(blob, 1)._interpreter
        wrapper.AllocateTensors()
        for index in inputs:
            array = wrapper.tensor(wrapper, index)
            if isinstance(array, np.ndarray):
                array[...] = 1
        for _ in range(2):
            wrapper.Invoke()
        for index in outputs:
            np.array(wrapper.tensor(wrapper, index)).sum()
    except (BackendFailed, ValueError, RuntimeError, MemoryError):
        pass


def run_shared(case: Case) -> None:
    """Load a model that shares packed weights, and call it twice."""
    blob, inputs, outputs = case
    model = ModelFile(len(blob))
    model.write(0, blob)
    try:
        engine = share(model, verify(memoryview(blob), inputs, outputs), [], 1, dynamic=False, on_disk=False)
        if engine is None:
            return
        for _ in range(2):
            for array in engine.sources:
                array[...] = 1
            engine.run()
        for array in engine.results:
            array.sum()
        engine.close()
    except (BackendFailed, ValueError, RuntimeError, MemoryError):
        pass
    finally:
        model.close()


@pytest.mark.parametrize("run", [run, run_shared])
def test_forged_models_end_no_process(seeds, run):
    """Run accepted models in a child process. Timeouts are ignored, because they are not memory errors."""
    rng = random.Random(0)
    cases = [forge(rng.choice(seeds), rng) for _ in range(600)]
    passed = []
    for case in cases:
        try:
            verify(memoryview(case[0]), case[1], case[2])
        except Malformed:
            continue
        passed.append(case)
    assert len(passed) > 50
    assert len(cases) - len(passed) > 100
    assert [(n, code) for n, code in crashes(passed, run, seconds=2) if code != -14] == []


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


@pytest.mark.parametrize("amounts", [[[2**31 - 1] * 2] * 3, [[0, 1], [0, 1], [-1, 2]], [[0, 1], [0, 1], [0, 2]]])
def test_amounts_of_padding_match_the_sizes(amounts):
    """Check that padding which overflows LiteRT's 32-bit sizes is rejected."""
    blob, specs = _with_amounts(amounts)
    message = ", ".join(str(amount) for pair in amounts for amount in pair)
    with pytest.raises(BackendFailed, match=rf"PAD, has the invalid padding \[{message}\]"):
        XnnpackRuntime().init(memoryview(blob), specs)
    XnnpackRuntime().init(memoryview(_with_amounts([[0, 1]] * 3)[0]), specs).close()


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
    for place in places:
        rest = memoryview(blob[:place] + blob[place + 4 :])
        with pytest.raises(BackendFailed, match="overlap the place of a constant"):
            XnnpackRuntime().init_with_data(rest, [memoryview(changed)], {**specs, "weights": [[place, ""]]})


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


def test_threads_are_bounded_by_the_machine(seeds):
    blob, inputs, outputs = seeds[3]
    specs = {"threads": 10**6, "dynamic": False, "inputs": inputs, "outputs": outputs}
    XnnpackRuntime().init(memoryview(blob), specs).close()


def test_stderr_stays_empty(tmp_path, seeds):
    """Check that only LiteRT's line about its delegate is suppressed."""
    blob, inputs, outputs = seeds[3]
    (tmp_path / "blob").write_bytes(blob)
    code = (
        "import sys, os\nfrom delegate.backends.xnnpack.runtime.delegate import XnnpackRuntime\n"
        f"specs = {{'threads': 1, 'dynamic': False, 'inputs': {inputs}, 'outputs': {outputs}}}\n"
        "XnnpackRuntime().init(memoryview(open(sys.argv[1], 'rb').read()), specs)\nos.write(2, b'mine')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "blob")], capture_output=True, check=True)
    assert done.stderr == b"mine"
