"""Control flow in programs made by hand: what is carried, swapped, given back as it is, or never reached.

Every program runs planned by the runtime, where blocks share memory with what is around them, and with a place of its
own for every value, where all of it is copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from delegate.errors import KernelError, ProgramError
from delegate.program.dtypes import DType
from delegate.program.model import (
    Block,
    Program,
    Ref,
    Storage,
    StorageKind,
    Structure,
    StructuredCall,
)
from delegate.program.verifier import verify
from delegate.runtime.loaded import LoadedProgram
from tests.support.program_builder import SQUARE, A, B, Builder, run


def counted(build: Builder, turns: int, gives: Any) -> Program:
    """A loop that carries a counter and two squares; `gives` makes the body's squares out of those that it takes."""
    count, a, b = build.input((), DType.int64), build.input(), build.input()
    c1, a1, b1, holds = build.value((), DType.int64), build.value(), build.value(), build.value((), DType.bool)
    c2, a2, b2, more = build.value((), DType.int64), build.value(), build.value(), build.value((), DType.int64)
    instructions, first, second = gives(build, a2, b2)
    outputs = (build.value((), DType.int64), build.value(), build.value())
    condition = Block((c1, a1, b1), (holds,), (build.call("lt.Scalar", Ref(c1), turns, out=holds),))
    step = build.call("add.Tensor", Ref(c2), 1, 1, out=more)
    body = Block((c2, a2, b2), (more, first, second), (step, *instructions))
    loop = StructuredCall(Structure.WHILE, (count, a, b), 3, (condition, body), outputs)
    return build.program([loop], outputs)


def transposed_first(build: Builder, a: int, b: int) -> Any:
    view = build.value()
    return [build.call("permute.default", Ref(a), (1, 0), out=view)], view, b


def transposed_other(build: Builder, a: int, b: int) -> Any:
    view = build.value()
    return [build.call("permute.default", Ref(a), (1, 0), out=view)], b, view


CONSTANT, STATE = Storage(StorageKind.CONSTANT, 0), Storage(StorageKind.STATE, 0)
BODIES = {
    "as they are": (lambda build, a, b: ([], a, b), lambda a, b: (a, b)),
    "swapped": (lambda build, a, b: ([], b, a), lambda a, b: (b, a)),
    "one twice": (lambda build, a, b: ([], b, b), lambda a, b: (b, b)),
    "the first as a view of itself": (transposed_first, lambda a, b: (a.T, b)),
    "a view of the other": (transposed_other, lambda a, b: (b, a.T)),
    "a constant and a state": (
        lambda build, a, b: ([], build.value(storage=CONSTANT), build.value(storage=STATE)),
        lambda a, b: (np.full_like(a, 7), np.full_like(b, 8)),
    ),
}


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("name", BODIES)
def test_a_loop_carries(name: str, turns: int) -> None:
    gives, expected = BODIES[name]
    a, b = A, B
    for _ in range(turns):
        a, b = expected(a, b)
    count, first, second = run(counted(Builder(), turns, gives), np.int64(0), A, B)
    assert count == turns
    np.testing.assert_array_equal(first, a)
    np.testing.assert_array_equal(second, b)


def scanned(build: Builder, length: int) -> Program:
    """A scan that gives the sum so far, as it was before each part, and the part; another sequence is captured."""
    start, parts, captured = build.input((2,)), build.input((length, 2)), build.input((2,))
    carried, part, seen, total = build.value((2,)), build.value((2,)), build.value((2,)), build.value((2,))
    half = build.value((2,))
    outputs = (build.value((2,)), build.value((length, 2)), build.value((length, 2)))
    first = build.call("add.Tensor", Ref(carried), Ref(part), 1, out=half)
    second = build.call("add.Tensor", Ref(half), Ref(seen), 1, out=total)
    body = Block((carried, part, seen), (total, carried, part), (first, second))
    scan = StructuredCall(Structure.SCAN, (start, parts, captured), 1, (body,), outputs, sequences=1)
    return build.program([scan], outputs)


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_scan_stacks_what_is_carried_before_it_is_replaced(length: int) -> None:
    parts = np.arange(2 * length, dtype=np.float32).reshape(length, 2)
    start, captured = np.array([1, 2], np.float32), np.array([100, 0], np.float32)
    sums = start + np.concatenate([np.zeros((1, 2), np.float32), np.cumsum(parts + captured, 0)])
    total, before, same = run(scanned(Builder(), length), start, parts, captured)
    np.testing.assert_array_equal(total, sums[-1])
    np.testing.assert_array_equal(before, sums[:-1])
    np.testing.assert_array_equal(same, parts)


