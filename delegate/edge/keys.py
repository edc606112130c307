"""Keys of programs: their contents as text that is the same in every process."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.nn import Parameter

from delegate.edge.build import raw_bytes
from delegate.edge.graphs import PRESERVED_METADATA, describe_graph
from delegate.edge.node import SYMBOLIC, source_line
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import HigherOrderOperator, OpOverload, guards_code, higher_order_name, pytree
from delegate.program.segments import checksums

_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)
# Their decompositions are part of distributions with known versions. The code of others is unknown.
_NAMESPACES = frozenset({"aten", "prims", "quantized_decomposed", "torchao"})
_PLAIN_METADATA = sorted({*PRESERVED_METADATA} - {META_VALUE, "nn_module_stack", "stack_trace"})
_FUNCTIONS = ("torch", "_operator", "operator", "math", "builtins")


class NotCacheable(Exception):
    """Raised if the dependencies of something are unknown, so that it cannot be cached."""


def digests_of(constants: Iterable[torch.Tensor]) -> dict[int, tuple[Any, ...]]:
    """Return dtype, shape and digest of constants by `id`; raises NotCacheable for a sparse one or similar."""
    tensors = {id(value): value for value in constants}
    try:
        digests = checksums([raw_bytes(value).data for value in tensors.values()])
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise NotCacheable from error
    return {
        key: (str(value.dtype), tuple(value.shape), digest)
        for (key, value), digest in zip(tensors.items(), digests, strict=True)
    }


def fingerprints(programs: Mapping[str, ExportedProgram]) -> dict[str, dict[str, str]]:
    """Return checksums by method: of each parameter, buffer and constant by its name, and of the graph by "".

    Tensors whose bytes are unknown, such as tensors of a subclass, have none.
    """
    known: dict[int, str] = {}  # methods may share weights

    def checksum(value: torch.Tensor) -> str:
        if id(value) not in known:
            known[id(value)] = f"{value.dtype}{list(value.shape)}, crc32 {zlib.crc32(raw_bytes(value).data):08x}"
        return known[id(value)]

    found: dict[str, dict[str, str]] = {}
    for name, ep in programs.items():
        found[name] = {"": f"{zlib.crc32(describe_graph(ep.graph_module)):08x}"}
        for target, value in _constants(ep).items():
            if type(value) in (torch.Tensor, Parameter):
                with suppress(RuntimeError, TypeError, NotImplementedError):  # of a sparse tensor, or similar
                    found[name][target] = checksum(value)
    return found


def list_facts_of_sizes(sizes: Iterable[Any]) -> Iterator[str]:
    """Yield torch's facts of the symbolic numbers among these, because a compiler may use these facts."""
    environments = {}
    for size in sizes:
        if isinstance(size, SYMBOLIC):
            environment = size.node.shape_env
            environments[id(environment)] = environment
            for symbol in size.node.expr.free_symbols:
                known = environment.var_to_range.get(symbol), environment.backed_var_to_val.get(symbol)
                yield f"{symbol}: {known}"
    for environment in environments.values():
        yield from (f"guard {guard.expr}" for guard in environment.guards)
        yield from (f"divides {expr}" for expr in environment.divisible)
        yield from (f"axiom {expr}" for expr in environment.axioms)


def key_of_exported(programs: Mapping[str, ExportedProgram]) -> str:
    """Return a digest of exported programs by method: graphs, signatures, sizes, bytes of weights, shared memory.

    It includes facts of nodes that only reports show (source line, module).

    Raises:
        NotCacheable: a program has operators or classes of others, which may differ although their text is equal.
    """
    held = {name: _constants_of(ep) for name, ep in programs.items()}
    digests = digests_of(value for tensors in held.values() for value in tensors.values())
    storages: dict[int, int] = {}
    described = []
    for name, ep in programs.items():
        weights = []
        for target, value in held[name].items():
            storage = storages.setdefault(value.untyped_storage().data_ptr(), len(storages))
            weights.append((target, digests[id(value)], tuple(value.stride()), storage, value.storage_offset()))
        described.append((name, _signature(ep), weights, _graph(ep.graph_module)))
    return hashlib.sha256(repr(described).encode(errors="surrogatepass")).hexdigest()


