"""Whether `load` and `inspect` take time and memory linear in the file, for forged files made to be slow or large.

    python -m benchmarks.bombs [FILES]

Every kind of bomb is made in several sizes, each file is loaded and printed in a process of its own, and the worst of
every kind is shown: seconds a megabyte, and memory over the file's own size. Both should not grow with the size.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator

from delegate.errors import DelegateError
from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Op, Symbol
from delegate.program.file import assemble, load
from delegate.program.model import (
    Block,
    Constant,
    DelegateSpec,
    Input,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    Storage,
    StorageKind,
    Structure,
    StructuredCall,
    Tree,
    Value,
)
from delegate.program.text import program_lines

SIZES = (250, 1000, 4000, 16000)
LEAF = Tree("leaf")
NONE = Storage(StorageKind.ARENA, 0, 0)


def _method(count_in: int = 0, **fields: object) -> Program:
    """A program of one method."""
    in_tree = Tree("tuple", (), (Tree("tuple", (), (LEAF,) * count_in), Tree("dict")))
    given: dict[str, object] = {"name": "forward", "inputs": (), "outputs": (), "in_tree": in_tree}
    given |= {"out_tree": Tree("tuple"), "values": (), "instructions": (), "arenas": (64,)}
    given |= fields
    operators = ("aten.add.Tensor", "x" * 1000)
    return Program((MethodDefinition(**given),), operators, (), (), (), ())  # type: ignore[arg-type]


def _values(count: int, shape: tuple[object, ...], name: str = "v") -> tuple[Value, ...]:
    return tuple(Value(name, DType.float32, shape, NONE) for _ in range(count))  # type: ignore[arg-type]


def _chain(length: int, op: Op = Op.ADD) -> Expr:
    """An expression of many nodes: balanced, so that it is not deep."""
    if length <= 1:
        return Expr(Op.SYMBOL, 0)
    return Expr(op, 0, (_chain(length // 2, op), _chain(length - length // 2, op)))


def _share_layers(doublings: int, op: Op) -> Expr:
    """An expression of few parts that each occur twice in the next."""
    made = Expr(Op.SYMBOL, 0)
    for _ in range(doublings):
        made = Expr(op, 0, (made, made))
    return made


S0 = (Symbol("s0", 0, 100, 0, 0),)


def one_expression_in_many_sizes(n: int) -> Program:
    return _method(1, values=_values(n, (_chain(2000),) * 4), symbols=S0, inputs=(Input("x", 0),))


def shared_parts(n: int) -> Program:
    return _method(1, values=_values(n, (_share_layers(11, Op.MUL),)), symbols=S0, inputs=(Input("x", 0),))


def many_expressions(n: int) -> Program:
    sizes = tuple(Expr(Op.ADD, 0, (_chain(32), Expr(Op.CONST, i))) for i in range(n))
    return _method(1, values=_values(n // 60, sizes[:60]), symbols=S0, outputs=sizes)


def many_dimensions(n: int) -> Program:
    return _method(values=_values(4, (2**62,) * n))


def constant_of_many_dimensions(n: int) -> Program:
    return _method()._replace(constants=(Constant("c", DType.int8, (2**60,) * n, 0),), segments=(b"",))


def long_name(n: int) -> Program:
    return _method(values=_values(1, (1,), "\U0001f600" * n * 100))


def long_source(n: int) -> Program:
    values = _values(n, (1,))
    calls = tuple(KernelCall(1, (), (i,), 0) for i in range(n))
    return _method(values=values, instructions=calls, sources=("s" * 60000,), arenas=(256,))


def long_text(n: int) -> Program:
    values = _values(n, (1,))
    calls = tuple(KernelCall(1, ("t" * 60000,) * 8, (i,)) for i in range(n))
    return _method(values=values, instructions=calls, arenas=(256,))


def symbols_and_instructions(n: int) -> Program:
    values = tuple(Value("v", DType.int64, (), NONE) for _ in range(n))
    symbols = tuple(Symbol(f"u{i}", 0, None, value=i % n, dim=-1) for i in range(min(n, 4096)))
    calls = tuple(KernelCall(0, (Expr(Op.SYMBOL, i % len(symbols)),), (i,)) for i in range(n))
    return _method(values=values, symbols=symbols, instructions=calls)


def all_alive(n: int) -> Program:
    values = tuple(Value("v", DType.float32, (16,), Storage(StorageKind.ARENA, 0, 64 * i)) for i in range(n))
    calls = tuple(KernelCall(0, (), (i,)) for i in range(n))
    return _method(
        values=values, instructions=(*calls, KernelCall(0, (tuple(map(Ref, range(n))),), ())), arenas=(64 * n,)
    )


def nested_loops(n: int) -> Program:
    values = tuple(Value("v", DType.bool, (), Storage(StorageKind.ARENA, 0, 64 * i)) for i in range(n + 200))
    inner: tuple[object, ...] = tuple(KernelCall(0, (Ref(0),), (i + 100,)) for i in range(n))
    for depth in range(60):
        block = Block((), (), inner)  # type: ignore[arg-type]
        inner = (StructuredCall(Structure.MAP, (), 0, (block,), ()),)
        del depth
    return _method(values=values, instructions=inner, arenas=(64 * (n + 200),))


def many_leaves(n: int) -> Program:
    return _method(n, inputs=tuple(Input("x", -1, i) for i in range(n)))


def wide_tree(n: int) -> Program:
    return _method(
        out_tree=Tree("tuple", (), (Tree("dict", tuple(map(str, range(8))), (Tree("tuple"),) * 8),) * (n // 8))
    )


def many_arguments(n: int) -> Program:
    return _method(values=_values(1, (1,)), instructions=(KernelCall(0, (((), 1.5, 1j, None, True) * n,), (0,)),))


def nested_json(n: int) -> Program:
    specs = {"a": [[[]]] * n}
    return _method()._replace(delegates=(DelegateSpec("d", "b", 0, specs),), segments=(b"",))


def delegates_of_one_fallback(n: int) -> Program:
    kept = _method(values=_values(n, ())).methods[0]
    specs = tuple(DelegateSpec("d", "b", 0, {}, 0) for _ in range(n))
    return _method()._replace(delegates=specs, segments=(b"",), fallbacks=(kept,))


def large_products(n: int) -> Program:
    sizes = tuple(_share_layers(i % 10, Op.MUL) for i in range(40))
    return _method(
        1, values=_values(n // 8, sizes), symbols=(Symbol("s0", 2**62, None, 0, 0),), inputs=(Input("x", 0),)
    )


def empty_methods(n: int) -> Program:
    method = _method().methods[0]
    return _method()._replace(methods=tuple(method._replace(name=str(i)) for i in range(n // 8)))


BOMBS: tuple[Callable[[int], Program], ...] = (
    one_expression_in_many_sizes, shared_parts, many_expressions, many_dimensions, constant_of_many_dimensions,
    long_name, long_source, long_text, symbols_and_instructions, all_alive, nested_loops, many_leaves, wide_tree,
    many_arguments, nested_json, delegates_of_one_fallback, large_products, empty_methods,
)  # fmt: skip


def bombs(count: int) -> Iterator[tuple[str, bytes]]:
    """The name and the bytes of so many files; what the writer refuses is written past its checks."""
    made = 0
    step = 0
    while made < count:
        for bomb in BOMBS:
            size = int(SIZES[step % len(SIZES)] * (1 + 0.1 * (step // len(SIZES))))
            try:
                data = b"".join(assemble(bomb(size)))
            except DelegateError:
                data = b"".join(unchecked(bomb(size)))
            yield bomb.__name__, data
            made += 1
            if made == count:
                return
        step += 1


def unchecked(program: Program) -> Iterator[memoryview | bytes]:
    """The pieces of a file that the limits forbid."""
    from delegate.program import encode

    kept = encode.check_name, encode.read_exprs, encode.MAX_SPECS
    try:
        encode.check_name = lambda *_: None  # type: ignore[assignment]
        encode.read_exprs = lambda *_: ((), 0)  # type: ignore[assignment]
        encode.MAX_SPECS = 1 << 60
        yield from list(assemble(program))
    finally:
        encode.check_name, encode.read_exprs, encode.MAX_SPECS = kept


def measured(data: bytes) -> tuple[float, int]:
    """Seconds of the processor and bytes of memory that loading and printing take, in a child."""
    read, write = os.pipe()
    gc.freeze()  # else the child walks all that the parent holds
    child = os.fork()
    if child == 0:
        os.close(read)
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            for line in program_lines(load(data)):
                len(line)
        except DelegateError:
            pass
        took = time.process_time() - start
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        os.write(write, f"{took} {grown}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        seconds, memory = pipe.read().split()
    os.waitpid(child, 0)
    return float(seconds), int(memory)


def main() -> None:
    """Measure, and print a row per kind."""
    worst: dict[str, tuple[float, float, int]] = {}
    for name, data in bombs(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
        seconds, memory = measured(data)
        rate, extra = seconds / max(len(data) / 1e6, 0.1), memory - 10 * len(data)
        before = worst.get(name, (0.0, float("-inf"), 0))
        worst[name] = max(rate, before[0]), max(extra / 1e6, before[1]), max(len(data), before[2])
    print(f"{'bomb':<32}{'s / MB':>8}{'MB over 10 x':>14}{'largest file':>14}")
    for name, (rate, extra, size) in sorted(worst.items(), key=lambda item: -item[1][0]):
        print(f"{name:<32}{rate:>8.2f}{extra:>14.1f}{size:>14,}")


if __name__ == "__main__":
    main()
