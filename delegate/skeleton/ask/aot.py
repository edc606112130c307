"""The AOT part: the library's importer is queried about each node, and converts the regions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.backend.aot import Options, PreprocessResult, Region, RegionFailed
from delegate.backend.asking import AskingBackend
from delegate.backend.exported import exported_program
from delegate.edge.node import arguments, op_name, tensor
from delegate.skeleton.delegate_acme.runtime import FORMAT
from delegate.verdict import YES, Reason, Verdict, no


class AcmeOptions(Options):
    """Options of the backend; none yet."""


class AcmeBackend(AskingBackend):
    """The AOT part, without a table: the importer decides."""

    name = "acme"
    library = "Acme"
    Options: ClassVar[type[Options]] = AcmeOptions

    def ask(self, region: Region) -> Verdict:
        """Return the importer's answer on a region of one operator."""
        if any(tensor(n).dtype is not torch.float32 for n in (*region.inputs, *region.constants, *region.outputs)):
            return no(Reason.DTYPE, "Acme computes in float32 only")
        try:
            import_program(exported_program(region))
        except NotImplementedError as error:
            return no(Reason.OPERATOR, f"Acme does not import it: {error}")
        return YES

    def preprocess(self, region: Region) -> PreprocessResult:
        """Convert a region. A fault that names no node is RegionFailed: the framework finds the node."""
        try:
            content = import_program(exported_program(region))
        except NotImplementedError as error:
            raise RegionFailed(str(error)) from error
        data = tuple(value.contiguous().numpy().tobytes() for value in region.constants.values())
        return PreprocessResult(FORMAT.pack(content), data=data)


# The rest stands for the library's importer of torch programs. Replace it.
_FUNCTIONS = {"add": "add", "sub": "subtract", "mul": "multiply", "neg": "negative", "relu": "relu"}


def import_program(program: ExportedProgram) -> bytes:
    """Return the calls of a program, in the form that the run-time part replays; raise NotImplementedError."""
    from delegate.runtime.recording import Recording

    numbers: dict[Node, int] = {}
    placeholders = program.graph.find_nodes(op="placeholder")
    constants = [n for n in placeholders if n.name in program.graph_signature.inputs_to_buffers]
    inputs = [n for n in placeholders if n not in constants]
    for node in (*inputs, *constants):
        numbers[node] = len(numbers)
    calls = []
    for node in (n for n in program.graph.nodes if n.op == "call_function"):
        calls.append((_function(node), tuple(_argument(a, numbers) for a in arguments(node).values())[:2]))
        numbers[node] = len(numbers)
    results: Any = program.graph.output_node().args[0]
    return Recording(
        inputs=tuple(("float32", tensor(n).dim()) for n in inputs),
        constants=tuple(("float32", tuple(tensor(n).shape)) for n in constants),
        calls=tuple(calls),
        outputs=tuple({"value": numbers[n]} for n in results),
        result_types=tuple(("float32", tensor(n).dim()) for n in results),
    ).to_bytes()


def _function(node: Node) -> str:
    name = op_name(node).split(".")[1]
    if name not in _FUNCTIONS or arguments(node).get("alpha", 1) != 1:
        raise NotImplementedError(f"no conversion of {op_name(node)} with these arguments")
    return _FUNCTIONS[name]


def _argument(value: Any, numbers: dict[Node, int]) -> Any:
    if isinstance(value, Node) and value in numbers:
        return {"value": numbers[value]}
    if type(value) not in (int, float):
        raise NotImplementedError(f"no conversion of an argument {value}")
    return value
