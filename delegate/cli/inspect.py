"""`delegate inspect`: the contents of a program file. Nothing is run, and no backend is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from delegate.cli import output
from delegate.program import file
from delegate.program.expr import Dim
from delegate.program.model import Method, Program
from delegate.program.text import constant_bytes, program_lines


def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A program file.")],
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON, without the instructions.")] = False,
) -> None:
    """Show methods, values, instructions, memory, delegates and constants of a program file."""
    program = file.load(path)
    if as_json:
        output.print_json(_summary(program))
        return
    for line in program_lines(program):
        print(line)


def _summary(program: Program) -> dict[str, Any]:
    spaces = ["host", *(f"{s.backend}:{s.name}" for s in program.spaces)]
    return {
        "version": program.version,
        "methods": [_method(m, spaces) for m in program.methods],
        "operators": list(program.operators),
        "delegates": _delegates(program),
        "on_fallback": program.on_fallback,
        "constants": [_tensor(c.name, c.dtype.name, c.shape) for c in program.constants],
        "states": [_tensor(s.name, s.dtype.name, s.shape) for s in program.states],
        "segment_bytes": sum(len(s) for s in program.segments),
    }


def _delegates(program: Program) -> list[dict[str, Any]]:
    fallbacks = [{"bytes": constant_bytes(program, method)} for method in program.fallbacks]
    return [
        {
            "name": spec.name,
            "backend": spec.backend,
            "bytes": len(program.segments[spec.segment]),
            "fallback": fallbacks[spec.fallback] if spec.fallback >= 0 else None,
        }
        for spec in program.delegates
    ]


def _method(method: Method, spaces: list[str]) -> dict[str, Any]:
    tensors = [(i.name, method.values[i.value]) for i in method.inputs if i.value >= 0]
    return {
        "name": method.name,
        "inputs": [_tensor(name, value.dtype.name, value.shape) for name, value in tensors],
        "instructions": len(method.instructions),
        "values": len(method.values),
        "arenas": list(method.arenas),
        "memory": dict(zip(spaces, method.arenas, strict=False)),
        "symbols": [{"name": s.name, "minimum": s.minimum, "maximum": s.maximum} for s in method.symbols],
    }


def _tensor(name: str, dtype: str, shape: tuple[Dim, ...]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": [d if isinstance(d, int) else str(d) for d in shape]}
