"""The verifier: each rule is broken once, and the message names the place."""

from __future__ import annotations

import random

import pytest

from delegate.errors import ProgramError
from delegate.memory.planner import plan_memory
from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Op, Symbol
from delegate.program.lifetimes import Lifetime
from delegate.program.model import (
    Block,
    DelegateCall,
    Input,
    KernelCall,
    Program,
    Ref,
    StorageKind,
    Structure,
    StructuredCall,
    Tree,
)
from delegate.program.verifier import verify
from tests.support.programs import (
    LEAF,
    S0,
    SAMPLES,
    const,
    dynamic,
    fallback,
    in_tree,
    replace_instruction,
    replace_method,
    replace_value,
    static,
    structured,
    value,
)
from tests.support.programs import binary as expr_of


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES)
def test_samples_are_sound(make):
    verify(make())


def rows(program: Program, table: str, **changes) -> Program:
    """The program with a changed first row of a table."""
    first, *rest = getattr(program, table)
    return program._replace(**{table: (first._replace(**changes), *rest)})


def kept(**changes) -> Program:
    """`fallback` with its fallback changed."""
    return rows(fallback(), "fallbacks", **changes)


def branch(**changes) -> Program:
    return replace_instruction(structured(), 1, **changes)


def in_branch(block: int, **changes) -> Program:
    """`structured` with a changed block of its branch."""
    call = structured().methods[0].instructions[1]
    blocks = list(call.blocks)
    blocks[block] = blocks[block]._replace(**changes)
    return branch(blocks=tuple(blocks))


def loop(**changes) -> Program:
    """`structured` with a changed loop within its branch."""
    call = structured().methods[0].instructions[1].blocks[1].instructions[0]
    return in_branch(1, instructions=(call._replace(**changes),))


UNUSED = replace_method(static(), values=(*static().methods[0].values, value("unused", (1,), StorageKind.ARENA)))

