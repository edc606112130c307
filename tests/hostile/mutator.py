"""Forged program files: a sound program with a few things changed, and the checksums made right again."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Op, Symbol, operands
from delegate.program.file import assemble
from delegate.program.model import (
    Program,
    Ref,
    Storage,
    StorageKind,
    Structure,
    Tree,
)
from tests.support import layout

INTS = (0, 1, -1, 2, 3, -2, 7, 64, 100, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, -(2**62), 2**63 - 1, -(2**63))
FLOATS = (0.0, -1.0, 0.5, 1e308, -1e308, float("inf"), float("nan"), 1e-320)
TEXTS = ("", "x", "none", "sum", "\x1b[31m", "\u202e", "x" * 2000, "aten.add.Tensor", "{}", "0")
_MOST_CHANGES = 3


def forged(seeds: list[bytes], programs: list[Program], number: int) -> bytes:
    """The forged file of a number: the same every time. Some are empty, for what cannot be written."""
    source = random.Random(number)
    chosen = source.randrange(len(seeds))
    if source.random() < 0.15:
        return _changed_bytes(seeds[chosen], source)
    try:
        return b"".join(assemble(changed(programs[chosen], source)))
    except Exception:  # what the writer refuses, a reader cannot be given
        return b""


def _changed_bytes(data: bytes, source: random.Random) -> bytes:
    """Some words of the tables changed."""
    tables = bytearray(layout.tables(data))
    for _ in range(source.choice((1, 1, 2, 4, 8))):
        at = source.randrange(len(tables) - 8)
        kind = source.choice("BHIQ")
        size = struct.calcsize(kind)
        value = source.choice((0, 1, 2, 4, 255, 2**15, 2**31, 2**32 - 1, 2**62, len(tables), source.getrandbits(64)))
        struct.pack_into(f"<{kind}", tables, at, value % 2 ** (8 * size))
    return layout.with_tables(data, bytes(tables))


def changed(program: Program, source: random.Random) -> Program:
    """The program with one to three of its parts changed, anywhere."""
    for _ in range(source.randint(1, _MOST_CHANGES)):
        program = _change(program, source)
    return program


def _change(node: Any, source: random.Random) -> Any:
    """The node with one part of it changed: itself, or, mostly, something in it."""
    parts = _parts(node)
    if not parts or source.random() < 0.03:
        return _other(node, source)
    name = source.choice(parts)
    if isinstance(node, tuple) and not hasattr(node, "_fields"):
        if source.random() < 0.1:
            return _rearranged(node, source)
        i = source.randrange(len(node))
        return (*node[:i], _change(node[i], source), *node[i + 1 :])
    new = _change(getattr(node, name), source)
    if hasattr(node, "_replace"):
        return node._replace(**{name: new})
    if isinstance(node, Storage):
        fields = {"kind": node.kind, "index": node.index, "offset": node.offset} | {name: new}
        return Storage(**fields)
    return (
        Ref(new)
        if isinstance(node, Ref)
        else Expr(*({"op": node.op, "value": node.value, "args": node.args} | {name: new}).values())
    )


def _parts(node: Any) -> list[str]:
    if isinstance(node, Program):
        return [
            *["methods"] * 12,
            "operators",
            "constants",
            "states",
            "delegates",
            "segments",
            "fallbacks",
            "on_fallback",
            "spaces",
        ]
    if hasattr(node, "_fields"):
        often = {"values": 5, "instructions": 8, "args": 5, "shape": 4, "storage": 3}
        return [f for f in node._fields for _ in range(often.get(f, 1)) if getattr(node, f) != ()]
    if isinstance(node, tuple):
        return ["item"] if node else []
    if isinstance(node, Storage):
        return ["kind", "index", "offset"]
    if isinstance(node, Expr):
        return ["op", "value", *["args"] * (4 * bool(node.args))]
    return ["index"] if isinstance(node, Ref) else []


def _rearranged(items: tuple[Any, ...], source: random.Random) -> tuple[Any, ...]:
    i, j = source.randrange(len(items)), source.randrange(len(items))
    how = source.randrange(4)
    if how == 0:
        return (*items[:i], *items[i + 1 :])
    if how == 1:
        return (*items[:i], items[j], *items[i:])
    swapped = list(items)
    swapped[i] = items[j]
    if how == 2:
        swapped[j] = items[i]
    return tuple(swapped)


def _other(node: Any, source: random.Random) -> Any:
    """Something else of the same kind, or of another where a file allows any."""
    for kind, make in _OTHERS:
        if isinstance(node, kind):
            return make(node, source)
    return node


def _near(node: int, source: random.Random) -> int:
    if source.random() < 0.5:
        return int(node + source.choice((-1, 1, 2, -2)))
    return source.choice(INTS) if source.random() < 0.6 else source.randrange(12)


def _argument(source: random.Random) -> Any:
    scalars = None, True, source.choice(INTS), source.choice(FLOATS), source.choice(TEXTS), 1j
    others = Ref(source.randrange(9)), source.choice(list(DType)), Expr(Op.SYMBOL, 0), _expr(source, 3)
    return source.choice((*scalars, *others, (), (source.choice(INTS),) * source.randrange(4)))


def _expr(source: random.Random, depth: int) -> Expr:
    op = source.choice(list(Op)) if depth else Op.CONST
    value = source.choice(FLOATS) if op is Op.FLOAT else source.choice(INTS) if op is Op.CONST else 0
    return Expr(op, value, tuple(_expr(source, depth - 1) for _ in range(operands(op))))


def _bytes(node: Any, source: random.Random) -> bytes:
    data = bytearray(node)
    for _ in range(source.choice((1, 4))):
        if data:
            data[source.randrange(len(data))] = source.choice((0, 1, 127, 128, 255))
    return bytes(data) if source.random() < 0.9 else bytes(data[: len(data) // 2])


def _any_of(kind: Any) -> Callable[[Any, random.Random], Any]:
    return lambda _, source: source.choice(list(kind))


_OTHERS: tuple[tuple[Any, Callable[[Any, random.Random], Any]], ...] = (
    (bool, lambda node, source: not node),
    (int, lambda node, source: _near(node, source) if source.random() < 0.9 else _argument(source)),
    (float, lambda node, source: source.choice(FLOATS) if source.random() < 0.9 else _argument(source)),
    (str, lambda node, source: source.choice(TEXTS)),
    (DType, _any_of(DType)),
    (StorageKind, _any_of(StorageKind)),
    (Structure, _any_of(Structure)),
    (Op, _any_of(Op)),
    (Ref, lambda node, source: _argument(source)),
    (Expr, lambda node, source: _expr(source, 3) if source.random() < 0.7 else 2),
    (Symbol, lambda node, source: node._replace(minimum=source.choice(INTS), maximum=source.choice((None, *INTS)))),
    (Tree, lambda node, source: Tree("tuple", (), (node,))),
    ((bytes, memoryview), _bytes),
    (dict, lambda node, source: {"outputs": [source.choice(INTS)], "x": source.choice(TEXTS)}),
    (tuple, lambda node, source: (*node, *node) if source.random() < 0.5 else ()),
    (type(None), lambda node, source: _argument(source)),
)
