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


def into_memory(op: OpOverload, *, lazily: bool = False) -> Callable[..., None]:
    """A kernel function of the operator: `function(*args, out=...)` with tensors, args in the order of its schema.

    It never writes to its arguments: of an operator that does, `out` ends with the new values.

    Args:
        op: the operator.
        lazily: the result may be conjugated by a bit of the tensor instead of in memory, as torch does with complex
            numbers even where it is given `out`: it is called without.
    """
    if op._schema.is_mutable:
        return _calling_mutable(op)
    variant = None if lazily else out_variant(op)
    return _calling_functional(op) if variant is None else _calling_out(op, variant)


def _out_names(op: OpOverload) -> list[str]:
    return [a.name for a in op._schema.arguments if a.is_out]


def _calling_out(op: OpOverload, variant: OpOverload) -> Callable[..., None]:
    names = _out_names(variant)
    taken = [a.name for a in variant._schema.arguments if not a.kwarg_only]
    if names == ["out"] and [a.name for a in op._schema.arguments] == taken and not _gives_list(op):
        return variant  # it is called just so
    split = _splitter(op, {a.name for a in variant._schema.arguments})
    many, functional = _gives_list(op), _calling_functional(op)

    def function(*args: Any, out: Any) -> None:
        results = _parts(out)
        if not many and (len(results) < len(names) or any(result is None for result in results)):
            functional(*args, out=out)
            return
        positional, keywords = split(args)
        keywords.update({names[0]: list(results)} if many else zip(names, results, strict=True))
        variant(*positional, **keywords)

    return function


def _calling_functional(op: OpOverload) -> Callable[..., None]:
    split = _splitter(op, {a.name for a in op._schema.arguments})
    masks = [i for i, a in enumerate(op._schema.arguments) if a.name == "output_mask"]

    def function(*args: Any, out: Any) -> None:
        positional, keywords = split(args)
        targets, results = _parts(out), _parts(op(*positional, **keywords))
        if len(targets) < len(results):  # a program holds only those that the arguments do not leave out
            wanted = args[masks[0]] if masks else [result is not None for result in results]
            results = [result for result, there in zip(results, wanted, strict=True) if there]
        for target, result in zip(targets, results, strict=True):
            if target is not None:
                target.copy_(result)

    return function


def _calling_mutable(op: OpOverload) -> Callable[..., None]:
    split = _splitter(op, {a.name for a in op._schema.arguments})
    written = [i for i, a in enumerate(op._schema.arguments) if a.is_write]

    def function(*args: Any, out: Any) -> None:
        copies = {i: args[i].clone() for i in written if args[i] is not None}
        positional, keywords = split(tuple(copies.get(i, arg) for i, arg in enumerate(args)))
        results = op(*positional, **keywords)
        given = () if results is None else _parts(results)
        for target, result in zip(_parts(out), (*given, *copies.values()), strict=True):
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