CASES = {
    "names": (dynamic()._replace(methods=dynamic().methods[:1] * 2), "two methods.*'forward'"),
    "constant segment": (rows(static(), "constants", segment=3), "no segment 3, only 3 .constant 'weight'"),
    "constant size": (rows(static(), "constants", shape=(9,)), r"^float32\[9\] needs 36 bytes, but segment 0 has 32"),
    "constant shape": (rows(static(), "constants", shape=(-2, -4)), "size -4 is negative"),
    "state size": (rows(structured(), "states", dtype=DType.int8), "needs 4 bytes.*state 'cache'"),
    "delegate segment": (rows(static(), "delegates", segment=-1), "no segment -1.*delegate 'xnnpack_0'"),
    "in_tree leaves": (replace_method(static(), in_tree=in_tree(3)), "3 leaves for 4 inputs"),
    "in_tree shape": (replace_method(dynamic(), in_tree=LEAF), "tuple of arguments and a dict"),
    "out_tree leaves": (replace_method(dynamic(), out_tree=LEAF), "1 leaves for 2 outputs"),
    "leaf with parts": (replace_method(dynamic(), out_tree=Tree("leaf", (), (LEAF, LEAF))), "a leaf has children"),
    "tree keys": (replace_method(dynamic(), out_tree=Tree("dict", ("a",), (LEAF, LEAF))), "2 parts has 1 keys"),
    "tree kind": (replace_method(dynamic(), out_tree=Tree("bag", (), (LEAF, LEAF))), "no kind .* 'bag'"),
    "negative size": (replace_value(static(), 2, shape=(-1, 4)), "the size -1 is negative .*%2 'mul'"),
    "symbol of size": (replace_value(dynamic(), 1, shape=(Expr(Op.SYMBOL, 2),)), "no symbol 2, only 2"),
    "symbol of guard": (replace_method(dynamic(), guards=(Expr(Op.SYMBOL, 2),)), "no symbol 2, only 2 .*guards"),
    "operands of guard": (replace_method(dynamic(), guards=(Expr(Op.NE, 0, (S0,)),)), "NE has 1 operands"),
    "operands of size": (replace_value(dynamic(), 1, shape=(Expr(Op.ADD, 0, (S0,)),)), "ADD has 1 operands"),
    "operands of const": (replace_value(dynamic(), 1, shape=(Expr(Op.CONST, 0, (S0,)),)), "CONST has 1 operands"),
    "nested symbol": (replace_value(dynamic(), 1, shape=(expr_of(Op.ADD, S0, Expr(Op.SYMBOL, -1)),)), "no symbol -1"),
    "constant index": (replace_value(static(), 1, at=2), "no constant 2, only 2 .*value %1 'weight'"),
    "constant like": (replace_value(static(), 1, at=1), r"it is float32\[2, 4\], but its tensor 'tied' is int32\[8\]"),
    "state index": (replace_value(structured(), 1, at=1), "no state 1"),
    "input index": (replace_value(static(), 0, at=4), "no input 4"),
    "input of another": (replace_value(static(), 0, at=1), "input 1 is stored in another value"),
    "input value": (replace_method(dynamic(), inputs=(Input("x", 3),)), "is stored in another value"),
    "input home": (replace_value(dynamic(), 0, kind=StorageKind.ARENA, offset=-1), "value %0 is not stored as input 0"),
    "input literal": (replace_method(dynamic(), inputs=(Input("x", 0, 3),)), "a tensor and a literal"),
    "input of data": (
        replace_value(dynamic(), 0, shape=(Expr(Op.SYMBOL, 1), 3)),
        "depends on 'u0', which depends on data .*input 'x'",
    ),
    "literal": (
        replace_method(static(), inputs=(*static().methods[0].inputs[:3], Input("n", -1, (1,)))),
        "a fixed tuple",
    ),
    "key": (replace_method(dynamic(), out_tree=Tree("dict", (1, 2.5), (LEAF, LEAF))), "neither text nor integers"),
    "output index": (replace_value(static(), 5, at=5), "no output 5"),
    "output of another": (replace_value(static(), 5, at=1), "output 1 is not in its own memory"),
    "output twice": (replace_value(static(), 2, kind=StorageKind.OUTPUT), "output 0 has the memory of two values"),
    "alias index": (replace_value(static(), 3, at=6), "no value 6"),
    "alias of itself": (replace_value(static(), 3, at=3), "%3 'view' is not an alias of the first argument"),
    "alias of later": (replace_value(static(), 3, at=4), "%3 'view' is not an alias of the first argument"),
    "alias by delegate": (replace_value(static(), 4, kind=StorageKind.ALIAS, at=2), "only a kernel or a block"),
    "memory space": (replace_value(static(), 4, at=2), "no memory space 2"),
    "past the arena": (replace_value(static(), 4, offset=128), "ends at byte 160, outside an arena of 128"),
    "not aligned": (replace_value(static(), 4, offset=32), "the offset 32 is not a multiple"),
    "below the arena": (replace_value(static(), 4, offset=-64), "the offset -64"),
    "planned per shape": (replace_value(static(), 4, offset=-1), "both or neither"),
    "planned before": (replace_value(dynamic(), 1, offset=0), "both or neither"),
    "dynamic with offset": (
        replace_method(replace_value(dynamic(), 1, offset=0), arenas=(640,)),
        "an offset, .* no known bound",
    ),
    "symbol range": (replace_method(dynamic(), symbols=(Symbol("s", 3, 2),) * 2), "range 3 to 2 is empty .*'s'"),
    "symbol input": (replace_method(dynamic(), symbols=(Symbol("s", 0, 2, 1, 0),) * 2), "no input 1"),
    "symbol dim": (replace_method(dynamic(), symbols=(Symbol("s", 0, 2, 0, 2),) * 2), "no dimension 2, only 2"),
    "operator": (replace_instruction(static(), 0, operator=3), "no operator 3, only 3 .*instruction 0"),
    "source": (replace_instruction(static(), 0, source=2), "no source 2"),
    "argument": (replace_instruction(static(), 3, args=((1, (Ref(6),)),)), "no value 6"),
    "negative argument": (replace_instruction(static(), 3, args=(Ref(-1),)), "no value -1"),
    "argument symbol": (replace_instruction(dynamic(), 0, args=((Expr(Op.SYMBOL, 5),),)), "no symbol 5"),
    "argument unmade": (replace_instruction(static(), 0, args=(Ref(4),)), "%4 'xnnpack_0' is read before"),
    "made twice": (replace_instruction(static(), 3, outputs=(5, 4)), "%4 'xnnpack_0' is computed twice"),
    "never made": (replace_instruction(dynamic(), 1, outputs=()), "'y' is read before it is computed"),
    "unused and never made": (UNUSED, "no instruction computes it .*%6 'unused'"),
    "input written": (replace_instruction(static(), 0, outputs=(0,)), "%0 'x' is written, but INPUT is read-only"),
    "input copied to without arguments": (
        replace_instruction(static(), 0, outputs=(0,), args=())._replace(operators=("aten.copy.default",) * 9),
        "INPUT is read-only",
    ),
    "constant written": (replace_instruction(static(), 0, outputs=(1,)), "CONSTANT is read-only"),
    "delegate": (replace_instruction(static(), 2, delegate=1), "no delegate 1"),
    "fallback": (rows(fallback(), "delegates", fallback=1), "no fallback 1, only 1 .*delegate 'xnnpack_0'"),
    "policy": (fallback()._replace(on_fallback="ask"), "'ask' is not a policy for fallbacks"),
    "fallback inputs": (
        kept(
            inputs=(Input("a", 0), Input("b", 1)),
            in_tree=in_tree(2),
            values=(
                *(value("ab"[i], (8,), StorageKind.INPUT, i) for i in range(2)),
                value("mul", (8,), StorageKind.OUTPUT, 0),
            ),
            instructions=(KernelCall(0, (Ref(0), Ref(1)), (2,)),),
            outputs=(Ref(2),),
        ),
        "the inputs of the fallback 'xnnpack_0' do not match its delegate .*'forward', instruction 2",
    ),
    "fallback outputs": (
        kept(outputs=(Ref(1), Ref(1)), out_tree=Tree("tuple", (), (LEAF, LEAF))),
        "the outputs of the fallback 'xnnpack_0' do not match its delegate",
    ),
    "fallback literal": (
        kept(outputs=(3,), out_tree=LEAF, values=(kept().fallbacks[0].values[0],), instructions=()),
        "the outputs of the fallback .* do not match its delegate",
    ),
    "fallback dtypes": (
        kept(
            values=(
                value("view", (8,), StorageKind.INPUT, 0, dtype=DType.int8),
                value("mul", (8,), StorageKind.OUTPUT, 0),
            )
        ),
        "the inputs of the fallback .* do not match its delegate",
    ),
    "fallback of itself": (
        kept(instructions=(DelegateCall(0, (0,), (1,)),)),
        "a fallback calls a delegate .*'xnnpack_0', instruction 0",
    ),
    "fallback unsound": (kept(instructions=()), "'mul' is read before it is computed .*method 'xnnpack_0'"),
    "delegate inputs": (replace_instruction(static(), 2, inputs=(5,)), "%5 'add' is read before"),
    "delegate outputs": (replace_instruction(static(), 2, outputs=(7,)), "no value 7"),
    "result": (replace_method(dynamic(), outputs=(Ref(2), (Ref(3),))), "no value 3, only 3 .*outputs"),
    "blocks": (branch(blocks=()), "IF has 0 blocks, not 2"),
    "loop blocks": (loop(kind=Structure.SCAN), "SCAN has 2 blocks, not 1"),
    "carried": (loop(carried=2), "WHILE carries 2 of 1 operands"),
    "carries less": (loop(carried=0), "WHILE carries 0 values, but has 1 outputs"),
    "block inputs": (in_branch(0, inputs=()), "has 0 inputs and 1 outputs, but IF needs 1 and 1"),
    "block outputs": (in_branch(0, outputs=()), "has 1 inputs and 0 outputs, but IF needs 1 and 1 .*block 0"),
    "out of its block": (in_branch(1, outputs=(4,)), "%4 'then_out' is read before it is computed"),
    "out of the loop": (in_branch(1, outputs=(9,)), "%9 'body_out' is read before it is computed"),
    "after the branch": (replace_instruction(structured(), 2, args=(Ref(4),)), "%4 'then_out' is read before"),
    "nested place": (loop(outputs=(12,)), "instruction 1, block 1, instruction 0"),
    "overlap": (replace_value(structured(), 9, offset=192), "%8 'body_in' and %9 'body_out' are in the same memory"),
    "overlap in part": (replace_value(structured(), 9, shape=(17,), offset=256), "%9 'body_out' and %10 'loop'"),
    "overlap across blocks": (replace_value(structured(), 10, offset=128), "%6 'cond_in' and %10 'loop'"),
}


