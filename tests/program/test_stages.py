"""Methods split where data makes sizes or numbers."""

from __future__ import annotations

import pytest

from delegate.errors import ProgramError
from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Op, Symbol
from delegate.program.model import (
    Input,
    KernelCall,
    MethodDefinition,
    Ref,
    StorageKind,
    Tree,
)
from delegate.program.stages import depends_on_data, split
from tests.support.programs import const, in_tree, value

COUNT, NUMBER = Expr(Op.SYMBOL, 0), Expr(Op.SYMBOL, 1)
I64 = DType.int64
RESULT = (Ref(5),)
UNPLANNED = (StorageKind.ARENA, 0, -1)


def method(*instructions: KernelCall, outputs=RESULT) -> MethodDefinition:
    """x -> kept [count]; number: the element of `sum`."""
    values = (
        value("x", (4,), StorageKind.INPUT, 0),
        value("weight", (4,), StorageKind.CONSTANT, 0),
        value("scaled", (4,), *UNPLANNED),
        value("kept", (COUNT,), *UNPLANNED),
        value("sum", (), *UNPLANNED, dtype=I64),
        value("result", (COUNT,), *UNPLANNED),
        value("cache", (4,), StorageKind.STATE, 0),
        value("cache (updated)", (4,), StorageKind.STATE, 0),
    )
    symbols = (Symbol("count", 0, 4, dim=0, value=3), Symbol("number", 0, 9, value=4))
    out_tree = Tree("tuple", (), (Tree("leaf"),) * len(outputs))
    return MethodDefinition(
        "forward", (Input("x", 0),), tuple(outputs), in_tree(1), out_tree, values, instructions, symbols, (-1,)
    )


SCALE = KernelCall(0, (Ref(0), Ref(1)), (2,))
KEEP = KernelCall(1, (Ref(2),), (3,))
SUM = KernelCall(2, (Ref(3),), (4,))
ADD = KernelCall(0, (Ref(3), NUMBER), (5,))
ADD_COUNT = KernelCall(0, (Ref(3), COUNT), (5,))
UPDATE = KernelCall(3, (Ref(6), Ref(0)), (7,))


def test_a_method_of_known_sizes_depends_on_no_data():
    known = Symbol("batch", 0, 9, 0, 0)
    assert not depends_on_data(MethodDefinition("m", (), (), in_tree(0), Tree("tuple"), (), (), symbols=(known,)))
    assert depends_on_data(method(SCALE, KEEP, ADD_COUNT))


def test_one_stage_before_a_size_and_one_behind_it():
    first, last = split(method(SCALE, KEEP, ADD_COUNT))
    assert (first.takes, first.gives, first.call, first.learns, first.drops) == ((0,), (2,), KEEP, (0,), (2, 0))
    assert {v.name for v in first.method.values} == {"x", "weight", "scaled"}
    assert [first.method.values[o.index].name for o in first.method.outputs] == ["scaled"]
    assert (last.takes, last.gives, last.call, last.learns) == ((3,), (), None, ())
    assert {v.name: v.storage.kind for v in last.method.values} == {
        "kept": StorageKind.INPUT,
        "result": StorageKind.ARENA,
    }
    assert [last.method.values[o.index].name for o in last.method.outputs] == ["result"]


def test_a_number_is_read_when_it_is_wanted():
    stages = split(method(SCALE, KEEP, SUM, ADD))
    assert [s.learns for s in stages] == [(0,), (1,), ()]
    assert [len(s.method.instructions) for s in stages] == [1, 1, 1]
    assert stages[1].gives == (4,)
    assert stages[1].drops == (4,)


def test_a_number_that_nothing_wants_makes_no_stage():
    assert [s.learns for s in split(method(SCALE, KEEP, SUM, ADD_COUNT))] == [(0,), ()]


def test_a_number_that_is_a_result_is_read_at_the_end():
    stages = split(method(SCALE, KEEP, SUM, ADD_COUNT, outputs=(NUMBER, Ref(5))))
    assert [s.learns for s in stages] == [(0,), (1,), ()]
    assert stages[-1].method.instructions == ()
    assert stages[-1].takes == (5,)


def test_a_number_is_read_before_a_state_changes():
    """It may lie in the state, or in a view of it."""
    stages = split(method(SCALE, KEEP, SUM, ADD_COUNT, UPDATE, outputs=(NUMBER,)))
    assert [s.learns for s in stages] == [(0,), (1,), ()]
    assert {v.name for v in stages[-1].method.values} == {"cache", "x", "cache (updated)"}
    assert stages[-1].takes == (0,)


def test_a_size_used_before_it_is_known():
    early = KernelCall(0, (Ref(0), COUNT), (2,))
    with pytest.raises(ProgramError, match="count is used before it is known"):
        split(method(early, KEEP, ADD_COUNT))
    with pytest.raises(ProgramError, match="number is used before it is known"):
        split(method(SCALE, KEEP, KernelCall(0, (Ref(3), (const(1), NUMBER)), (5,))))
