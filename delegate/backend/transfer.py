"""Messages to and from the process of a compiler.

Graphs and regions become bytes, with their weights and symbolic sizes, and are pickled, because the reader trusts the
writer: the process of a compiler is a child of this one, whose answers are JSON and never unpickled. That process may
be damaged, so everything that it sends is checked.
"""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import delegate.edge.conversations  # noqa: F401  registers operators of ours; torch_private registers quantized_decomposed
from delegate import errors
from delegate.backend.aot import Claim, PreprocessResult, RegionFailed, RegionGivenUp, RegionRefused
from delegate.backend.region import ClaimedPattern, Region
from delegate.common.field_checks import count, flag, items, mapping, text, texts
from delegate.edge.program import META_VALUE
from delegate.edge.torch_private import (
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    no_dispatch,
    schema_of,
)
from delegate.errors import DelegateError
from delegate.verdict import Reason, Verdict

# What a shape environment knows of its symbols. The places where it learnt that are tracebacks, and stay here.
_SYMBOLS = (
    "axioms", "backed_var_to_val", "divisible", "replacements", "settings", "size_like", "unbacked_inputs",
    "unbacked_renamings", "unbacked_symfloat_counter", "unbacked_symint_counter", "val_to_var", "var_to_hint_override",
    "var_to_range",
)  # fmt: skip
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_DEFINED: list[torch.library.Library] = []  # operators of the other process that no module here defines


class Packed(NamedTuple):
    """A value for another process.

    Args:
        table: the value as a pickle, without the content of tensors.
        buffers: the content of tensors, which is not copied.
    """

    table: bytes
    buffers: tuple[memoryview, ...]


def pack(value: Any) -> Packed:
    """Return a value for another process.

    Args:
        value: a graph, which goes without its constants; a region; or what pickles itself.

    Raises:
        pickle.PicklingError, TypeError, AttributeError, NotImplementedError: a part of it cannot be sent.
    """
    writer = _Writer()
    match value:
        case Graph():
            writer.write_graph(value)
        case Region():
            writer.write_region(value)
        case _:
            writer.dump(value)
    return writer.finish()


def unpack_graph(table: bytes | memoryview, buffers: Iterable[memoryview]) -> Graph:
    """Return the graph that was packed."""
    return _Reader(table, buffers).read_graph()


def unpack_region(table: bytes | memoryview, buffers: Iterable[memoryview]) -> Region:
    """Return the region that was packed; its weights lie in the buffers."""
    return _Reader(table, buffers).read_region()


