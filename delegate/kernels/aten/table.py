"""The table over torch's kernels, whose rows are made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload, OpOverloadPacket

from delegate.kernels.half_precision import Array
from delegate.kernels.table import ANY, COMPLEX, Kernel, KernelTable
from delegate.program.dtypes import DType


def to_torch(value: Any) -> Any:
    """Convert an array to a tensor over its memory, a `DType` to torch's, lists recursively, others not at all."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value if value.flags.writeable else _writable(value))
    if isinstance(value, list | tuple):
        return [to_torch(v) for v in value]
    return getattr(torch, value.name) if isinstance(value, DType) else value


def to_torch_with_bfloat16(value: Any) -> Any:
    """Convert like `to_torch`, where arrays of uint16 are bits of bfloat16."""
    if isinstance(value, np.ndarray) and value.dtype == np.uint16:
        return to_torch(value).view(torch.bfloat16)
    if isinstance(value, list | tuple):
        return [to_torch_with_bfloat16(v) for v in value]
    return to_torch(value)


class _WritableInterface:
    """An array interface that declares the memory of a read-only array writable."""

    def __init__(self, array: Array) -> None:
        self.array = array  # keeps the memory alive
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _writable(array: Array) -> Array:
    """Return a writable array over read-only memory, because torch has no read-only tensors. Kernels do not write."""
    return np.asarray(_WritableInterface(array))


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

    It never writes to its arguments, except that for an operator that writes, `out` ends with the new values.

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


# These read or write files, which kernels must not do.
_BEYOND_MEMORY = frozenset({"aten.from_file.default"})
_INDEX = "aten.index.Tensor"  # the sizes of its results depend on data for masks, not for positions


class AtenTable(KernelTable):
    """All operators with a CPU kernel in torch, including custom ones, on every dtype.

    Torch itself rejects a dtype when a program runs, as in eager.
    """

    torch_free = False

    def seed(self, seed: int) -> None:
        """Seed torch's global generator, so that the numbers are the same as in eager."""
        torch.manual_seed(seed)

    def find(self, op: str, dtypes: Iterable[DType], *, allocates: bool = False) -> Kernel | None:
        """Return torch's kernel of an operator, or None.

        It is None for operators whose result sizes depend on data, that return no tensor, or that are in-place
        operators of aten. It is also None if `allocates` is set, or if bfloat16 (arrays of its bits in uint16) occurs
        with uint16.
        """
        types = frozenset(dtypes)
        if (
            allocates
            or types >= {DType.bfloat16, DType.uint16}
            or op not in self
            or (op == _INDEX and DType.bool in types)
        ):
            return None
        convert = to_torch_with_bfloat16 if DType.bfloat16 in types else to_torch
        function = _function(op, not types.isdisjoint(COMPLEX))
        return Kernel(op, function, ANY, is_view=False, library=self.library, convert=convert)

    def rows(self, op: str) -> tuple[Kernel, ...]:
        """Return the kernel of an operator, which accepts all dtypes."""
        kernel = self.find(op, ())
        return () if kernel is None else (kernel,)

    def __contains__(self, op: object) -> bool:
        operator = _operator(str(op))
        return operator is not None and _is_kernel(operator)


TABLE = AtenTable("aten")


def _operator(name: str) -> OpOverload | None:
    """Return the operator "namespace.name.overload"; None if this process has none."""
    parts = name.split(".")
    if len(parts) != 3:
        return None
    namespace, packet_name, overload = parts
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    operator = getattr(packet, overload, None) if isinstance(packet, OpOverloadPacket) else None
    return operator if isinstance(operator, OpOverload) else None


def _is_kernel(op: OpOverload) -> bool:
    return (
        str(op) not in _BEYOND_MEMORY
        and (_is_pure(op) or _writes_to_tensors(op))
        and (torch.Tag.dynamic_output_shape not in op.tags or str(op) == _INDEX)
        and torch._C._dispatch_has_computed_kernel_for_dispatch_key(op._name, "CPU")
    )


def _is_pure(op: OpOverload) -> bool:
    returns = op._schema.returns
    gives_tensors = bool(returns) and all(str(r.type) in ("Tensor", "List[Tensor]") for r in returns)
    return gives_tensors and not op._schema.is_mutable


def _writes_to_tensors(op: OpOverload) -> bool:
    """Return if a custom operator's writes can go to copies: it writes to single tensors and does not return them."""
    written = [a for a in op._schema.arguments if a.is_write]
    returns = op._schema.returns
    plain = all(str(a.type) in ("Tensor", "Optional[Tensor]") for a in (*written, *returns))
    return bool(written) and plain and op.namespace != "aten" and all(r.alias_info is None for r in returns)


@cache
def _function(name: str, is_complex: bool) -> Callable[..., None]:
    op = _operator(name)
    assert op is not None
    return make_kernel(op, lazily=is_complex)
