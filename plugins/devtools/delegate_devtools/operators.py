"""Torch's facts about an operator: its membership in core ATen, its other forms, and its decomposition."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

import delegate.edge.conversations  # noqa: F401 - registers operators of ours
from delegate.edge.decompose import core_decompositions
from delegate.edge.torch_private import (
    WITHOUT_LIBRARIES,
    FakeTensorMode,
    OpOverload,
    OpOverloadPacket,
    is_composite,
    schema_of,
)

_NATIVE = frozenset({"aten", "prims", "quantized_decomposed"})

# Shapes to try an operator on: images, matrices, sequences, vectors, volumes.
_SHAPES = ((1, 4, 8, 8), (4, 4), (2, 4, 4), (4,), (1, 4, 8, 8, 8))
_VECTORS = frozenset({"bias", "running_mean", "running_var", "mean", "var", "input_lengths", "target_lengths"})
_INDICES = frozenset({"index", "indices", "offsets", "target"})
_LISTS = {"kernel_size": 2, "output_size": 4, "pad": 1, "padding": 1, "repeats": 1, "shifts": 1}
_NUMBERS = {"dim": 0, "dim0": 0, "dim1": -1, "num_groups": 2, "num_classes": 4, "group": 2, "use_input_stats": True}


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator that torch has in this process.

    Args:
        name: e.g. "aten.add.Tensor".
        native: torch's own, not a custom one.
        core: torch tags it as core ATen.
        compound: torch decomposes it on the way to core ATen.
        view: its result shares memory with an argument.
        out: its `out=` overload; empty if it has none.
        in_place: its in-place form; empty if it has none.
    """

    name: str
    native: bool
    core: bool
    compound: bool
    view: bool
    out: str
    in_place: str


def operator(name: str) -> Operator | None:
    """Return torch's facts about an operator; None if this process has none of that name."""
    op = _overload(name)
    if op is None:
        return None
    arguments = schema_of(op).arguments
    return Operator(
        name=str(op),
        native=op.namespace in _NATIVE,
        core=is_core(name),
        compound=is_compound(name),
        view=any(a.alias_info is not None and not a.alias_info.is_write for a in arguments),
        out=_relative(op, op.overloadpacket, "out"),
        in_place=_relative(op, getattr(getattr(torch.ops, op.namespace), f"{op.overloadpacket.__name__}_", None), ""),
    )


def is_core(name: str) -> bool:
    """Return true if torch tags the operator as core ATen."""
    op = _overload(name)
    return op is not None and torch.Tag.core in op.tags


def is_compound(name: str) -> bool:
    """Return true if torch decomposes the operator on the way to core ATen."""
    op = _overload(name)
    return op is not None and (op in core_decompositions() or is_composite(op))


def functional_operators() -> Iterator[str]:
    """Yield the names of torch's own operators that write to no argument and return tensors, in alphabetical order."""
    for qualified in sorted(torch._C._dispatch_get_all_op_names()):  # torch has no public name for it
        namespace, _, rest = qualified.partition("::")
        name = f"{namespace}.{rest}" if "." in rest else f"{namespace}.{rest}.default"
        op = _overload(name) if namespace == "aten" else None
        if (
            op is not None
            and not schema_of(op).is_mutable
            and any("Tensor" in str(r.type) for r in schema_of(op).returns)
        ):
            yield name


def decomposition(name: str) -> tuple[str, ...]:
    """Return the core operators that a compound one becomes on example inputs, each once; empty if no inputs fit."""
    op = _overload(name)
    return () if op is None else next((operators for args in _examples(op) if (operators := _trace(op, args))), ())


def _overload(name: str) -> OpOverload | None:
    parts = name.split(".")
    if len(parts) != 3:
        return None
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    overload = getattr(packet, parts[2], None) if isinstance(packet, OpOverloadPacket) else None
    return overload if isinstance(overload, OpOverload) else None


def _relative(op: OpOverload, packet: Any, kind: str) -> str:
    """Return the overload with the operator's arguments that writes to one: `out`, or the first one for kind ""."""
    own = [(a.name, str(a.type)) for a in schema_of(op).arguments]
    for name in getattr(packet, "overloads", tuple)():
        arguments = schema_of(getattr(packet, name)).arguments
        written = [a for a in arguments if a.is_write]
        others = [(a.name, str(a.type)) for a in arguments if not (kind and a.is_out)]
        if written and all(a.is_out for a in written) == bool(kind) and set(others) <= set(own):
            return str(getattr(packet, name))
    return ""


def _trace(op: OpOverload, args: list[Any]) -> tuple[str, ...]:
    """Return the operators that make_fx traces; empty if the operator does not accept these arguments."""
    logging.disable(logging.CRITICAL)  # torch logs every failure of a fake tensor
    try:
        with WITHOUT_LIBRARIES, FakeTensorMode() as mode, torch.no_grad():
            values = [_fake(mode, a) for a in args]
            tensors = [a for a in values if isinstance(a, torch.Tensor)]
            graph = make_fx(lambda *_: op(*values), decomposition_table=dict(core_decompositions()))(*tensors).graph
    except Exception:
        return ()
    finally:
        logging.disable(logging.NOTSET)
    return tuple(dict.fromkeys(str(n.target) for n in graph.nodes if isinstance(n.target, OpOverload)))


def _fake(mode: FakeTensorMode, arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return mode.from_tensor(arg)
    return [_fake(mode, a) for a in arg] if isinstance(arg, list) else arg


def _examples(op: OpOverload) -> Iterator[list[Any]]:
    """Yield example arguments of the operator, according to the types and names in its schema."""
    arguments = [a for a in schema_of(op).arguments if not a.kwarg_only]
    for shape, dtype in product(_SHAPES, (torch.float32, torch.bool)):
        yield [_example(a, shape, dtype) for a in arguments]


def _example(argument: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    kind, name = str(argument.type), argument.name
    if argument.has_default_value():
        return argument.default_value
    if kind.startswith("Optional") and name not in _LISTS:
        return None
    if "List[Tensor]" in kind:
        return [torch.empty(shape, dtype=dtype)] * 2
    if "Tensor" in kind:
        own = shape[-1:] if name in _VECTORS else shape
        return torch.zeros(own, dtype=torch.int64 if name in _INDICES else dtype)
    if "List" in kind:
        spatial = max(1, len(shape) - 2)
        return [_LISTS[name]] * spatial if name in _LISTS else [shape[-1]] if "normalized" in name else list(shape)
    return _NUMBERS.get(name, {"float": 0.5, "number": 2, "bool": False, "str": "none"}.get(kind, 1))
