"""Properties of a node of an edge graph: operator, tensors, shapes, dtypes, arguments, source line."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._ops import OpOverload
from torch.fx import Node

from delegate.program.dtypes import DType

_DTYPES: dict[torch.dtype, DType] = {
    getattr(torch, t.name): t for t in DType if isinstance(getattr(torch, t.name, None), torch.dtype)
}


_TORCH = os.path.dirname(torch.__file__) + os.sep  # frames in here are not the user's own

LONGEST_SIZE = 24  # characters of a size in messages

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)  # torch's numbers that depend on the inputs

META_CONSTANT = "constant"  # node.meta key of placeholders: True where the value never changes


def is_constant(node: Node) -> bool:
    """Return true if the node is the placeholder of a constant: edge sets `meta[META_CONSTANT]`."""
    return node.op == "placeholder" and bool(node.meta.get(META_CONSTANT))


def op_name(node: Node) -> str:
    """The operator's full name, e.g. "aten.add.Tensor"; of anything else the function's name."""
    if type(node.target) is OpOverload:
        return _overload_name(node.target)
    operator_ = overload(node)
    return getattr(node.target, "__name__", str(node.target)) if operator_ is None else _overload_name(operator_)


def overload(node: Node) -> OpOverload | None:
    """The operator that a node calls; None for control flow, getitem and arithmetic.

    A custom operator that writes to its arguments is called through torch's `auto_functionalized`: the node gives what
    the operator gives (None for nothing), then the new values of what it writes to.
    """
    target = node.args[0] if node.target is auto_functionalized else node.target
    return target if isinstance(target, OpOverload) else None


@cache
def _overload_name(target: OpOverload[..., Any]) -> str:
    """Kept, since torch builds the text anew every time and every check of every node asks for it."""
    return str(target)


def is_compute(node: Node) -> bool:
    """Return true if the node calls an operator on tensors; picking one of several results (getitem) does not count."""
    return node.op == "call_function" and node.target is not operator.getitem


def tensor(node: Node) -> torch.Tensor:
    """The fake tensor of a node that gives exactly one; raises KeyError or TypeError for another node."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{node.name} gives {type(value).__name__}, not one tensor")
    return value


def tensors(node: Node) -> tuple[torch.Tensor, ...]:
    """All fake tensors that a node gives, in order; empty for one that gives numbers."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, tuple | list):
        return tuple(v for v in value if isinstance(v, torch.Tensor))
    return ()


def symbolic_numbers(value: Any) -> list[Any]:
    """The symbolic numbers in what a node gives (its `meta["val"]`): itself, or sizes."""
    if isinstance(value, tuple | list):
        return [n for v in value for n in symbolic_numbers(v)]
    if isinstance(value, torch.Tensor):
        return [n for n in value.shape if isinstance(n, SYMBOLIC)] if value._has_symbolic_sizes_strides else []
    return [value] if isinstance(value, SYMBOLIC) else []


def results_used(node: Node) -> set[int]:
    """Return which results of a node with several are used, by position."""
    return {user.args[1] for user in node.users if user.target is operator.getitem}  # type: ignore[misc]


def dtype_of(dtype: torch.dtype) -> DType | None:
    """The project's name of a torch dtype, or None where programs cannot hold it."""
    return _DTYPES.get(dtype)


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of the project's."""
    result = getattr(torch, dtype.name)
    assert isinstance(result, torch.dtype)
    return result


def is_static(node: Node) -> bool:
    """Return true if all sizes that the node gives are plain integers."""
    return all(isinstance(s, int) for t in tensors(node) for s in t.shape)


def size(number: Any) -> int:
    """A size as a plain integer: of a symbolic one the value that it had while the model was exported, else 1."""
    if isinstance(number, int):
        return number
    return int(number.node.hint) if number.node.has_hint() else 1


def elements(value: torch.Tensor) -> int:
    """The number of elements of a fake tensor."""
    count = value.numel()
    return count if type(count) is int else math.prod(size(s) for s in value.shape)