def _constants_of(ep: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return the parameters, buffers and constants of a program, by their names in the module."""
    held = _constants(ep)
    if not all(type(value) in (torch.Tensor, Parameter) for value in held.values()):
        raise NotCacheable  # the contents of subclasses of Tensor, and of other objects, are unknown
    return {target: value for target, value in held.items() if isinstance(value, torch.Tensor)}


def _constants(ep: ExportedProgram) -> dict[str, Any]:
    targets = [spec.target for spec in ep.graph_signature.input_specs if spec.target is not None]
    return {target: ep.state_dict.get(target, ep.constants.get(target)) for target in targets}


def _signature(ep: ExportedProgram) -> tuple[Any, ...]:
    call = ep.module_call_graph[0].signature if ep.module_call_graph else None
    return (
        repr(ep.graph_signature.input_specs),
        repr(ep.graph_signature.output_specs),
        *map(_tree, ep.call_spec),
        call.forward_arg_names if call is not None else None,
        sorted((str(symbol), str(known)) for symbol, known in ep.range_constraints.items()),
        guards_code(ep),
    )


def _tree(spec: pytree.TreeSpec | None) -> Any:
    if spec is None:
        return None
    kind = (spec.type.__module__, spec.type.__qualname__) if spec.type is not None else None
    return (
        kind,
        _argument(spec.context) if spec.type in (dict, list, tuple) else repr(spec.context),
        [_tree(child) for child in spec.children()],
    )


def _graph(module: GraphModule) -> tuple[Any, ...]:
    """Return a graph and the bodies of its control flow as plain values."""
    nodes = []
    for node in module.graph.nodes:
        target = _target(node, module)
        stack = [(path, str(kind)) for path, kind in (node.meta.get("nn_module_stack") or {}).values()]
        value = _argument(node.meta.get(META_VALUE))
        rest = [_argument(node.meta.get(key)) for key in _PLAIN_METADATA]
        arguments = _argument(node.args), _argument(node.kwargs)
        nodes.append((node.op, node.name, target, arguments, value, source_line(node), stack, rest))
    return nodes, sorted(set(list_facts_of_sizes(_numbers(module)))), sorted(set(_names_of_sizes(_numbers(module))))


def _target(node: Node, module: GraphModule) -> Any:
    if node.op == "get_attr":
        value = module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        if isinstance(value, GraphModule):
            return "body", _graph(value)
        if type(value) in (torch.Tensor, Parameter):
            return "tensor", digests_of([value])[id(value)], tuple(value.stride())
        raise NotCacheable
    return _argument(node.target)


def _argument(value: Any) -> Any:
    """Return an argument as plain values with their types; raise NotCacheable for other objects."""
    match value:
        case list() | tuple():
            parts: Any = [_argument(item) for item in value]
        case dict():
            parts = [(_argument(key), _argument(item)) for key, item in value.items()]
        case slice():
            parts = [_argument(item) for item in (value.start, value.stop, value.step)]
        case torch.Tensor():
            parts = _description(value)
        case _:
            parts = _text(value)
    return type(value).__name__, parts


def _text(value: Any) -> str:
    """Return the text for a leaf of the arguments, an operator or a function."""
    match value:
        case Node():
            text = value.name
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            text = str(value.node.expr)
        case OpOverload() if value.namespace in _NAMESPACES:
            text = str(value)
        case HigherOrderOperator() if type(value).__module__.startswith("torch.") and "triton" not in (
            name := higher_order_name(value)
        ):
            text = name
        case FunctionType() | BuiltinFunctionType() if value.__module__.partition(".")[0] in _FUNCTIONS:
            text = f"{value.__module__}.{value.__qualname__}"
        case _ if value is None or type(value) in _PLAIN:
            text = repr(value)
        case _:
            raise NotCacheable
    return text


def _description(value: torch.Tensor) -> Any:
    """Return all properties of a fake tensor; it has no contents."""
    strided = value.layout is torch.strided
    where = ([str(n) for n in value.stride()], str(value.storage_offset())) if strided else None
    kind = (
        str(value.dtype),
        str(value.device),
        str(value.layout),
        value.requires_grad,
        value.is_conj(),
        value.is_neg(),
    )
    return kind, [str(n) for n in value.shape], where


def _numbers(module: GraphModule) -> Iterator[Any]:
    """Yield the sizes and numbers among the results of nodes."""
    for node in module.graph.nodes:
        value = node.meta.get(META_VALUE)
        for item in value if isinstance(value, list | tuple) else (value,):
            yield from item.shape if isinstance(item, torch.Tensor) else (item,)


def _names_of_sizes(sizes: Iterable[Any]) -> Iterator[str]:
    """Yield the user's names of symbolic numbers, which are part of messages, and torch's expressions of them."""
    for environment in {id(s.node.shape_env): s.node.shape_env for s in sizes if isinstance(s, SYMBOLIC)}.values():
        yield from (f"{source} is {name}" for source, name in environment.source_name_to_debug_name.items())
        for symbol, sources in environment.var_to_sources.items():
            yield from (f"{symbol} from {type(s).__name__} {s.name}" for s in sources)
        yield from (f"{old} becomes {new}" for old, new in environment.replacements.items())
        for symbol, asserts in environment.deferred_runtime_asserts.items():
            yield from (f"{symbol} is such that {a.expr}" for a in asserts)