class _Writer(pickle.Pickler):
    """Writes graphs as rows, one for each node, and refers to nodes by number."""

    def __init__(self) -> None:
        self._file, self._buffers = io.BytesIO(), list[pickle.PickleBuffer]()
        super().__init__(self._file, protocol=5, buffer_callback=self._buffers.append)
        self._numbers: dict[Node, int] = {}

    def finish(self) -> Packed:
        """Return what was written."""
        return Packed(self._file.getvalue(), tuple(b.raw() for b in self._buffers))

    def write_graph(self, graph: Graph) -> None:
        """Write a graph after the bodies of its control flow."""
        bodies = {n.target: getattr(graph.owning_module, n.target) for n in graph.find_nodes(op="get_attr")}
        bodies = {name: body for name, body in bodies.items() if isinstance(body, GraphModule)}
        self.dump(list(bodies))
        for body in bodies.values():
            self.write_graph(body.graph)
        self.dump(len(graph.nodes))
        for node in graph.nodes:
            self.dump((node.name, node.op, node.target, node.args, node.kwargs, _meta(node)))
            self._numbers[node] = len(self._numbers)

    def write_region(self, region: Region) -> None:
        """Write a region after its graph."""
        others = {f.name: getattr(region, f.name) for f in fields(Region) if f.name not in ("graph", "patterns")}
        self.write_graph(region.graph)
        self.dump({**others, "constants": list(region.constants.items())})
        self.dump([(p.name, p.nodes) for p in region.patterns])

    def persistent_id(self, value: Any) -> int | None:
        """Return the number of a node, None for anything else."""
        return self._numbers[value] if isinstance(value, Node) else None

    def reducer_override(self, value: Any) -> Any:
        """Return a constructor and its arguments for those objects of torch that do not pickle by themselves."""
        for kinds, reduce in _REDUCERS:
            if isinstance(value, kinds):
                return reduce(value)
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` wrote, in its order."""

    def __init__(self, table: bytes | memoryview, buffers: Iterable[memoryview]) -> None:
        super().__init__(io.BytesIO(table), buffers=buffers)
        self._nodes = list[Node]()

    def read_graph(self) -> Graph:
        """Return the next graph, which owns a module with the bodies of its control flow."""
        graph = Graph()
        module = GraphModule({}, graph)
        for name in self.load():
            setattr(module, name, self.read_graph().owning_module)
        for _ in range(self.load()):
            name, op, target, args, kwargs, meta = self.load()
            if op == "output":
                node = graph.output(*args)
            else:  # arguments are set later: symbolic sizes among those of `create_node` are a warning
                node = graph.create_node(op, target, name=name)
                node.args, node.kwargs = args, kwargs
            node.meta = meta
            self._nodes.append(node)
        return graph

    def read_region(self) -> Region:
        """Return the next region."""
        graph, others, patterns = self.read_graph(), self.load(), self.load()
        others["constants"] = dict(others["constants"])
        return Region(graph=graph, patterns=tuple(ClaimedPattern(name, nodes) for name, nodes in patterns), **others)

    def persistent_load(self, number: int) -> Node:
        """Return a node by its number."""
        return self._nodes[number]


def _meta(node: Node) -> dict[str, Any]:
    """Return the value of a node, and of its other metadata the plain part."""
    plain = {key: _plain(value) for key, value in node.meta.items() if key != META_VALUE}
    plain = {key: value for key, value in plain.items() if value is not None}
    return {META_VALUE: node.meta[META_VALUE], **plain} if META_VALUE in node.meta else plain


def _plain(value: Any) -> Any:
    """Return a value of texts and numbers, with names in place of classes; None for another value."""
    match value:
        case bool() | int() | float() | str() | bytes():
            return value
        case type():
            return f"{value.__module__}.{value.__qualname__}"
        case list():
            return [_plain(item) for item in value]
        case tuple() if type(value) is tuple:  # a reader of a named one, such as tensor_meta, needs its fields
            return tuple(_plain(item) for item in value)
        case dict():
            return {key: _plain(item) for key, item in value.items() if isinstance(key, str | int)}
        case _:
            return None


def _reduce_overload(op: OpOverload) -> Any:
    name = schema_of(op).name.rpartition("::")[2]
    return _overload, (op.namespace, name, schema_of(op).overload_name or "default", str(schema_of(op)))


def _overload(namespace: str, name: str, overload: str, schema: str) -> Any:
    """Return an operator, which is defined here if only the other process has its library."""
    try:
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)
    except AttributeError:
        library = torch.library.Library(namespace, "FRAGMENT")  # type: ignore[no-untyped-call]
        library.define(schema.partition("::")[2])  # type: ignore[no-untyped-call]
        _DEFINED.append(library)  # the definition goes with it
        return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _higher_order(name: str) -> Any:
    return getattr(torch.ops.higher_order, name)


def _mode(environment: ShapeEnv | None) -> FakeTensorMode:
    return FakeTensorMode(shape_env=environment)


def _reduce_fake(fake: FakeTensor) -> Any:
    if fake.layout != torch.strided or fake.is_quantized:
        return NotImplemented
    sizes = tuple(fake.shape), fake.stride()
    return _fake, (fake.fake_mode, fake.dtype, fake.fake_device, *sizes, fake.requires_grad)


def _fake(
    mode: FakeTensorMode, dtype: torch.dtype, device: torch.device, shape: Any, stride: Any, requires_grad: bool
) -> FakeTensor:
    with no_dispatch():
        empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        empty.requires_grad_(requires_grad)
        return FakeTensor(mode, empty, device)


def _number(kind: type, expression: Any, environment: ShapeEnv, plain: type, hint: Any) -> Any:
    return kind(SymNode(expression, environment, plain, hint))


def _buffer(content: NDArray[np.uint8]) -> pickle.PickleBuffer:
    """Return bytes that are not copied.

    They are an array's. Python 3.11 crashes when it collects a memoryview of which there is a PickleBuffer.
    """
    return pickle.PickleBuffer(content)  # type: ignore[arg-type]  # an array has a buffer


def _reduce_tensor(value: torch.Tensor) -> Any:
    """Return a tensor as a view of the memory that it covers; kinds without such memory pickle by themselves."""
    in_memory = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
    if type(value) is not torch.Tensor or not in_memory:
        return NotImplemented
    plain = value.detach().resolve_conj().resolve_neg()
    if plain.untyped_storage().nbytes() > plain.numel() * plain.itemsize:
        plain = plain.clone()  # the rest of its memory is not sent
    place = tuple(plain.shape), plain.stride(), plain.storage_offset()
    elements = plain.as_strided((plain.untyped_storage().nbytes() // plain.itemsize,), (1,), 0)
    content = _buffer(elements.view(torch.uint8).numpy())
    return _tensor, (content, value.dtype, *place, value.requires_grad)


def _tensor(
    content: Any, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int], offset: int, requires_grad: bool
) -> torch.Tensor:
    if memoryview(content).nbytes:
        made = torch.frombuffer(content, dtype=dtype).as_strided(shape, stride, offset)
    else:
        made = torch.empty_strided(shape, stride, dtype=dtype)
    return made.requires_grad_(requires_grad)


# The first row that fits a value reduces it.
_REDUCERS: tuple[tuple[Any, Any], ...] = (
    (OpOverload, _reduce_overload),
    (HigherOrderOperator, lambda op: (_higher_order, (op.__name__,))),
    (FakeTensor, _reduce_fake),
    (FakeTensorMode, lambda mode: (_mode, (mode.shape_env,))),
    (ShapeEnv, lambda known: (ShapeEnv, (), {name: getattr(known, name) for name in _SYMBOLS})),
    (_SYMBOLIC, lambda n: (_number, (type(n), n.node.expr, n.node.shape_env, n.node.pytype, n.node._hint))),
    (torch.nn.Parameter, lambda _: NotImplemented),
    (torch.Tensor, _reduce_tensor),
)


Decode = Callable[[Any], Any]

MAKE = "make"  # the query that needs no other answer than that the AOT part is made

SENT_ERRORS = (DelegateError, RegionRefused, RegionFailed)


def encode_error(error: Exception) -> dict[str, Any]:
    """Return one of `SENT_ERRORS` as JSON."""
    match error:
        case RegionRefused():
            return {"refused": error.reasons, "given_up": isinstance(error, RegionGivenUp)}
        case RegionFailed():
            return {"failed": error.reason}
        case _:
            assert isinstance(error, DelegateError)
            kind = type(error.at("")).__name__  # a class that the other process has
            return {"error": kind, "what": error.what, "where": error.where, "remedy": error.remedy}


def decode_error(data: Mapping[str, Any]) -> Exception:
    """Return the error that was encoded; raises ValueError, KeyError or TypeError for anything else."""
    if "refused" in data:
        return (RegionGivenUp if flag(data, "given_up") else RegionRefused)(mapping(data, "refused"))
    if "failed" in data:
        return RegionFailed(text(data, "failed"))
    kind = getattr(errors, text(data, "error"), None)
    if not (isinstance(kind, type) and issubclass(kind, DelegateError)):
        raise ValueError("error")
    return kind(text(data, "what"), where=text(data, "where"), remedy=text(data, "remedy"))


def encode_support(verdict: Verdict, claims: Sequence[Claim]) -> dict[str, Any]:
    """Return the verdict on a node and the claims around it as JSON, with nodes by name."""
    rows = [{"name": c.name, "nodes": [n.name for n in c.nodes], "verdict": asdict(c.verdict)} for c in claims]
    return {"verdict": asdict(verdict), "claims": rows}


def decode_support(data: Mapping[str, Any]) -> tuple[Verdict, list[tuple[str, tuple[str, ...], Verdict]]]:
    """Return the verdict that was encoded; and the name, the names of nodes and the verdict of each claim."""
    claims = [(text(row, "name"), texts(row, "nodes"), _decode_verdict(row)) for row in items(data, "claims")]
    return _decode_verdict(data), claims


def _decode_verdict(data: Mapping[str, Any]) -> Verdict:
    verdict = mapping(data, "verdict")
    reason = None if verdict["reason"] is None else Reason(text(verdict, "reason"))
    return Verdict(reason, text(verdict, "message"), text(verdict, "remedy"), text(verdict, "tag"))


def decode_result(data: Mapping[str, Any], content: bytes) -> PreprocessResult:
    """Return the compiled region; `content` has the bytes of all its parts, one after another."""
    sizes = [count({"size": size}, "size") for size in data["sizes"]]
    if sum(sizes) != len(content):
        raise ValueError("sizes")
    whole = memoryview(content)
    parts = [whole[end - size : end] for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]
    return PreprocessResult.of_data(mapping(data, "about"), parts)
