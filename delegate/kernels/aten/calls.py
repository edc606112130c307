"""How an operator of torch is called into memory that is given: through its `out=` overload, or with a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload

# What the memory of the result says, so that `out=` overloads may leave it out of their arguments.
_SAID_BY_OUT = frozenset({"dtype", "layout", "device", "pin_memory"})


def out_variant(op: OpOverload) -> OpOverload | None:
    """The `out=` overload that computes the same, found by comparing schemas; None where torch has none."""
    wanted = {(a.name, str(a.type)) for a in op._schema.arguments}
    packet: Any = op._overloadpacket
    candidates: list[OpOverload] = [getattr(packet, name) for name in packet.overloads()]
    for candidate in candidates:
        given = {(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out}
        same = given <= wanted and {argument for argument, _ in wanted - given} <= _SAID_BY_OUT
        if same and len(_out_names(candidate)) == len(op._schema.returns):
            return candidate
    return None


def into_memory(op: OpOverload) -> Callable[..., None]:
    """A kernel function of the operator: `function(*args, out=...)` with tensors, args in the order of its schema."""
    variant = out_variant(op)
    return _calling_functional(op) if variant is None else _calling_out(op, variant)


def _out_names(op: OpOverload) -> list[str]:
    return [a.name for a in op._schema.arguments if a.is_out]


def _calling_out(op: OpOverload, variant: OpOverload) -> Callable[..., None]:
    taken = {a.name for a in variant._schema.arguments}
    split = _splitter(op, taken)
    names = _out_names(variant)
    many = _gives_list(op)

    def function(*args: Any, out: Any) -> None:
        positional, keywords = split(args)
        if many:
            keywords[names[0]] = list(_parts(out))
        else:
            keywords.update(zip(names, _parts(out), strict=True))
        variant(*positional, **keywords)

    return function


def _calling_functional(op: OpOverload) -> Callable[..., None]:
    split = _splitter(op, {a.name for a in op._schema.arguments})

    def function(*args: Any, out: Any) -> None:
        positional, keywords = split(args)
        for target, result in zip(_parts(out), _parts(op(*positional, **keywords)), strict=True):
            target.copy_(result)

    return function


def _splitter(op: OpOverload, taken: Iterable[str]) -> Callable[[tuple[Any, ...]], tuple[Any, dict[str, Any]]]:
    """Parts all arguments of the operator into positional and keyword-only ones; those not taken are left out."""
    arguments = op._schema.arguments
    first = sum(not a.kwarg_only for a in arguments)
    keywords = [(i, a.name) for i, a in enumerate(arguments) if a.kwarg_only and a.name in set(taken)]
    return lambda args: (args[:first], {name: args[i] for i, name in keywords})


def _gives_list(op: OpOverload) -> bool:
    returns = op._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


def _parts(results: Any) -> Any:
    return results if isinstance(results, tuple | list) else (results,)