@pytest.mark.parametrize(("program", "message"), CASES.values(), ids=CASES)
def test_a_broken_rule(program, message):
    with pytest.raises(ProgramError, match=message):
        verify(program)


def chain(*steps: tuple[int, tuple[int, ...]], shapes: dict[int, int], offsets: dict[int, int]) -> Program:
    """Kernels that each make a value of some bytes at an offset from others; the last value is the output."""
    count = len(steps)
    values = [value("x", (4,), StorageKind.INPUT, 0)]
    values += [value(f"v{i}", (shapes.get(i, 16),), StorageKind.ARENA, 0, offsets.get(i, 0)) for i in range(1, count)]
    values.append(value("y", (4,), StorageKind.OUTPUT, 0))
    calls = tuple(KernelCall(0, tuple(map(Ref, reads)), (made,)) for made, reads in steps)
    method = dynamic().methods[0]._replace(
        inputs=(Input("x", 0),), outputs=(Ref(count),), out_tree=LEAF, values=tuple(values), instructions=calls,
        symbols=(), guards=(), arenas=(1 << 20,),
    )  # fmt: skip
    return Program((method,), ("aten.op.default",), (), (), (), ())


def test_memory_is_used_again_when_a_value_is_dead():
    steps = [(1, (0,)), (2, (1,)), (3, (2,)), (4, (3,))]
    verify(chain(*steps, shapes={}, offsets={1: 0, 2: 64, 3: 0}))
    with pytest.raises(ProgramError, match="%1 'v1' and %2 'v2'"):
        verify(chain(*steps, shapes={}, offsets={1: 0, 2: 0, 3: 64}))


