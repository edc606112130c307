"""Kernel functions of torch's operators that write into existing memory, through `out=` overloads or with a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload

# The memory of the result determines these arguments, so `out=` overloads may lack them.
_IMPLIED_BY_OUT = frozenset({"dtype", "layout", "device", "pin_memory"})


def out_variant(op: OpOverload) -> OpOverload | None:
    """Return the equivalent `out=` overload, found by comparing schemas; None if torch has none."""
    arguments = {(a.name, str(a.type)) for a in op._schema.arguments}
    packet: Any = op._overloadpacket
    candidates: list[OpOverload] = [getattr(packet, name) for name in packet.overloads()]
    for candidate in candidates:
        accepted = {(a.name, str(a.type)) for a in candidate._schema.arguments if not a.is_out}
        same = accepted <= arguments and {argument for argument, _ in arguments - accepted} <= _IMPLIED_BY_OUT
        if same and len(_out_names(candidate)) == len(op._schema.returns):
            return candidate
    return None


def make_kernel(op: OpOverload, *, lazily: bool = False) -> Callable[..., None]:
    """Return a kernel function of an operator: `function(*args, out=...)` on tensors, args in the order of the schema.

    It never writes to its arguments. For an operator that writes, `out` ends with the new values.

    Args:
        op: the operator.
        lazily: if the result may be conjugated by a bit of the tensor instead of in memory. Torch does this with
            complex numbers even with `out`, so the operator is called without `out`.
    """
    if op._schema.is_mutable:
        return _mutable_kernel(op)
    variant = None if lazily else out_variant(op)
    return _functional_kernel(op) if variant is None else _out_kernel(op, variant)


def _out_names(op: OpOverload) -> list[str]:
    return [a.name for a in op._schema.arguments if a.is_out]


def _out_kernel(op: OpOverload, variant: OpOverload) -> Callable[..., None]:
    names = _out_names(variant)
    taken = [a.name for a in variant._schema.arguments if not a.kwarg_only]
    if names == ["out"] and [a.name for a in op._schema.arguments] == taken and not _gives_list(op):
        return variant  # both take the same arguments
    split = _splitter(op, {a.name for a in variant._schema.arguments})
    many, functional = _gives_list(op), _functional_kernel(op)

    def function(*args: Any, out: Any) -> None:
        results = _parts(out)
        if not many and (len(results) < len(names) or any(result is None for result in results)):
            functional(*args, out=out)
            return
        positional, keywords = split(args)
        keywords.update({names[0]: list(results)} if many else zip(names, results, strict=True))
        variant(*positional, **keywords)

    return function


def _functional_kernel(op: OpOverload) -> Callable[..., None]:
    split = _splitter(op, {a.name for a in op._schema.arguments})
    masks = [i for i, a in enumerate(op._schema.arguments) if a.name == "output_mask"]

    def function(*args: Any, out: Any) -> None:
        positional, keywords = split(args)
        targets, results = _parts(out), _parts(op(*positional, **keywords))
        if len(targets) < len(results):  # a program lacks results that the arguments exclude
            present = args[masks[0]] if masks else [result is not None for result in results]
            results = [result for result, there in zip(results, present, strict=True) if there]
        for target, result in zip(targets, results, strict=True):
            if target is not None:
                target.copy_(result)

    return function


def _mutable_kernel(op: OpOverload) -> Callable[..., None]:
    split = _splitter(op, {a.name for a in op._schema.arguments})
    written = [i for i, a in enumerate(op._schema.arguments) if a.is_write]

    def function(*args: Any, out: Any) -> None:
        copies = {i: args[i].clone() for i in written if args[i] is not None}
        positional, keywords = split(tuple(copies.get(i, arg) for i, arg in enumerate(args)))
        results = op(*positional, **keywords)
        returned = () if results is None else _parts(results)
        for target, result in zip(_parts(out), (*returned, *copies.values()), strict=True):
            target.copy_(result)

    return function


def _splitter(op: OpOverload, taken: Iterable[str]) -> Callable[[tuple[Any, ...]], tuple[Any, dict[str, Any]]]:
    """Return a function that splits all arguments into positional and keyword-only arguments; it drops unknown ones."""
    arguments = op._schema.arguments
    first = sum(not a.kwarg_only for a in arguments)
    keywords = [(i, a.name) for i, a in enumerate(arguments) if a.kwarg_only and a.name in set(taken)]
    return lambda args: (args[:first], {name: args[i] for i, name in keywords})


def _gives_list(op: OpOverload) -> bool:
    returns = op._schema.returns
    return len(returns) == 1 and isinstance(returns[0].type, torch.ListType)


def _parts(results: Any) -> Any:
    return results if isinstance(results, tuple | list) else (results,)
