"""A small compiler backend on Prims: its runtime part replays calls in NumPy. `import backend` registers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from delegate.backend.info import Availability, BackendInfo
from delegate.registry import default_registry
from delegate.runtime.backend import Array, BlobFormat, Delegate, PerShapeDelegate, Run, TensorType
from delegate.runtime.recording import Recording, RecordingRuntime

# Shapes and dtypes are explicit in Prims, so each of them is one function.
PRIMS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("add", "exp", "expm1", "maximum", "minimum", "sqrt", "tanh", "where")},
    "abs": np.abs, "div": np.divide, "eq": np.equal, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal,
    "log": np.log, "lt": np.less, "mul": np.multiply, "ne": np.not_equal, "neg": np.negative, "pow": np.power,
    "bitwise_or": np.bitwise_or, "sub": np.subtract, "transpose": np.transpose,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sum": lambda x, dims, dtype: np.sum(x, axis=tuple(dims)),
    "amax": lambda x, dims, dtype: np.max(x, axis=tuple(dims)),
    "var": lambda x, dims, correction, dtype: np.var(x, axis=tuple(dims), ddof=int(correction)),
    "broadcast_in_dim": lambda x, shape, dims: np.broadcast_to(
        x[tuple(slice(None) if d in dims else None for d in range(len(shape)))], shape
    ),
}  # fmt: skip
ATEN = {"mm": np.matmul, "bmm": np.matmul, "view": np.reshape}  # torch has no Prims of these
WHOLE = {  # a preserved operator, and a pattern
    "linear": lambda x, weight, bias: x @ weight.T if bias is None else x @ weight.T + bias,
    "linear_relu": lambda x, weight, bias: np.maximum(x @ weight.T + bias, 0),
}
FUNCTIONS = {**PRIMS, **ATEN, **WHOLE, "cast": lambda x, dtype: x.astype(dtype)}
FORMAT = BlobFormat("prims-example", 1)


def probe() -> Availability:
    return Availability(ok=True, versions={"numpy": np.__version__}, devices=("CPU",))


INFO = BackendInfo(
    name="prims-example",
    description="Prims in NumPy, float32",
    aot="backend:PrimsExample",
    runtime="backend:PrimsRuntime",
    probe=probe,
    install="pip install numpy",
)


class Calls(PerShapeDelegate):
    """A delegate that replays a recording. A real compiler compiles it for the shapes."""

    thread_safe = True

    def __init__(self, recording: Recording, constants: Sequence[Array]) -> None:
        super().__init__()
        self._recording, self._constants = recording, constants

    def compile(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> Run:
        self._recording.require_types(inputs, outputs)
        return self._run

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            results = self._recording.replay(FUNCTIONS, inputs, self._constants)
        for output, result in zip(outputs, results, strict=True):
            np.copyto(output, result)


class PrimsRuntime(RecordingRuntime):
    blob_format = FORMAT
    functions = FUNCTIONS

    def create(self, recording: Recording, constants: Sequence[Array], compile_specs: Mapping[str, Any]) -> Delegate:
        return Calls(recording, constants)


def __getattr__(name: str) -> type:
    """The AOT part needs torch, which machines that only run programs do without."""
    if name != "PrimsExample":
        raise AttributeError(name)
    import torch
    from torch.fx import Node

    from delegate.backend.lowering import Lowering, LoweringTable, Pattern, anything
    from delegate.backend.prims import PrimsBackend
    from delegate.edge.node import arguments, op_name

    def linear_before(relu: Node) -> tuple[Node, Node] | None:
        """A linear layer with a bias, which nothing else uses."""
        (linear,) = relu.all_input_nodes
        is_linear = op_name(linear) == "aten.linear.default" and arguments(linear)["bias"] is not None
        return (linear, relu) if is_linear and len(linear.users) == 1 else None

    rows: LoweringTable[str] = LoweringTable(
        [
            *(Lowering(f"prims.{name}.default", anything, name) for name in PRIMS),
            *(Lowering(f"aten.{name}.default", anything, name) for name in ATEN),
            Lowering("aten.linear.default", anything, "linear", keep=True),
        ]
    )
    rows.add_pattern(Pattern("linear, relu", ("aten.relu.default",), linear_before, "linear_relu"))

    class PrimsExample(PrimsBackend):
        name = "prims-example"
        library = "NumPy"
        dtypes = frozenset({torch.float32, torch.bool})
        blob_format = FORMAT
        functions = FUNCTIONS
        table = rows

    return PrimsExample


if INFO.name not in default_registry().names():
    default_registry().register(INFO)
