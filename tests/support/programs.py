"""Programs made by hand; between them they use every feature of the model."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Op, Symbol
from delegate.program.model import (
    Block,
    Constant,
    DelegateCall,
    DelegateSpec,
    Input,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    State,
    Storage,
    StorageKind,
    Structure,
    StructuredCall,
    Tree,
    Value,
)

LEAF = Tree("leaf")
S0 = Expr(Op.SYMBOL, 0)
F32 = DType.float32


def const(value: int) -> Expr:
    return Expr(Op.CONST, value)


def binary(op: Op, left: Expr, right: Expr) -> Expr:
    return Expr(op, 0, (left, right))


def value(name: str, shape: tuple[Any, ...], *storage: Any, dtype: DType = F32) -> Value:
    return Value(name, dtype, shape, Storage(*storage))


def in_tree(leaves: int) -> Tree:
    return Tree("tuple", (), (Tree("tuple", (), (LEAF,) * leaves), Tree("dict")))


def floats(count: int, start: float = 0.0) -> bytes:
    return struct.pack(f"<{count}f", *(start + i for i in range(count)))


def static() -> Program:
    """Kernels, a delegate, an alias, a constant, two memory spaces, arguments of every kind."""
    values = (
        value("x", (2, 4), StorageKind.INPUT, 0),
        value("weight", (2, 4), StorageKind.CONSTANT, 0),
        value("mul", (2, 4), StorageKind.ARENA, 0, 0),
        value("view", (8,), StorageKind.ALIAS, 2),
        value("xnnpack_0", (8,), StorageKind.ARENA, 1, 64),
        value("add", (8,), StorageKind.OUTPUT, 0),
    )
    named = Tree("namedtuple", ("n",), (LEAF,))
    every = (Ref(4), (Ref(4), None, (1, -(2**63), 2**63 - 1)), 1.5, float("inf"), -0.0, 2 + 3j, True, False, 7, "ä\n",
             DType.bfloat16, const(3), ())  # fmt: skip
    forward = MethodDefinition(
        name="forward",
        inputs=(Input("x", 0), Input("mode", -1, "fast"), Input("flag", -1, True), Input("none", -1)),
        outputs=(Ref(5), 3, None, "text", (1, 2.5)),
        in_tree=Tree("tuple", (), (Tree("tuple", (), (LEAF, LEAF)), Tree("dict", ("flag", 3), (LEAF, LEAF)))),
        out_tree=Tree("record", ("a", "b"), (LEAF, Tree("list", (), (LEAF, LEAF, LEAF, named))), "some.Output"),
        values=values,
        instructions=(
            KernelCall(0, (Ref(0), Ref(1)), (2,), 0),
            KernelCall(1, (Ref(2), (8,)), (3,)),
            DelegateCall(0, (3,), (4,)),
            KernelCall(2, every, (5,), 1),
        ),
        arenas=(32, 128),
        sources=("model.py:3, in forward", "model.py:4, in forward"),
    )
    return Program(
        methods=(forward,),
        operators=("aten.mul.Tensor", "aten.view.default", "aten.every.kind"),
        constants=(Constant("weight", F32, (2, 4), 0), Constant("tied", DType.int32, (8,), 0)),
        states=(),
        delegates=(DelegateSpec("xnnpack_0", "xnnpack", 1, {"threads": 2, "names": ["a", None, 1.5, {"b": True}]}),),
        segments=(floats(8), b"a blob", floats(8)),
        report='{"partitions": []}',
    )


def fallback() -> Program:
    """`static`, its partition kept in kernels."""
    kept = MethodDefinition(
        name="xnnpack_0",
        inputs=(Input("view", 0),),
        outputs=(Ref(1),),
        in_tree=in_tree(1),
        out_tree=Tree("tuple", (), (LEAF,)),
        values=(value("view", (8,), StorageKind.INPUT, 0), value("mul", (8,), StorageKind.OUTPUT, 0)),
        instructions=(KernelCall(0, (Ref(0), Ref(0)), (1,)),),
        arenas=(0,),
    )
    program = static()
    spec = program.delegates[0]._replace(fallback=0)
    return program._replace(delegates=(spec,), fallbacks=(kept,), on_fallback="error")


def dynamic() -> Program:
    """Symbols, expressions, memory that is planned per shape, a size as output, a guard, a method without operators."""
    half = binary(Op.FLOORDIV, binary(Op.ADD, S0, const(1)), const(2))
    odd = binary(Op.MAX, binary(Op.MIN, half, const(9)), binary(Op.MUL, binary(Op.MOD, S0, const(7)), const(-1)))
    values = (
        value("x", (S0, 3), StorageKind.INPUT, 0),
        value("slice", (half, 3), StorageKind.ARENA, 0, -1),
        value("y", (odd, 3), StorageKind.OUTPUT, 0),
    )
    forward = MethodDefinition(
        name="forward",
        inputs=(Input("x", 0),),
        outputs=(Ref(2), half),
        in_tree=in_tree(1),
        out_tree=Tree("tuple", (), (LEAF, LEAF)),
        values=values,
        instructions=(KernelCall(0, (Ref(0), half), (1,)), KernelCall(0, (Ref(1), odd), (2,))),
        symbols=(Symbol("batch", 2, None, 0, 0), Symbol("u0", 0, 100, dim=0, value=1)),
        arenas=(-1,),
        guards=(binary(Op.NE, S0, const(5)),),
    )
    empty = MethodDefinition("nothing", (), (), in_tree(0), Tree("tuple"), (), ())
    return Program((forward, empty), ("aten.slice_copy.Tensor",), (), (), (), ())


def structured() -> Program:
    """A state, a loop within a branch, and values that live across them."""
    b1 = DType.bool
    values = (
        value("x", (4,), StorageKind.INPUT, 0),
        value("cache", (4,), StorageKind.STATE, 0),
        value("predicate", (), StorageKind.ARENA, 0, 0, dtype=b1),
        value("then_in", (4,), StorageKind.ALIAS, 0),
        value("then_out", (4,), StorageKind.ARENA, 0, 64),
        value("else_in", (4,), StorageKind.ARENA, 0, 64),
        value("cond_in", (4,), StorageKind.ARENA, 0, 128),
        value("cond_out", (), StorageKind.ARENA, 0, 192, dtype=b1),
        value("body_in", (4,), StorageKind.ARENA, 0, 192),
        value("body_out", (4,), StorageKind.ARENA, 0, 256),
        value("loop", (4,), StorageKind.ARENA, 0, 320),
        value("out", (4,), StorageKind.OUTPUT, 0),
    )
    loop = StructuredCall(
        kind=Structure.WHILE,
        operands=(5,),
        carried=1,
        blocks=(
            Block((6,), (7,), (KernelCall(1, (Ref(6),), (7,)),)),
            Block((8,), (9,), (KernelCall(0, (Ref(8), Ref(1)), (9,)),)),
        ),
        outputs=(10,),
    )
    branch = StructuredCall(
        kind=Structure.IF,
        operands=(2, 0),
        carried=0,
        blocks=(Block((3,), (4,), (KernelCall(0, (Ref(3), Ref(1)), (4,)),)), Block((5,), (10,), (loop,))),
        outputs=(11,),
    )
    forward = MethodDefinition(
        name="forward",
        inputs=(Input("x", 0),),
        outputs=(Ref(11), Ref(0)),
        in_tree=in_tree(1),
        out_tree=Tree("tuple", (), (LEAF, LEAF)),
        values=values,
        instructions=(KernelCall(1, (Ref(0),), (2,)), branch, KernelCall(2, (Ref(1), Ref(11)), (1,))),
        arenas=(384,),
    )
    reset = MethodDefinition(
        name="read",
        inputs=(),
        outputs=(Ref(0),),
        in_tree=in_tree(0),
        out_tree=LEAF,
        values=(value("cache", (4,), StorageKind.STATE, 0),),
        instructions=(),
    )
    return Program(
        methods=(forward, reset),
        operators=("aten.add.Tensor", "aten.any.default", "aten.copy.default"),
        constants=(),
        states=(State("cache", F32, (4,), 0),),
        delegates=(),
        segments=(bytes(16),),
    )


def empty() -> Program:
    """Nothing at all."""
    return Program((), (), (), (), (), ())


SAMPLES = {
    "static": static,
    "fallback": fallback,
    "dynamic": dynamic,
    "structured": structured,
    "empty": empty,
}


def replace_method(program: Program, **changes: Any) -> Program:
    """The program with a changed first method."""
    first, *rest = program.methods
    return program._replace(methods=(first._replace(**changes), *rest))


def replace_value(program: Program, index: int, **changes: Any) -> Program:
    """The program with a changed value of its first method; `kind`, `at` and `offset` change its storage."""
    values = list(program.methods[0].values)
    names = {"kind": "kind", "at": "index", "offset": "offset"}
    storage = {names[k]: v for k, v in changes.items() if k in names}
    others = {k: v for k, v in changes.items() if k not in names}
    old = values[index]
    values[index] = old._replace(storage=dataclasses.replace(old.storage, **storage), **others)
    return replace_method(program, values=tuple(values))


def replace_instruction(program: Program, index: int, **changes: Any) -> Program:
    """The program with a changed instruction of its first method."""
    instructions = list(program.methods[0].instructions)
    instructions[index] = instructions[index]._replace(**changes)
    return replace_method(program, instructions=tuple(instructions))