def nbytes(node: Node) -> int:
    """Bytes of all tensors that a node gives."""
    return sum(elements(t) * t.element_size() for t in tensors(node))


def is_empty(node: Node) -> bool:
    """Return true if it gives a tensor that is used and holds nothing, whatever its dynamic sizes."""
    results = tensors(node)
    empty = {i for i, t in enumerate(results) if any(isinstance(s, int) and s == 0 for s in t.shape)}
    return bool(empty if len(results) == 1 else empty and empty & results_used(node))


def arguments(node: Node) -> dict[str, Any]:
    """All arguments by the names of the operator's schema, keyword-only ones and defaults included, in its order."""
    target = overload(node)
    if target is None:
        return dict(enumerate_names(node))
    positional = () if node.target is auto_functionalized else node.args
    result: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(positional):
            result[argument.name] = positional[position]
        elif argument.name in node.kwargs:
            result[argument.name] = node.kwargs[argument.name]
        else:
            result[argument.name] = argument.default_value if argument.has_default_value() else None
    return result


def decodes(node: Node) -> bool:
    """Return if a node of an exported program makes floats of quantized integers."""
    return "dequantize" in str(node.target)


def float_node(node: Node) -> str:
    """Return the name that a node of a quantized program has in the float program, for rules of `nodes`; else ""."""
    name = ""
    sources = node.meta.get("from_node")
    while sources:
        name, sources = sources[-1].name, sources[-1].from_node
    return name


def draws(node: Node) -> bool:
    """Return true if the node draws random numbers: operators with dropout do if it is not 0."""
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    return may_draw(arguments(node))


def may_draw(args: Mapping[str, Any]) -> bool:
    """Return true if an operator that torch marks as random is so with these arguments, by name."""
    if args.get("train", args.get("training", True)) is False:
        return False
    share = args.get("p") if "train" in args else args.get("dropout_p", args.get("dropout"))
    return share is None or share != 0


def enumerate_names(node: Node) -> Mapping[str, Any]:
    """Arguments of a function without a schema, by position."""
    return {**{str(i): a for i, a in enumerate(node.args)}, **node.kwargs}


def module_path(node: Node) -> str:
    """The path of the module that made the node, e.g. "encoder.layer.0.attention"; empty where torch does not know."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return path.removeprefix("L['self'].").removeprefix("L['self']") if isinstance(path, str) else ""


def source_line(node: Node) -> str:
    """The user's own line "file:line, in function" that made the node; empty where torch does not know."""
    trace = node.meta.get("stack_trace") or ""
    frames = [line.strip().removeprefix('File "') for line in trace.splitlines() if line.strip().startswith('File "')]
    # Code that torch itself generated is nobody's line, and its number differs from run to run.
    frames = [frame for frame in frames if not frame.startswith("<eval_with_key>")]
    own = [frame for frame in frames if not frame.startswith(_TORCH)]
    file, _, place = (own or frames or [""])[-1].partition('", line ')
    return f"{_short(file)}:{place}" if place else file


def _short(file: str) -> str:
    """A path without what differs from machine to machine: that of the installation, or of the working directory."""
    _, installed, tail = file.rpartition(f"site-packages{os.sep}")
    return tail if installed else file.removeprefix(os.getcwd() + os.sep)


def shape_text(value: torch.Tensor) -> str:
    """Dtype and shape for people, e.g. "float32[1, s0, 8]"; a size that is a long expression is cut."""
    sizes = (str(size) for size in value.shape)
    short = (size if len(size) <= LONGEST_SIZE else f"{size[: LONGEST_SIZE - 3]}..." for size in sizes)
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(short)}]"


def describe(node: Node) -> str:
    """A node for messages: name, operator, what it gives, and the user's line."""
    shapes = ", ".join(map(shape_text, tensors(node)))
    line = source_line(node)
    return f"node {node.name}, {op_name(node)} -> {shapes or 'number'}" + (f", at {line}" if line else "")
