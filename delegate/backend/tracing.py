"""AOT parts that walk a region: a function per operator gets its node and the values of its arguments.

A `Builder` has the values of one region, which are what the library computes with: nodes of its graph, or its tracers.
The usual builder is a `Recorder`, whose values are numbers of recorded calls.
"""

from __future__ import annotations

import operator
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch.fx import Node
from torch.fx.node import map_aggregate

from delegate.backend.aot import ClaimedPattern, PreprocessResult, Region, RegionFailed, RegionRefused
from delegate.backend.exported import plain_graph
from delegate.backend.lowering import Lowering, Pattern, TableBackend, of_dtypes
from delegate.backend.region import SIZE_DECIDED
from delegate.edge.build import raw_bytes
from delegate.edge.node import arguments, dtype_of, op_name, size, tensor, tensors
from delegate.edge.torch_private import ELEMENTWISE_TYPE_PROMOTION_KIND, OpOverload, elementwise_dtypes
from delegate.errors import DelegateError
from delegate.plugins import one_line
from delegate.program.dtypes import DType
from delegate.runtime.backend import BlobFormat
from delegate.runtime.recording import SIZES, Functions, Recording, resolve, to_argument
from delegate.verdict import Verdict

Value = TypeVar("Value")

CASTS = frozenset({"aten._to_copy.default", "prims.convert_element_type.default"})
COPIES = frozenset({"aten.clone.default", "prims.clone.default"})  # of a value, which never changes
_NO_OPERANDS = frozenset({"condition", "mask", "alpha"})  # arguments that are not promoted
_SIZES: Mapping[Any, str] = {
    operator.add: "size.add",
    operator.mul: "size.mul",
    operator.floordiv: "size.floordiv",
    operator.mod: "size.mod",
}


