"""Properties of a node in an edge graph: operator, names, tensors, shapes, dtypes, arguments, sizes, source line."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from delegate.common.files import short_path
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import OpOverload, auto_functionalized, schema_of
from delegate.program.dtypes import DType

_DTYPES: dict[torch.dtype, DType] = {
    getattr(torch, t.name): t for t in DType if isinstance(getattr(torch, t.name, None), torch.dtype)
}


_TORCH = os.path.dirname(torch.__file__) + os.sep  # frames in here are not the user's own

LONGEST_SIZE = 24  # characters of a size in messages

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)  # torch's numbers that depend on the inputs

META_CONSTANT = "constant"  # node.meta key of placeholders: True if the value never changes


def is_constant(node: Node) -> bool:
    """Return true if the node is the placeholder of a constant, which has `meta[META_CONSTANT]`."""
    return node.op == "placeholder" and bool(node.meta.get(META_CONSTANT))


def op_name(node: Node) -> str:
    """Return the operator's full name, e.g. "aten.add.Tensor"; for other nodes, the name of the function."""
    if type(node.target) is OpOverload:
        return _overload_name(node.target)
    operator_ = overload(node)
    return getattr(node.target, "__name__", str(node.target)) if operator_ is None else _overload_name(operator_)


def overload(node: Node) -> OpOverload | None:
    """Return the operator that a node calls; None for control flow, getitem and arithmetic.

    A custom operator that writes to its arguments is called through torch's `auto_functionalized`. The results of such
    a node are the results of the operator (None without results), then the new values of the written arguments.
    """
    target = node.args[0] if node.target is auto_functionalized else node.target
    return target if isinstance(target, OpOverload) else None


@cache
def _overload_name(target: OpOverload[..., Any]) -> str:
    """Return the text of an operator, cached: torch builds it on each call, and every check of a node needs it."""
    return str(target)


def is_compute(node: Node) -> bool:
    """Return true if the node calls a function other than getitem, which picks one of several results."""
    return node.op == "call_function" and node.target is not operator.getitem


def writes_in_place(node: Node) -> bool:
    """Return true if the node calls an operator that writes to its arguments."""
    return isinstance(node.target, OpOverload) and bool(schema_of(node.target).is_mutable)


def written_arguments(operator_: OpOverload) -> list[str]:
    """Return the names of the arguments that an operator writes to."""
    return [a.name for a in schema_of(operator_).arguments if a.alias_info is not None and a.alias_info.is_write]


def tensor(node: Node) -> torch.Tensor:
    """Return the fake tensor of a node with one result; raise KeyError or TypeError for another node."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{node.name} returns {type(value).__name__}, not one tensor")
    return value


def tensors(node: Node) -> tuple[torch.Tensor, ...]:
    """Return the fake tensors of a node's results, in order; empty if the results are numbers."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, tuple | list):
        return tuple(v for v in value if isinstance(v, torch.Tensor))
    return ()


def symbolic_numbers(value: Any) -> list[Any]:
    """Return the symbolic numbers in a value of `meta["val"]`: the value itself, or its sizes."""
    if isinstance(value, tuple | list):
        return [n for v in value for n in symbolic_numbers(v)]
    if isinstance(value, torch.Tensor):
        return [n for n in value.shape if isinstance(n, SYMBOLIC)]
    return [value] if isinstance(value, SYMBOLIC) else []


def new_symbols(node: Node) -> set[Any]:
    """Return the symbols of sizes that depend on data, and that the node's inputs do not have."""
    known = symbolic_numbers([source.meta.get(META_VALUE) for source in node.all_input_nodes])
    own = symbolic_numbers(node.meta.get(META_VALUE))
    new = set[Any]().union(*(free_unbacked_symbols(number) for number in own))
    return new.difference(*(number.node.expr.free_symbols for number in known))


def results_used(node: Node) -> set[int]:
    """Return the positions of the used results of a node with several results."""
    return {user.args[1] for user in node.users if user.target is operator.getitem}  # type: ignore[misc]


