"""Expressions: every operation against Python's own, the file's bytes, and values that do not exist."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

from delegate.errors import InputError, ProgramError
from delegate.program import file
from delegate.program.expr import (
    UNBOUNDED_BELOW,
    Expr,
    ExpressionBounds,
    Op,
    Symbol,
    SymbolSets,
    evaluate,
    operands,
)
from delegate.program.model import (
    Ref,
    Tree,
)
from delegate.program.verifier import verify
from tests.support.programs import LEAF, S0, binary, const, dynamic, replace_method

S1 = Expr(Op.SYMBOL, 1)


def unary(op: Op, arg: Expr) -> Expr:
    return Expr(op, 0, (arg,))


def real(value: float) -> Expr:
    return Expr(Op.FLOAT, value)


VALUES = {  # with s0 = 7 and s1 = 3
    "add": (binary(Op.ADD, S0, S1), 10),
    "mul": (binary(Op.MUL, S0, const(-2)), -14),
    "floordiv": (binary(Op.FLOORDIV, binary(Op.MUL, S0, const(-1)), const(2)), -4),
    "mod": (binary(Op.MOD, S0, const(4)), 3),
    "max": (binary(Op.MAX, S0, S1), 7),
    "min": (binary(Op.MIN, S0, S1), 3),
    "float": (real(0.5), 0.5),
    "truediv": (binary(Op.TRUEDIV, S0, const(2)), 3.5),
    "pow": (binary(Op.POW, S0, S1), 343),
    "root": (binary(Op.POW, unary(Op.TO_FLOAT, S0), real(0.5)), 7**0.5),
    "inverse": (binary(Op.POW, S0, const(-1)), 1 / 7),
    "eq": (binary(Op.EQ, S0, const(7)), True),
    "ne": (binary(Op.NE, S0, const(7)), False),
    "lt": (binary(Op.LT, S0, S1), False),
    "le": (binary(Op.LE, S1, S0), True),
    "and": (binary(Op.AND, binary(Op.LT, S1, S0), binary(Op.LT, S0, S1)), False),
    "or": (binary(Op.OR, binary(Op.LT, S1, S0), binary(Op.LT, S0, S1)), True),
    "not": (unary(Op.NOT, binary(Op.LT, S1, S0)), False),
    "to_float": (unary(Op.TO_FLOAT, S0), 7.0),
    "floor": (unary(Op.FLOOR, real(-1.5)), -2),
    "ceil": (unary(Op.CEIL, real(-1.5)), -1),
    "trunc": (unary(Op.TRUNC, real(-1.5)), -1),
    "round": (unary(Op.ROUND, real(2.5)), 2),
    "sqrt": (unary(Op.SQRT, S0), math.sqrt(7)),
    "exp": (unary(Op.EXP, S0), math.exp(7)),
    "log": (unary(Op.LOG, S0), math.log(7)),
    "log2": (unary(Op.LOG2, S0), math.log2(7)),
}


@pytest.mark.parametrize("name", VALUES)
def test_value(name):
    expr, expected = VALUES[name]
    found = expr.evaluate({0: 7, 1: 3})
    assert type(found) is type(expected)
    assert found == expected


def test_every_operation_is_tested():
    tested = {e.op for e, _ in VALUES.values()}
    assert tested | {Op.CONST, Op.SYMBOL} == set(Op)


@pytest.mark.parametrize("name", VALUES)
def test_saved_and_loaded(name, tmp_path):
    expr, _ = VALUES[name]
    program = replace_method(dynamic(), outputs=(Ref(2), expr))
    verify(program)
    file.save(program, tmp_path / "p.dlg")
    assert file.load(tmp_path / "p.dlg").methods[0].outputs[1] == expr


NO_VALUE = {
    "division by zero": binary(Op.FLOORDIV, S0, binary(Op.ADD, S0, const(-7))),
    "quotient of zero": binary(Op.TRUEDIV, S0, const(0)),
    "remainder of zero": binary(Op.MOD, S0, const(0)),
    "root of a negative number": unary(Op.SQRT, const(-1)),
    "negative number to a fraction": binary(Op.POW, const(-8), real(0.5)),
    "logarithm of zero": unary(Op.LOG, const(0)),
    "too large": binary(Op.MUL, const(2**62), S0),
    "power too large": binary(Op.POW, const(10), const(2**62)),
    "tower": binary(Op.POW, S0, binary(Op.POW, S0, S0)),
    "exponential too large": unary(Op.EXP, const(10**6)),
    "infinity is no integer": unary(Op.FLOOR, real(math.inf)),
    "NaN is no integer": unary(Op.ROUND, real(math.nan)),
}


@pytest.mark.parametrize("name", NO_VALUE)
def test_no_value_is_an_error_that_shows_the_expression(name):
    with pytest.raises(InputError, match="cannot be computed for these inputs") as caught:
        NO_VALUE[name].evaluate({0: 7})
    assert str(NO_VALUE[name]) in str(caught.value)


@pytest.mark.parametrize("expr", [const(-1), real(2.0), binary(Op.EQ, S0, S0), binary(Op.ADD, S0, const(-8))], ids=str)
def test_no_size(expr):
    with pytest.raises(InputError, match=r"the size .* is .* for these inputs"):
        evaluate(expr, {0: 7})


def test_text_has_the_names_of_symbols():
    expr = binary(Op.LE, binary(Op.POW, S0, unary(Op.SQRT, S1)), real(0.5))
    assert expr.text(["batch", "time"]) == "((batch ** sqrt(time)) <= 0.5)"
    assert str(expr) == "((s0 ** sqrt(s1)) <= 0.5)"
    assert SymbolSets().of((expr, (S1, 3), Ref(4))) == {0, 1}


BOUNDED = (Op.ADD, Op.MUL, Op.FLOORDIV, Op.MOD, Op.MAX, Op.MIN, Op.TRUEDIV, Op.TO_FLOAT, Op.FLOOR, Op.CEIL, Op.TRUNC)


def some_expr(random: random.Random, depth: int) -> Expr:
    if depth == 0:
        return random.choice([S0, S1, const(random.randint(-3, 5))])
    op = random.choice(BOUNDED)
    return Expr(op, 0, tuple(some_expr(random, depth - 1) for _ in range(operands(op))))


@pytest.mark.parametrize("seed", range(40))
def test_bounds_hold_for_all_symbols(seed):
    """Brute force, also where an expression falls while its symbols grow."""
    generator = random.Random(seed)
    symbols = (Symbol("a", -2, 6), Symbol("b", 1, 5))
    for _ in range(25):
        expr = some_expr(generator, 3)
        low, high = ExpressionBounds(symbols).interval(expr)
        for a, b in itertools.product(range(-2, 7), range(1, 6)):
            try:
                value = expr.evaluate({0: a, 1: b})
            except InputError:
                continue
            assert low <= value <= high, f"{expr} is {value} for {a} and {b}, not {low} to {high}"


GROWING = binary(Op.ADD, binary(Op.FLOORDIV, binary(Op.ADD, S0, const(1)), const(2)), S1)


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (5, 5),
        (GROWING, 4 + 9),
        (binary(Op.ADD, const(20), binary(Op.MUL, S0, const(-1))), 18),
        (binary(Op.MIN, binary(Op.MUL, S0, Expr(Op.SYMBOL, 2)), const(30)), 30),
        (binary(Op.ADD, S0, Expr(Op.SYMBOL, 2)), None),
        (unary(Op.FLOOR, binary(Op.MUL, real(0.7), unary(Op.TO_FLOAT, S0))), 4),
        (unary(Op.FLOOR, unary(Op.EXP, S0)), None),
        (unary(Op.FLOOR, real(math.nan)), None),
        (
            unary(Op.TO_FLOAT, binary(Op.MUL, *[binary(Op.MUL, const(2**62), const(2**62))] * 2)),
            None,
        ),  # what exceeds 64 bits is no size
    ],
    ids=str,
)
def test_largest_size(dim, expected):
    symbols = (Symbol("a", 2, 7), Symbol("b", 0, 9), Symbol("c", 0, None))
    assert ExpressionBounds(symbols).largest(dim) == expected
    assert ExpressionBounds(symbols).largest_count((dim, 2)) == (None if expected is None else 2 * expected)


def planned(offset: int = 0, arena: int = 6 * 3 * 4 + 56, maximum: int | None = 11):
    """The dynamic sample with its one value in the arena: ((s0 + 1) // 2, 3) floats."""
    sample = dynamic().methods[0]
    storage = dataclasses.replace(sample.values[1].storage, offset=offset)
    values = (sample.values[0], sample.values[1]._replace(storage=storage), sample.values[2])
    symbols = (sample.symbols[0]._replace(maximum=maximum), sample.symbols[1])
    return replace_method(dynamic(), values=values, symbols=symbols, arenas=(arena,))


def test_verifier_takes_offsets_that_hold_at_the_bounds():
    verify(planned())


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (planned(maximum=None), "its size has no known bound"),
        (planned(arena=64), "ends at byte 72, outside an arena of 64"),
        (planned(offset=64), "ends at byte 136"),
        (planned(maximum=100), "ends at byte 600"),
    ],
)
def test_verifier_refuses_offsets_that_do_not(program, message):
    with pytest.raises(ProgramError, match=message):
        verify(program)


def test_numbers_from_data_may_be_negative(tmp_path):
    symbols = (dynamic().methods[0].symbols[0], Symbol("u0", UNBOUNDED_BELOW, None, value=0))
    program = replace_method(dynamic(), outputs=(Ref(2), S1), symbols=symbols, out_tree=Tree("tuple", (), (LEAF, LEAF)))
    file.save(program, tmp_path / "p.dlg")
    assert file.load(tmp_path / "p.dlg").methods[0].symbols == symbols
