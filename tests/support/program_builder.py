"""A builder of programs by hand, value by value, and a run of one with and without planned memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from delegate.program.dtypes import DType
from delegate.program.model import (
    Arg,
    Constant,
    Input,
    Instruction,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    State,
    Storage,
    StorageKind,
    Tree,
    Value,
)
from delegate.program.verifier import verify
from delegate.runtime.loaded import LoadedProgram

LEAF = Tree("leaf")
UNPLANNED = Storage(StorageKind.ARENA, 0, -1)
SQUARE = (2, 2)


@dataclass
class Builder:
    """A program of one method in the making."""

    values: list[Value] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)

    def value(self, shape: tuple[int, ...] = SQUARE, dtype: DType = DType.float32, storage: Storage = UNPLANNED) -> int:
        self.values.append(Value(f"v{len(self.values)}", dtype, shape, storage))
        return len(self.values) - 1

    def input(self, shape: tuple[int, ...] = SQUARE, dtype: DType = DType.float32) -> int:
        index = self.value(shape, dtype, Storage(StorageKind.INPUT, len(self.inputs)))
        self.inputs.append(Input(f"x{len(self.inputs)}", index))
        return index

    def call(self, op: str, *args: Arg, out: int) -> KernelCall:
        return KernelCall(self.operators.setdefault(f"aten.{op}", len(self.operators)), args, (out,))

    def program(self, instructions: Iterable[Instruction], outputs: Iterable[int]) -> Program:
        results = tuple(Ref(o) for o in outputs)
        method = MethodDefinition(
            name="forward",
            inputs=tuple(self.inputs),
            outputs=results,
            in_tree=Tree("tuple", (), (Tree("tuple", (), (LEAF,) * len(self.inputs)), Tree("dict"))),
            out_tree=Tree("tuple", (), (LEAF,) * len(results)),
            values=tuple(self.values),
            instructions=tuple(instructions),
            arenas=(-1,),
        )
        return Program(
            methods=(method,),
            operators=tuple(self.operators),
            constants=(Constant("constant", DType.float32, SQUARE, 0),),
            states=(State("state", DType.float32, SQUARE, 1),),
            delegates=(),
            segments=(np.full(SQUARE, 7, np.float32).tobytes(), np.full(SQUARE, 8, np.float32).tobytes()),
        )


def spread(program: Program) -> Program:
    """Return the program with memory of its own in the arena for every value."""
    method, offset, values = program.methods[0], 0, []
    for value in method.values:
        is_planned = value.storage != UNPLANNED
        values.append(value if is_planned else value._replace(storage=Storage(StorageKind.ARENA, 0, offset)))
        offset += 0 if is_planned else -(-value.dtype.itemsize * math.prod(value.shape) // 64) * 64
    return program._replace(methods=(method._replace(values=tuple(values), arenas=(offset,)),))


def run(program: Program, *inputs: Any) -> list[np.ndarray[Any, Any]]:
    """Return the results of the program; assert that they are the same for both plans and for a second call."""
    made = []
    for plan in (program, spread(program)):
        verify(plan)
        loaded = LoadedProgram(plan)
        made += [loaded(*inputs), loaded(*inputs)]
    for other in made[1:]:
        for first, second in zip(made[0], other, strict=True):
            np.testing.assert_array_equal(first, second)
    return list(made[0])


A = np.arange(4, dtype=np.float32).reshape(SQUARE)
B = A + 10
