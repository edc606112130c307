"""A backend for tests that lives in this process: elementwise operators, run by NumPy from a JSON blob.

Its module is its configuration: `REFUSED` are the operators that its compiler turns down though its check took them,
`FAULTS` says which of its parts fail. A blob whose "init" or "execute" is "raise" or "crash" fails there, in any
process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from torch.fx import Node

from delegate.backend import aot
from delegate.backend.aot import PreprocessResult, Region, RegionRefused
from delegate.backend.info import Availability, BackendInfo
from delegate.edge.node import op_name, tensor
from delegate.runtime.backend import Array, BackendRuntime, Delegate
from delegate.verdict import YES, Reason, Verdict, no

REFUSED: set[str] = set()
FAULTS: set[str] = set()
CRASHES = "VECTOR_COMPILER_CRASHES"  # environment variable: the operator at which the compiler ends its process
OPERATORS = {
    "aten.add.Tensor": np.add,
    "aten.mul.Tensor": np.multiply,
    "aten.tanh.default": np.tanh,
    "aten.neg.default": np.negative,
}


class Options(aot.Options):
    level: int = 1


class Vector(aot.Backend):
    name = "vector"
    Options: ClassVar[type[aot.Options]] = Options

    def check(self, node: Node) -> Verdict:
        if op_name(node) not in OPERATORS:
            return no(Reason.OPERATOR, f"vector has no {op_name(node)}")
        if any(str(tensor(n).dtype) != "torch.float32" for n in (node, *node.all_input_nodes)):
            return no(Reason.DTYPE, "vector has float32 alone")
        return YES

    def preprocess(self, region: Region) -> PreprocessResult:
        nodes = [n for n in region.graph.nodes if n.op == "call_function"]
        refused = {n.name: "the compiler says no" for n in nodes if op_name(n) in REFUSED}
        if refused:
            raise RegionRefused(refused)
        if any(op_name(n) == os.environ.get(CRASHES) for n in nodes):
            os.abort()
        if "preprocess" in FAULTS:
            raise ZeroDivisionError("compiler bug")
        program = {
            "inputs": [n.name for n in region.inputs],
            "constants": {n.name: t.tolist() for n, t in region.constants.items()},
            "steps": [
                (n.name, op_name(n), [("value", a.name) if isinstance(a, Node) else ("number", a) for a in n.args])
                for n in nodes
            ],
            "outputs": [n.name for n in region.outputs],
        }
        return PreprocessResult(json.dumps(program).encode(), {"level": self.options.level}, (f"{len(nodes)} steps",))


class VectorDelegate(Delegate):
    def __init__(self, program: Mapping[str, Any]) -> None:
        self._program = program

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if "execute" in FAULTS:
            raise RuntimeError("the device is\ngone")
        program = self._program
        _fail(program.get("execute"))
        values = {name: np.asarray(v, np.float32) for name, v in program["constants"].items()}
        values |= zip(program["inputs"], inputs, strict=True)
        for name, op, args in program["steps"]:
            values[name] = OPERATORS[op](*(values[a] if kind == "value" else np.float32(a) for kind, a in args))
        for name, out in zip(program["outputs"], outputs, strict=True):
            np.copyto(out, values[name])


class VectorRuntime(BackendRuntime):
    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> VectorDelegate:
        if "init" in FAULTS:
            raise ValueError("the driver does not answer")
        assert compile_specs["level"] >= 1
        program = json.loads(bytes(blob))
        _fail(program.get("init"))
        return VectorDelegate(program)


def _fail(how: str | None) -> None:
    if how == "raise":
        raise RuntimeError("the driver is confused")
    if how == "crash":
        os.abort()


INFO = BackendInfo(
    "vector",
    "Elementwise operators by NumPy, for tests",
    f"{__name__}:Vector",
    f"{__name__}:VectorRuntime",
    lambda: Availability(True),
    "pip install nothing",
)