def test_an_alias_keeps_its_base_alive():
    steps = [(1, (0,)), (2, (1,)), (3, (0,)), (4, (2,))]
    program = chain(*steps, shapes={}, offsets={1: 0, 2: 64, 3: 0})
    verify(program)
    with pytest.raises(ProgramError, match="%1 'v1' and %3 'v3'"):
        verify(replace_value(program, 2, kind=StorageKind.ALIAS, at=1, offset=0))


def test_an_output_may_be_a_view_of_the_memory_that_is_made_for_it():
    program = replace_value(chain((1, (0,)), (2, (1,)), shapes={}, offsets={}), 1, kind=StorageKind.OUTPUT)
    verify(replace_value(program, 2, kind=StorageKind.ALIAS, at=1))


def test_what_a_loop_reads_lives_until_it_ends():
    """v1 is made before the loop and read at its start; the body's last value may not take its memory."""
    names = ("x", "v1", "cond_in", "cond_out", "body_in", "first", "last", "out")
    values = [value("x", (4,), StorageKind.INPUT, 0), value("v1", (4,), StorageKind.ARENA, 0, 0)]
    values += [value(n, (4,), StorageKind.ARENA, 0, 64 * i) for i, n in enumerate(names[2:-1], 1)]
    values.append(value("out", (4,), StorageKind.OUTPUT, 0))
    body = (KernelCall(0, (Ref(4), Ref(1)), (5,)), KernelCall(0, (Ref(5),), (6,)))
    blocks = (Block((2,), (3,), (KernelCall(0, (Ref(2),), (3,)),)), Block((4,), (6,), body))
    call = StructuredCall(Structure.WHILE, (0,), 1, blocks, (7,))
    program = replace_method(
        chain((1, (0,)), shapes={}, offsets={}), values=tuple(values), outputs=(Ref(7),),
        instructions=(KernelCall(0, (Ref(0),), (1,)), call),
    )  # fmt: skip
    verify(program)
    with pytest.raises(ProgramError, match="%1 'v1' and %6 'last'"):
        verify(replace_value(program, 6, offset=0))


