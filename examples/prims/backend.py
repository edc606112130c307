"""A small compiler backend on Prims: a partition becomes a list of NumPy calls. `import backend` registers it."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from delegate.backends.info import Availability, BackendInfo
from delegate.registry import default_registry
from delegate.runtime.backend import Array, BackendRuntime, Delegate

# What each Prim is: with shapes and dtypes written out, nothing else has to be thought of.
PRIMS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("add", "exp", "expm1", "maximum", "minimum", "sqrt", "tanh", "where")},
    "abs": np.abs, "div": np.divide, "eq": np.equal, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal,
    "log": np.log, "lt": np.less, "mul": np.multiply, "ne": np.not_equal, "neg": np.negative, "pow": np.power,
    "bitwise_or": np.bitwise_or, "sub": np.subtract, "transpose": np.transpose,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sum": lambda x, dims: np.sum(x, axis=tuple(dims)),
    "amax": lambda x, dims: np.max(x, axis=tuple(dims)),
    "var": lambda x, dims, correction: np.var(x, axis=tuple(dims), ddof=int(correction)),
    "broadcast_in_dim": lambda x, shape, dims: np.broadcast_to(
        x[tuple(slice(None) if d in dims else None for d in range(len(shape)))], shape
    ),
    "mm": np.matmul, "bmm": np.matmul, "view": np.reshape,  # torch has no Prims of these
}  # fmt: skip


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


class Calls(Delegate):
    """Runs a list of calls: [name, arguments]; a value is {"value": its number}."""

    def __init__(self, blob: bytes | memoryview, data: Sequence[memoryview]) -> None:
        program = json.loads(bytes(blob))
        kinds = program["constants"]
        self._constants = [np.frombuffer(d, t).reshape(s) for d, (t, s) in zip(data, kinds, strict=True)]
        self._calls, self._results = program["calls"], program["results"]

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        values = [*self._constants, *inputs]
        for name, arguments in self._calls:
            values.append(PRIMS[name](*(values[a["value"]] if isinstance(a, dict) else a for a in arguments)))
        for output, number in zip(outputs, self._results, strict=True):
            np.copyto(output, values[number])


class PrimsRuntime(BackendRuntime):
    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        return Calls(blob, ())

    def init_with_data(
        self, blob: memoryview, data: Sequence[memoryview], compile_specs: Mapping[str, Any]
    ) -> Delegate:
        return Calls(blob, data)


def __getattr__(name: str) -> type:
    """The AOT part needs torch, which machines that only run programs do without."""
    if name != "PrimsExample":
        raise AttributeError(name)
    import torch
    from torch.fx import Node

    from delegate.backends.aot import PreprocessResult, Region
    from delegate.backends.asking import PrimsBackend
    from delegate.edge.node import is_static, op_name, tensor
    from delegate.verdict import YES, Reason, Verdict, no

    def prim(node: Node) -> str:
        return op_name(node).split(".")[1]

    class PrimsExample(PrimsBackend):
        name: ClassVar[str] = "prims-example"
        library: ClassVar[str] = "NumPy"

        def takes(self, node: Node) -> Verdict:
            if prim(node) not in PRIMS or node.kwargs:
                return no(Reason.OPERATOR, f"{op_name(node)} is not supported")
            if tensor(node).dtype not in (torch.float32, torch.bool) or not is_static(node):
                return no(Reason.DTYPE, f"{node.name} is {tensor(node).dtype}, or of dynamic size")
            return YES

        def compile(self, region: Region) -> PreprocessResult:
            values = {node: i for i, node in enumerate((*region.constants, *region.inputs))}

            def argument(value: Any) -> Any:
                return {"value": values[value]} if isinstance(value, Node) else value

            calls = []
            for node in region.calls:
                assert node.target is not operator.getitem
                calls.append([prim(node), [argument(a) for a in node.args]])
                values[node] = len(values)
            held = [c.contiguous().numpy() for c in region.constants.values()]
            program = {
                "constants": [[c.dtype.str, c.shape] for c in held],
                "calls": calls,
                "results": [values[node] for node in region.outputs],
            }
            return PreprocessResult(json.dumps(program).encode(), data=tuple(c.tobytes() for c in held))

    return PrimsExample


if INFO.name not in default_registry().names():
    default_registry().register(INFO)