class Builder(ABC, Generic[Value]):
    """The values of one region, in the order of its nodes."""

    @abstractmethod
    def input(self, node: Node) -> Value:
        """Return the value of an input; called for each input, in the order of the region."""

    @abstractmethod
    def constant(self, node: Node, content: torch.Tensor) -> Value:
        """Return the value of a constant; called for each constant, after the inputs, and must not be changed."""

    @abstractmethod
    def size(self, value: Value, dim: int) -> Any:
        """Return a dynamic size of an input, as an argument for functions of rows."""

    @abstractmethod
    def compute_size(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        """Return a size that is computed from others by `operator.add`, `mul`, `floordiv` or `mod`."""

    @abstractmethod
    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """Return a value in another dtype."""

    def lower(self, how: Any, node: Node, *values: Any) -> Any:
        """Return the value of a node, or a tuple with the values of its results.

        Args:
            how: `Lowering.lower` or `Pattern.lower` of its row. The default calls it: `how(self, node, *values)`.
            node: the node; of a pattern, its last node.
            values: the arguments in the order of the operator's schema, defaults included, with values for nodes and
                for dynamic sizes. Of a pattern: the values that its nodes read from outside, in order of first use.
        """
        return how(self, node, *values)

    @abstractmethod
    def finish(self, outputs: Sequence[Value]) -> PreprocessResult:
        """Return the artifact; `outputs` are the values of the region's outputs, in order."""


class TracingBackend(TableBackend):
    """An AOT part that walks each region, and calls the function of a row for each node or pattern.

    - Dynamic sizes are values, computed from the shapes of the inputs.
    - Casts between `dtypes`, and copies, need no rows. Operands of elementwise operators are cast to the dtype of the
      computation.
    - An exception in a row's function refuses its node. The reason has the file and line of the function.

    Attributes:
        dtypes: the library's dtypes. Rows without `dtypes` accept tensors in any of them.
        blob_format: the format of the blobs that the default builder makes.
        functions: the functions of the runtime part. If they are given, the default builder calls each of them once, on
            `example` arrays. An exception or a wrong shape then refuses the node, instead of failing in a call.
    """

    dtypes: ClassVar[frozenset[torch.dtype]] = frozenset({torch.float32})
    blob_format: ClassVar[BlobFormat]
    functions: ClassVar[Functions | None] = None

    def example(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return any array of the library, for a trial of `functions`; the default is one of NumPy."""
        return np.ones(shape, DType[dtype].numpy)

    def builder(self, region: Region) -> Builder[Any]:
        """Return a new builder for a region; the default one records calls."""
        return Recorder(region, self.blob_format, self.functions, self.example)

    def check(self, node: Node) -> Verdict:
        row = self.table.get(op_name(node))
        if row is None and op_name(node) in CASTS | COPIES:
            return of_dtypes(node, self.dtypes, self.library or self.name)
        if row is not None and row.dtypes is None:
            return of_dtypes(node, self.dtypes, self.library or self.name) and super().check(node)
        return super().check(node)

    def preprocess(self, region: Region) -> PreprocessResult:
        graph, copies = plain_graph(region, keep_views=True)
        patterns = {copies[p.nodes[-1]]: (p.name, tuple(copies[n] for n in p.nodes)) for p in disjoint(region)}
        builder, values = self.builder(region), dict[Node, Any]()
        for node in region.inputs:
            values[copies[node]] = builder.input(node)
        for node, content in region.constants.items():
            values[copies[node]] = builder.constant(node, content)
        inside = _inside_patterns(nodes for _, nodes in patterns.values())
        for node in graph.nodes:
            if node.op != "call_function" or node in inside:
                continue
            try:
                values[node] = self._value(builder, node, patterns.get(node), values)
            except (DelegateError, RegionRefused, RegionFailed, *SIZE_DECIDED):
                raise
            except Exception as error:  # a library may raise anything
                raise RegionRefused({node.name: self._fault(error)}) from error
        return builder.finish([values[copies[node]] for node in region.outputs])

    def _value(
        self, builder: Builder[Any], node: Node, match: tuple[str, tuple[Node, ...]] | None, values: Mapping[Node, Any]
    ) -> Any:
        """Return the value of one node, or of the pattern that ends with it."""
        if match is not None:
            name, nodes = match
            pattern: Pattern[Any] = self.table.pattern(name)
            outside = dict.fromkeys(s for n in nodes for s in n.all_input_nodes if s not in nodes)
            return builder.lower(pattern.lower, node, *(values[n] for n in outside))
        if node.target is operator.getitem:
            source, index = node.args
            return values[source][index]  # type: ignore[index]
        taken = map_aggregate(tuple(arguments(node).values()), lambda a: values[a] if isinstance(a, Node) else a)
        assert isinstance(taken, tuple)
        if node.target is torch.ops.aten.sym_size.int:
            return builder.size(*taken)
        if node.target in _SIZES:
            return builder.compute_size(node.target, *taken)  # type: ignore[arg-type]
        return self._operator(builder, node, taken)

    def _operator(self, builder: Builder[Any], node: Node, taken: tuple[Any, ...]) -> Any:
        """Return the value of a node that calls an operator, from its arguments in the order of the schema."""
        op = op_name(node)
        row: Lowering[Any] | None = self.table.get(op)
        if row is not None:
            return builder.lower(row.lower, node, *_promote(builder, node, taken))
        if op in CASTS:
            return builder.cast(taken[0], tensor(node).dtype)
        if op in COPIES:
            return taken[0]
        raise LookupError(f"there is no row for {op}")

    def _fault(self, error: Exception) -> str:
        """Return the reason of a refusal, with the innermost line of the backend's own code."""
        frames = traceback.extract_tb(error.__traceback__)
        package = type(self).__module__.partition(".")[0]
        own = [f for f in frames if f"/{package}/" in f.filename or f.filename.endswith(f"/{package}.py")] or frames
        place = f"{own[-1].filename}:{own[-1].lineno}, in {own[-1].name}"
        return f"{self.library or self.name} cannot lower it: {one_line(error)} ({place})"


def disjoint(region: Region) -> list[ClaimedPattern]:
    """Return the pattern matches of a region, of which none shares a node with a larger one."""
    taken: set[Node] = set()
    result: list[ClaimedPattern] = []
    for pattern in sorted(region.patterns, key=lambda p: -len(p.nodes)):
        if taken.isdisjoint(pattern.nodes):
            taken.update(pattern.nodes)
            result.append(pattern)
    return result


def _inside_patterns(patterns: Iterable[tuple[Node, ...]]) -> set[Node]:
    """Return the nodes of patterns that no other node needs, without the last node of each pattern."""
    inside: set[Node] = set()
    for *nodes, last in patterns:
        own: set[Node] = {last}
        for node in reversed(nodes):
            if all(user in own for user in node.users):
                own.add(node)
        inside |= own - {last}
    return inside


def _promote(builder: Builder[Any], node: Node, values: Sequence[Any]) -> list[Any]:
    """Return the values of a node's arguments, with tensors of an elementwise operator in the computation's dtype."""
    result, target = list(values), node.target
    results = tensors(node)
    if not isinstance(target, OpOverload) or torch.Tag.pointwise not in target.tags or len(results) != 1:
        return result
    named = {name: (i, a) for i, (name, a) in enumerate(arguments(node).items()) if name not in _NO_OPERANDS}
    operands = [(i, a) for i, a in named.values() if isinstance(a, Node) and tensors(a)]
    dtype = results[0].dtype
    if dtype is torch.bool:  # a comparison computes in the dtype of its operands, which may be numbers
        operand_values = (tensor(a) if isinstance(a, Node) else a for _, a in named.values())
        others = [a for a in operand_values if isinstance(a, torch.Tensor | int | float)]
        _, dtype = elementwise_dtypes(*others, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.NO_OPMATH)
    for i, operand in operands:
        own = tensor(operand).dtype
        if own is not dtype and not own.is_complex:
            result[i] = builder.cast(values[i], dtype)
    return result


@dataclass(frozen=True, slots=True)
class Recorded:
    """The value of a recorded call, an input or a constant: its number, and which of several results it is."""

    number: int
    result: int | None = None

    def __getitem__(self, result: int) -> Recorded:
        return Recorded(self.number, result)


class Recorder(Builder[Recorded]):
    """A builder that records calls of named functions, which the runtime part replays: `delegate.runtime.recording`.

    `Lowering.lower` is the name of a function, or a Python function that calls `call` of the recorder. Casts are calls
    of "cast" with a value and the name of a dtype. Constants are data beside the blob, so that partitions share them.
    """

    def __init__(
        self,
        region: Region,
        blob_format: BlobFormat,
        functions: Functions | None = None,
        example: Callable[[tuple[int, ...], str], Any] | None = None,
    ) -> None:
        self._region, self._format, self._functions, self._example = region, blob_format, functions, example
        self._examples: list[Any] = []  # an array per value; None if the functions are not tried
        self._constants: list[torch.Tensor] = []
        self._calls: list[tuple[str, tuple[Any, ...]]] = []

    def input(self, node: Node) -> Recorded:
        return self._next(self._array(tensor(node)))

    def constant(self, node: Node, content: torch.Tensor) -> Recorded:
        self._constants.append(content)
        return self._next(self._array(content))

    def size(self, value: Recorded, dim: int) -> Recorded:
        return self.call("size.of", value, dim)

    def compute_size(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Recorded:
        return self.call(_SIZES[function], left, right)

    def cast(self, value: Recorded, dtype: torch.dtype) -> Recorded:
        return self.call("cast", value, dtype)

    def lower(self, how: Any, node: Node, *values: Any) -> Any:
        value = self.call(how, *values) if isinstance(how, str) else how(self, node, *values)
        if self._functions is not None and isinstance(value, Recorded) and len(tensors(node)) == 1:
            found, expected = tuple(resolve(_argument(value), self._examples).shape), _shape(tensor(node))
            if found != expected:
                raise ValueError(f"its result has the shape {found}, but torch's has {expected}")
        return value

    def call(self, name: str, *values: Any) -> Recorded:
        """Record the call of a function in the runtime part; return its value.

        Raises:
            TypeError: an argument cannot be recorded.
        """
        taken = tuple(map(_argument, values))
        self._calls.append((name, taken))
        if self._functions is None:
            return self._next(None)
        function = SIZES.get(name) or self._functions[name]
        with np.errstate(all="ignore"):
            return self._next(function(*(resolve(argument, self._examples) for argument in taken)))

    def finish(self, outputs: Sequence[Recorded]) -> PreprocessResult:
        recording = Recording(
            inputs=tuple(map(_type, self._region.inputs)),
            constants=tuple((_name(c.dtype), tuple(c.shape)) for c in self._constants),
            calls=tuple(self._calls),
            outputs=tuple(map(_argument, outputs)),
            result_types=tuple(map(_type, self._region.outputs)),
        )
        data = tuple(raw_bytes(c).tobytes() for c in self._constants)
        return PreprocessResult(self._format.pack(recording.to_bytes()), data=data)

    def _array(self, value: torch.Tensor) -> Any:
        """Return an array for the trial of functions; None if they are not tried."""
        if self._functions is None or self._example is None:
            return None
        return self._example(_shape(value), _name(value.dtype))

    def _next(self, example: Any) -> Recorded:
        self._examples.append(example)
        return Recorded(len(self._examples) - 1)


def _shape(value: torch.Tensor) -> tuple[int, ...]:
    """Return the sizes at the export."""
    return tuple(size(s) for s in value.shape)


def _type(node: Node) -> tuple[str, int]:
    return _name(tensor(node).dtype), tensor(node).dim()


def _name(dtype: torch.dtype) -> str:
    known = dtype_of(dtype)
    if known is None:
        raise TypeError(f"programs have no {dtype}")
    return known.name


def _argument(value: Any) -> Any:
    """Return an argument as plain data."""
    if isinstance(value, Recorded):
        return {"value": value.number} if value.result is None else {"value": value.number, "result": value.result}
    if isinstance(value, torch.dtype):
        return _name(value)
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return None  # an edge program has no devices and no strides
    if type(value) is float:
        return to_argument(value)
    if isinstance(value, list | tuple):
        return [_argument(item) for item in value]
    if value is None or type(value) in (bool, int, str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be recorded: {value}")
