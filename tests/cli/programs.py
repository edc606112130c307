"""A small program file, made by hand: the sum of two inputs by the backend `adder`, once static and once dynamic."""

from __future__ import annotations

from pathlib import Path

from delegate.program import file
from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Op, Symbol
from delegate.program.model import (
    DelegateCall,
    DelegateSpec,
    Input,
    MethodDefinition,
    Program,
    Ref,
    Storage,
    StorageKind,
    Tree,
    Value,
)
from delegate.report import Report
from delegate.report.rows import NodeReport, PartitionReport
from delegate.verdict import YES

LEAF = Tree("leaf")
REPORT = Report(
    methods=("forward",),
    nodes=(NodeReport("forward", "add", "aten.add.Tensor", "adder", "adder_0", {"adder": YES}),),
    partitions=(PartitionReport("forward", "adder_0", "adder", ("add",), 24, 12, 1.0),),
)


def save_number(path: Path) -> Path:
    """Write a program that takes an integer and gives three times that."""
    thrice = Expr(Op.MUL, 0, (Expr(Op.SYMBOL, 0), Expr(Op.CONST, 3)))
    in_tree = Tree("tuple", children=(Tree("tuple", children=(LEAF,)), Tree("dict")))
    method = MethodDefinition(
        "forward", (Input("n", -1),), (thrice,), in_tree, LEAF, (), (), symbols=(Symbol("n", 0, None, input=0),)
    )
    file.save(Program((method,), (), (), (), (), (), REPORT.to_json()), path)
    return path


def save_sum(path: Path, *, dynamic: bool = False) -> Path:
    """Write the program; the first dimension is dynamic (1 to 8) on wish."""
    rows = Expr(Op.SYMBOL, 0) if dynamic else 2
    homes = [("x", StorageKind.INPUT, 0), ("y", StorageKind.INPUT, 1), ("add", StorageKind.OUTPUT, 0)]
    method = MethodDefinition(
        name="forward",
        inputs=(Input("x", 0), Input("y", 1)),
        outputs=(Ref(2),),
        in_tree=Tree("tuple", children=(Tree("tuple", children=(LEAF, LEAF)), Tree("dict"))),
        out_tree=Tree("dict", ("sum",), (LEAF,)),
        values=tuple(Value(name, DType.float32, (rows, 3), Storage(home, index)) for name, home, index in homes),
        instructions=(DelegateCall(0, (0, 1), (2,)),),
        symbols=(Symbol("batch", 1, 8, 0, 0),) if dynamic else (),
    )
    delegates = (DelegateSpec("adder_0", "adder", 0, {}),)
    file.save(Program((method,), (), (), (), delegates, (b"sum",), REPORT.to_json()), path)
    return path
