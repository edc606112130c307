"""A tracing backend: what its walk does for its rows, on a toy that replays recorded calls in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.export import Dim
from torch.fx import Node

import delegate
from delegate.backend.lowering import Lowering, LoweringTable, anything
from delegate.backend.tracing import Recorded, Recorder, TracingBackend
from delegate.edge.node import op_name
from delegate.runtime.backend import Array, BlobFormat, Delegate, PerShapeDelegate, Run, TensorType
from delegate.runtime.recording import Recording, RecordingRuntime
from delegate.testing import assert_same
from tests.support.functions import Function
from tests.support.plugins import Site

F32, I64 = torch.float32, torch.int64
FORMAT = BlobFormat("traced", 1)
FUNCTIONS = {
    "add": lambda x, y, alpha: np.add(x, np.multiply(y, alpha, dtype=np.asarray(x).dtype)),
    "mul": np.multiply,
    "relu": lambda x: np.maximum(x, 0),
    "gt": np.greater,
    "view": np.reshape,
    "expand": lambda x, shape, implicit: np.broadcast_to(x, shape),
    "max": lambda x, dim, keepdim: (x.max(dim, keepdims=keepdim), x.argmax(dim, keepdims=keepdim)),
    "cast": lambda x, dtype: x.astype(dtype),
    "relu of sum": lambda x, y: np.maximum(x + y, 0),
}
TABLE: LoweringTable[Any] = LoweringTable(
    [
        *(Lowering(f"aten.{op}", anything, op.split(".")[0]) for op in ("mul.Tensor", "relu.default", "add.Tensor")),
        *(Lowering(f"aten.{op}", anything, op.split(".")[0]) for op in ("gt.Tensor", "gt.Scalar", "view.default")),
        *(Lowering(f"aten.{op}", anything, op.split(".")[0]) for op in ("max.dim", "expand.default")),
    ]
)


@TABLE.lowers("aten.tanh.default", check=anything)
def tanh(recorder: Recorder, node: Node, x: Recorded) -> Recorded:
    raise ZeroDivisionError("no tanh today")


def sum_before(relu: Node) -> tuple[Node, ...] | None:
    (total,) = relu.all_input_nodes
    return (total, relu) if op_name(total) == "aten.add.Tensor" and len(total.all_input_nodes) == 2 else None


@TABLE.lowers_pattern("add, relu", "aten.relu.default", match=sum_before)
def add_relu(recorder: Recorder, relu: Node, x: Recorded, y: Recorded) -> Recorded:
    return recorder.call("relu of sum", x, y)


class Traced(TracingBackend):
    name = "traced"
    library = "NumPy"
    table = TABLE
    dtypes = frozenset({F32, I64, torch.bool})
    blob_format = FORMAT
    functions = FUNCTIONS


class Replay(PerShapeDelegate):
    compiled: ClassVar[list[tuple[int, ...]]] = []

    def __init__(self, recording: Recording, constants: Sequence[Array]) -> None:
        super().__init__()
        self._recording, self._constants = recording, constants

    def compile(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Run:
        self._recording.require_types(inputs, outputs)
        self.compiled.append(inputs[0].shape)

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            for output, result in zip(outputs, self._recording.replay(FUNCTIONS, inputs, self._constants), strict=True):
                output[...] = result

        return run


class Runtime(RecordingRuntime):
    blob_format, functions = FORMAT, FUNCTIONS

    def create(self, recording: Recording, constants: Sequence[Array], compile_specs: Mapping[str, Any]) -> Delegate:
        return Replay(recording, constants)


@pytest.fixture(autouse=True)
def traced(site: Site) -> None:
    site.module(
        "traced_plugin",
        """
        from delegate.backend.info import Availability, BackendInfo
        INFO = BackendInfo("traced", "Replays", "tests.backend.test_tracing:Traced",
                           "tests.backend.test_tracing:Runtime", lambda: Availability(True), "pip install traced")
        """,
    )
    site.distribution("traced-dist", "1.0", {"traced": "traced_plugin:INFO"})
    Replay.compiled.clear()


CONFIG = {"backends": [{"name": "traced", "isolate": "none"}]}
X, Y = torch.linspace(-2, 3, 12).reshape(3, 4), torch.linspace(4, -1, 12).reshape(3, 4)
WHOLE = torch.arange(-6, 6).reshape(3, 4)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(lambda x: x * 2 + 1, (X,), id="numbers"),
        pytest.param(lambda x, y: torch.add(x, y, alpha=3), (X, Y), id="an argument by name"),
        pytest.param(lambda x: x.max(1)[0] + x.max(1)[1], (X,), id="several results"),
        pytest.param(lambda x, y: x * y + y, (X, WHOLE), id="promotion to the result"),
        pytest.param(lambda x, y: (x > y, y > 0.5), (X, WHOLE), id="promotion in comparisons"),
        pytest.param(lambda x: (x > 0).float() * x.to(I64), (X,), id="casts"),
        pytest.param(lambda x, y: torch.relu(x + y) * 2, (X, Y), id="a pattern"),
        pytest.param(lambda x, y: (torch.relu(x + y), (x + y) * 2), (X, Y), id="a pattern whose sum is used too"),
        pytest.param(lambda x: x * X + Y[0], (X,), id="constants"),
        pytest.param(lambda x: x * float("inf"), (X.abs() + 1,), id="infinity"),
    ],
)
def test_results_are_those_of_eager(function: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    module = Function(function)
    program = delegate.to_backend(torch.export.export(module, inputs), config=CONFIG)
    assert {node.backend for node in program.report.nodes} == {"traced"}, program.report
    assert_same(program(*inputs), module(*inputs))


def test_sizes_are_computed_from_the_inputs_and_compiled_once_per_shape() -> None:
    module = Function(lambda x: x.reshape(x.shape[0] * 2, 2).expand(3, x.shape[0] * 2, 2) + 1)
    exported = torch.export.export(module, (X,), dynamic_shapes=(({0: Dim("n", max=64)},),))
    program = delegate.to_backend(exported, config=CONFIG)
    assert {node.backend for node in program.report.nodes} == {"traced"}, program.report
    for rows in (3, 7, 3, 1):
        x = torch.randn(rows, 4)
        assert_same(program(x), module(x))
    assert Replay.compiled == [(3, 4), (7, 4), (1, 4)]


def test_an_exception_refuses_its_node_with_file_and_line() -> None:
    module = Function(lambda x: torch.relu(torch.tanh(x * 2)))
    program = delegate.to_backend(torch.export.export(module, (X,)), config=CONFIG)
    backends = {node.op: node.backend for node in program.report.nodes}
    assert backends == {"aten.mul.Tensor": "traced", "aten.tanh.default": "portable", "aten.relu.default": "traced"}
    (refusal,) = (n.verdicts["traced"].message for n in program.report.nodes if n.backend == "portable")
    line = tanh.__code__.co_firstlineno + 2
    assert refusal.startswith("NumPy cannot lower it: ZeroDivisionError: no tanh today (")
    assert refusal.endswith(f"test_tracing.py:{line}, in tanh)")
    assert_same(program(X), module(X))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda x: x[1:], "its result has the shape (2, 4), but torch's has (3, 4)"),
        (lambda x: 1 / 0, f"ZeroDivisionError: division by zero ({__file__}:"),
    ],
)
def test_a_function_of_the_runtime_part_that_fails_refuses_its_node(
    wrong: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FUNCTIONS, "relu", wrong)
    program = delegate.to_backend(torch.export.export(Function(lambda x: torch.relu(x * 2)), (X,)), config=CONFIG)
    assert {node.op: node.backend for node in program.report.nodes}["aten.relu.default"] == "portable"
    assert any(words in str(node.verdicts["traced"]) for node in program.report.nodes), program.report


def test_the_report_names_patterns() -> None:
    module = Function(lambda x, y: torch.relu(x + y) * 2)
    report = delegate.explain(torch.export.export(module, (X, Y)), config=CONFIG)
    (partition,) = report.partitions
    assert [(p.name, p.nodes) for p in partition.patterns] == [("add, relu", ("add", "relu"))]
    assert "1 of the pattern 'add, relu'" in str(report)
    assert type(report).from_json(report.to_json()) == report