def dtype_of(dtype: torch.dtype) -> DType | None:
    """Return the program dtype of a torch dtype; None if programs do not have it."""
    return _DTYPES.get(dtype)


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return the torch dtype of a program dtype."""
    result = getattr(torch, dtype.name)
    assert isinstance(result, torch.dtype)
    return result


def is_static(node: Node) -> bool:
    """Return true if all sizes of the node's results are plain integers."""
    return all(isinstance(s, int) for t in tensors(node) for s in t.shape)


def size(number: Any) -> int:
    """Return a size as a plain integer; for a symbolic size, its value at the export if known, else 1."""
    if isinstance(number, int):
        return number
    return int(number.node.hint) if number.node.has_hint() else 1


def elements(value: torch.Tensor) -> int:
    """Return the number of elements in a fake tensor, with each symbolic size as `size` returns it."""
    count = value.numel()
    return count if type(count) is int else math.prod(size(s) for s in value.shape)


def nbytes(node: Node) -> int:
    """Return the number of bytes in all tensors among a node's results."""
    return sum(elements(t) * t.element_size() for t in tensors(node))


def is_empty(node: Node) -> bool:
    """Return true if a used result of the node is a tensor without elements, for all values of its dynamic sizes."""
    results = tensors(node)
    empty = {i for i, t in enumerate(results) if any(isinstance(s, int) and s == 0 for s in t.shape)}
    return bool(empty if len(results) == 1 else empty and empty & results_used(node))


def arguments(node: Node) -> dict[str, Any]:
    """Return all arguments by name, in the order of the operator's schema, including keyword-only ones and defaults."""
    target = overload(node)
    if target is None:
        return dict(enumerate_names(node))
    positional = () if node.target is auto_functionalized else node.args
    result: dict[str, Any] = {}
    for position, argument in enumerate(schema_of(target).arguments):
        if position < len(positional):
            result[argument.name] = positional[position]
        elif argument.name in node.kwargs:
            result[argument.name] = node.kwargs[argument.name]
        else:
            result[argument.name] = argument.default_value if argument.has_default_value() else None
    return result


def decodes(node: Node) -> bool:
    """Return true if a node of an exported program decodes quantized integers to floats."""
    return "dequantize" in str(node.target)


def float_node(node: Node) -> str:
    """Return the name of a quantized program's node in the float program, for rules of `nodes`; "" if it has none."""
    name = ""
    sources = node.meta.get("from_node")
    while sources:
        name, sources = sources[-1].name, sources[-1].from_node
    return name


def draws(node: Node) -> bool:
    """Return true if the node draws random numbers, and operators with dropout draw only if it is not 0."""
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    args = arguments(node)
    if args.get("train", args.get("training", True)) is False:
        return False
    share = args.get("p") if "train" in args else args.get("dropout_p", args.get("dropout"))
    return share is None or share != 0


def enumerate_names(node: Node) -> Mapping[str, Any]:
    """Return the arguments of a function without a schema, by position and name."""
    return {**{str(i): a for i, a in enumerate(node.args)}, **node.kwargs}


def module_path(node: Node) -> str:
    """Return the path of the node's module, e.g. "encoder.layer.0.attention"; empty if torch did not record it."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return path.removeprefix("L['self'].").removeprefix("L['self']") if isinstance(path, str) else ""


def source_line(node: Node) -> str:
    """Return the user's source line of the node, "file:line, in function"; empty if torch did not record it.

    The file is a `short_path`: programs and reports have it, and other people read these.
    """
    trace = node.meta.get("stack_trace") or ""
    frames = [line.strip().removeprefix('File "') for line in trace.splitlines() if line.strip().startswith('File "')]
    # Code that torch itself generated has no line of the user, and its number differs from run to run.
    frames = [frame for frame in frames if not frame.startswith("<eval_with_key>")]
    own = [frame for frame in frames if not frame.startswith(_TORCH)]
    file, _, place = (own or frames or [""])[-1].partition('", line ')
    return f"{short_path(file)}:{place}" if place else file


def shape_text(value: torch.Tensor) -> str:
    """Return dtype and shape for messages, e.g. "float32[1, s0, 8]"; long expressions of sizes are truncated."""
    sizes = (str(size) for size in value.shape)
    short = (size if len(size) <= LONGEST_SIZE else f"{size[: LONGEST_SIZE - 3]}..." for size in sizes)
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(short)}]"


def describe(node: Node) -> str:
    """Return a node for messages: name, operator, dtypes and shapes of its results, and the user's line."""
    shapes = ", ".join(map(shape_text, tensors(node)))
    line = source_line(node)
    return f"node {node.name}, {op_name(node)} -> {shapes or 'number'}" + (f", at {line}" if line else "")