def test_a_map_of_parts_without_dimensions() -> None:
    build = Builder()
    whole, part, made, out = build.input((3,)), build.value(()), build.value(()), build.value((3,))
    body = Block((part,), (made,), (build.call("neg.default", Ref(part), out=made),))
    program = build.program([StructuredCall(Structure.MAP, (whole,), 0, (body,), (out,), sequences=1)], [out])
    np.testing.assert_array_equal(run(program, np.array([1, -2, 3], np.float32))[0], [-1, 2, -3])


def branched(build: Builder, predicate_shape: tuple[int, ...] = ()) -> Program:
    """Branches that give what they take, and a constant and a state; what they give is read again behind."""
    predicate, x = build.input(predicate_shape, DType.bool), build.input()
    taken, other = build.value(), build.value()
    outputs = (build.value(), build.value())
    then = Block((taken,), (taken, build.value(storage=CONSTANT)), ())
    otherwise = Block((other,), (build.value(storage=STATE), other), ())
    branch = StructuredCall(Structure.IF, (predicate, x), 0, (then, otherwise), outputs)
    total = build.value()
    return build.program(
        [branch, build.call("add.Tensor", Ref(outputs[0]), Ref(outputs[1]), 1, out=total)], (*outputs, total, x)
    )


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("choice", [True, False])
def test_a_branch_gives_what_lies_outside_of_it(choice: bool, shape: tuple[int, ...]) -> None:
    first, second, total, given = run(branched(Builder(), shape), np.full(shape, choice), A)
    expected = (A, np.full_like(A, 7)) if choice else (np.full_like(A, 8), A)
    np.testing.assert_array_equal((first, second), expected)
    np.testing.assert_array_equal(total, expected[0] + expected[1])
    np.testing.assert_array_equal(given, A)
    first += 1  # the caller's own
    np.testing.assert_array_equal(A, np.arange(4).reshape(SQUARE))


def test_a_predicate_of_several_elements_is_refused_where_it_stands() -> None:
    with pytest.raises(ProgramError, match=r"a value of shape .*method forward, if"):
        LoadedProgram(branched(Builder(), (2,)))


def test_an_error_in_a_block_names_its_instruction() -> None:
    build = Builder()
    predicate, x = build.input((), DType.bool), build.input()
    wrong, fine, out = build.value((3,)), build.value((3,)), build.value((3,))
    failing = Block((), (wrong,), (build.call("neg.default", Ref(x), out=wrong),))
    working = Block((), (fine,), (build.call("full.default", (3,), 1.0, None, None, None, None, out=fine),))
    branch = StructuredCall(Structure.IF, (predicate,), 0, (failing, working), (out,))
    program = LoadedProgram(build.program([branch], [out]))
    with pytest.raises(KernelError, match=f"method forward, v{wrong}"):
        program(np.array(True), A)
    np.testing.assert_array_equal(program(np.array(False), A)[0], np.ones(3))


def test_an_alias_of_another_value_is_no_input_of_a_block() -> None:
    program = branched(Builder())
    method = program.methods[0]
    values = list(method.values)
    values[2] = values[2]._replace(storage=Storage(StorageKind.ALIAS, 0))
    with pytest.raises(ProgramError, match="alias of a value that is not passed"):
        verify(program._replace(methods=(method._replace(values=tuple(values)),)))


def test_an_input_of_a_block_has_the_type_of_what_it_is_an_alias_of() -> None:
    program = branched(Builder())
    method = program.methods[0]
    values = list(method.values)
    values[2] = values[2]._replace(storage=Storage(StorageKind.ALIAS, 1), shape=(4,))
    with pytest.raises(ProgramError, match="another type"):
        verify(program._replace(methods=(method._replace(values=tuple(values)),)))