def test_what_an_inner_loop_reads_lives_until_the_outer_one_ends():
    """v1 is made before two nested loops and read in the inner one alone."""
    reads = KernelCall(0, (Ref(4), Ref(1)), (5,))
    inner = StructuredCall(Structure.MAP, (3,), 0, (Block((4,), (5,), (reads,)),), (6,), 1)
    outer = StructuredCall(
        Structure.MAP, (2,), 0, (Block((3,), (7,), (inner, KernelCall(0, (Ref(6),), (7,)))),), (8,), 1
    )
    values = [value("x", (4,), StorageKind.INPUT, 0)]
    values += [value(f"v{i}", (4,), StorageKind.ARENA, 0, 64 * i) for i in range(1, 8)]
    values.append(value("out", (4,), StorageKind.OUTPUT, 0))
    calls = (KernelCall(0, (Ref(0),), (1,)), KernelCall(0, (Ref(0),), (2,)), outer)
    base = chain((1, (0,)), shapes={}, offsets={})
    program = replace_method(base, values=tuple(values), outputs=(Ref(8),), instructions=calls)
    verify(program)
    with pytest.raises(ProgramError, match="%1 'v1' and %7 'v7'"):
        verify(replace_value(program, 7, offset=64))


def test_plans_of_the_planner_are_sound_and_altered_ones_are_not():
    source = random.Random(0)
    for _ in range(30):
        count = source.randrange(3, 40)
        steps = [(i, tuple(source.randrange(max(0, i - 6), i) for _ in range(2))) for i in range(1, count + 1)]
        shapes = {i: source.choice([1, 16, 17, 100]) for i in range(1, count)}
        ends = {i: max([made for made, reads in steps if i in reads], default=i) for i in range(1, count)}
        blocks = [Lifetime(4 * shapes[i], i, ends[i]) for i in range(1, count)]
        offsets, _ = plan_memory(blocks)
        verify(chain(*steps, shapes=shapes, offsets=dict(enumerate(offsets, 1))))
        one = source.randrange(1, count)
        alive = [i for i in range(1, count) if i != one and i <= ends[one] and one <= ends[i]]
        if alive:
            offsets[one - 1] = offsets[source.choice(alive) - 1]
            with pytest.raises(ProgramError, match="in the same memory at the same time"):
                verify(chain(*steps, shapes=shapes, offsets=dict(enumerate(offsets, 1))))


def test_a_symbol_can_be_the_value_of_a_number():
    inputs = (*dynamic().methods[0].inputs, Input("n", -1))
    symbols = (dynamic().methods[0].symbols[0], Symbol("n", 0, None, 1, -1))
    verify(replace_method(dynamic(), inputs=inputs, symbols=symbols, in_tree=in_tree(2)))


def test_delegates_in_blocks_are_checked():
    with pytest.raises(ProgramError, match=r"no delegate 0, only 0 .*instruction 1, block 0, instruction 0"):
        verify(in_branch(0, instructions=(DelegateCall(0, (3,), (4,)),)))


def test_a_constant_size_that_is_an_expression_is_allowed():
    verify(replace_value(dynamic(), 1, shape=(const(2), 3)))