# Symbolic numbers stay outside partitions. A region gets the sizes that it needs from the shapes of its tensors, so a
# symbolic number among the arguments of a delegated node is no input and creates no dependency.
_NUMBERS = (int, float, *SYMBOLIC)
_SIZE_OPERATORS = frozenset({"aten.sym_size.int", "aten.sym_stride.int", "aten.sym_numel.default"})


def is_number(node: Node) -> bool:
    """Return if the result of the node is a plain or symbolic number, not tensors."""
    return isinstance(node.meta.get(META_VALUE), _NUMBERS)


def is_size_arithmetic(node: Node) -> bool:
    """Return if the node only computes sizes, such as sym_size, or operator.mul of two sizes."""
    return is_number(node) and ((name := op_name(node)) in _SIZE_OPERATORS or not name.startswith("aten."))


ELEMENTS = frozenset({"aten.item.default", "aten._local_scalar_dense.default"})  # the element of a tensor as a number


def read_elements(number: Any) -> Iterator[Node]:
    """Yield the nodes of tensor elements from which a number is computed, besides sizes and input numbers."""
    unseen, seen = [number], set()
    while unseen:
        node = unseen.pop()
        if not isinstance(node, Node) or node in seen or tensors(node):
            continue
        seen.add(node)
        if op_name(node) in ELEMENTS:
            yield node
        else:
            unseen += node.all_input_nodes


def unknown_number(node: Node) -> Node | None:
    """Return the first argument that is a number and does not follow from the shapes of the node's tensors, or None."""
    numbers = [source for source in node.all_input_nodes if is_number(source)]
    if not numbers:
        return None
    shapes = [t.shape for source in node.all_input_nodes for t in tensors(source)]
    known: set[Any] = set().union(*(_symbols(size) for shape in shapes for size in shape))
    return next((n for n in numbers if not _symbols(n.meta[META_VALUE]) <= known), None)


def _symbols(number: Any) -> set[Any]:
    """Return the free symbols of a number."""
    if isinstance(number, SYMBOLIC):
        return set(number.node.expr.free_symbols)
    return set()


# Edge operator, without its overload -> the exported operators that become it, besides the one of the same name.
_EXPORTED_NAMES = {
    "aten._adaptive_avg_pool2d": ("adaptive_avg_pool2d",),
    "aten._upsample_nearest_exact2d": (),
    "aten.cat": ("concat", "concatenate"),
    "aten.constant_pad_nd": ("pad",),
    "aten.convolution": ("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"),
    "aten.hardtanh": ("relu6",),
    "aten.max_pool2d_with_indices": ("max_pool2d",),
    "aten.permute": ("movedim", "swapaxes"),
    "aten.split_with_sizes": ("chunk", "split"),
    "aten.transpose": ("mT",),
    "aten.view": ("flatten", "reshape", "unflatten"),
}


def base_name(node: Node) -> str:
    """Return the name of a node's operator without overload and in-place mark, e.g. "aten.relu"; "" for no operator."""
    if not isinstance(node.target, OpOverload):
        return ""
    namespace, _, name = str(schema_of(node.target).name).partition("::")
    return f"{namespace}.{name.removesuffix('_') if not name.startswith('_') else name}"


@cache
def edge_names(base: str) -> tuple[str, ...]:
    """Return the edge operators, without overloads, that an exported operator may become."""
    namespace, _, name = base.partition(".")
    return (base, *(edge for edge, names in _EXPORTED_NAMES.items() if namespace == "aten" and name in names))
