"""The tables of a program and of one method during emission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.fx import Node

from delegate.backend.aot import PreprocessResult
from delegate.edge.build import MemoryPlace, memory_place, raw_bytes
from delegate.edge.node import describe, dtype_of, source_line, tensors
from delegate.emit.symbols import MethodSymbols
from delegate.errors import LoweringError
from delegate.kernels.selection import Kernels, how_to_give
from delegate.program.dtypes import DType, is_small, pack_pairs
from delegate.program.instructions import refs
from delegate.program.model import Arg, Constant, DelegateSpec, KernelCall, MemorySpace, State, Storage, Value

if TYPE_CHECKING:
    from delegate.kernels.table import Kernel


_LEAST = 4096  # fewer numbers are not packed


class SharedTables:
    """Tables of the objects that methods refer to by index. A tensor that two methods share is stored once."""

    def __init__(self) -> None:
        self.operators: dict[str, int] = {}
        self.constants: list[Constant] = []
        self.states: list[State] = []
        self.delegates: list[DelegateSpec] = []
        self.segments: list[memoryview | bytes] = []
        self.warnings: list[str] = []  # for users
        self.spaces: dict[MemorySpace, int] = {}
        self._constant_of: dict[MemoryPlace, int] = {}
        self._packed: dict[MemoryPlace, torch.Tensor] = {}
        self._zeros: dict[int, int] = {}  # bytes -> segment
        self._state_of: dict[str, tuple[int, MemoryPlace]] = {}

    def mark(self) -> dict[str, int]:
        """Return the lengths of all tables, for `rollback`."""
        return {name: len(table) for name, table in vars(self).items()}

    def rollback(self, mark: dict[str, int]) -> None:
        """Remove all entries added since `mark` was called, which works because tables only grow, at their ends."""
        for name, length in mark.items():
            table = getattr(self, name)
            while len(table) > length:
                table.popitem() if isinstance(table, dict) else table.pop()

    def operator(self, name: str) -> int:
        """Return the index of an operator."""
        return self.operators.setdefault(name, len(self.operators))

    def operator_name(self, index: int) -> str:
        """Return the operator of an index."""
        return list(self.operators)[index]

    def constant(self, name: str, value: torch.Tensor) -> int:
        """Return the index of a constant."""
        key = memory_place(value)
        if key in self._constant_of:
            return self._constant_of[key]
        index = len(self.constants)
        if value.numel():  # all empty tensors have address 0
            self._constant_of[key] = index
        self.constants.append(Constant(name, _dtype(value, name), tuple(value.shape), self._segment(value)))
        return index

    def pack(self, value: torch.Tensor) -> torch.Tensor | None:
        """Return the packed form, of half the bytes, of an int8 constant with 4-bit values; None for another."""
        if value.dtype is not torch.int8 or value.numel() < _LEAST:
            return None
        key = memory_place(value)
        if key not in self._packed:
            numbers = raw_bytes(value).view(np.int8)
            if not is_small(numbers):
                return None
            self._packed[key] = torch.from_numpy(pack_pairs(numbers))
        return self._packed[key]

    def state(self, name: str, value: torch.Tensor) -> int:
        """Return the index of the state that all methods share under this name.

        Raises:
            LoweringError: two methods have different buffers of this name.
        """
        place = memory_place(value)
        if name not in self._state_of:
            self._state_of[name] = len(self.states), place
            self.states.append(State(name, _dtype(value, name), tuple(value.shape), self._start(value)))
        index, known_place = self._state_of[name]
        if known_place == place:
            return index
        known = self.states[index]
        same_type = (known.dtype, known.shape) == (_dtype(value, name), tuple(value.shape))
        if not same_type or not np.array_equal(self.segments[known.segment], raw_bytes(value)):
            raise LoweringError(
                f"two methods have a buffer {name!r} with different {'content' if same_type else 'shape or dtype'}",
                remedy="export methods that share a mutable buffer from the same module, in the same state",
            )
        return index

    def delegate(self, name: str, backend: str, result: PreprocessResult) -> int:
        """Add a lowered partition; return its index."""
        first = len(self.segments)
        self.segments += (result.blob, *result.data)
        specs, space = dict(result.compile_specs), self._space(backend, result.space)
        data = tuple(range(first + 1, len(self.segments)))
        self.delegates.append(DelegateSpec(name, backend, first, specs, space=space, data=data))
        return len(self.delegates) - 1

    def _space(self, backend: str, name: str) -> int:
        """Return the number of a device's memory space; 0, the host, for an empty name."""
        return self.spaces.setdefault(MemorySpace(backend, name), len(self.spaces) + 1) if name else 0

    def _start(self, value: torch.Tensor) -> int:
        """Return the segment with the content of a state. Zeros, as in empty caches, have one segment for each size."""
        raw = raw_bytes(value)
        if raw.any():
            return self._segment(value.detach().clone())  # the module may change its own tensor later
        if raw.nbytes not in self._zeros:
            self._zeros[raw.nbytes] = len(self.segments)
            self.segments.append(np.zeros(raw.nbytes, np.uint8).data.toreadonly())
        return self._zeros[raw.nbytes]

    def _segment(self, value: torch.Tensor) -> int:
        self.segments.append(raw_bytes(value).data.toreadonly())
        return len(self.segments) - 1


def _dtype(value: torch.Tensor, name: str) -> DType:
    dtype = dtype_of(value.dtype)
    if dtype is None:
        raise LoweringError(f"programs do not support tensors of {value.dtype}", where=f"constant {name}")
    return dtype


class Tables:
    """The tables of one method, which its own graph and the graphs of its control flow share.

    Args:
        symbols: the symbolic numbers of the method.
        shared: the operators, constants, states and delegates of the program.
        kernels: that run the nodes outside of partitions.
    """

    def __init__(self, symbols: MethodSymbols, shared: SharedTables, kernels: Kernels) -> None:
        self.symbols, self.shared, self.kernels = symbols, shared, kernels
        self.values: list[Value] = []
        self.sources: dict[str, int] = {}
        self._no_kernel: list[tuple[str, str]] = []  # and the remedy

    def add(self, value: Value) -> int:
        """Add a value; return its index."""
        self.values.append(value)
        return len(self.values) - 1

    def define(self, node: Node, storage: Storage) -> list[int]:
        """Add values for all tensors of a node.

        Raises:
            LoweringError: programs have no such tensor.
        """
        results = tensors(node)
        names = [node.name] if len(results) == 1 else [f"{node.name}.{i}" for i in range(len(results))]
        return [self.like(fake, name, storage, node) for name, fake in zip(names, results, strict=True)]

    def like(self, fake: torch.Tensor, name: str, storage: Storage, node: Node) -> int:
        """Add a value with the dtype and shape of a node's fake tensor; raises like `define`."""
        shape = tuple(self.symbols.dim(s, describe(node)) for s in fake.shape)
        return self.add(Value(name, self.dtype(fake.dtype, node), shape, storage))

    def dtype(self, dtype: torch.dtype, node: Node) -> DType:
        """Return the program's dtype; raises LoweringError if programs do not have it."""
        result = dtype_of(dtype)
        if result is None:
            raise LoweringError(f"programs do not support tensors of {dtype}", where=describe(node))
        return result

    def learn_sizes(self, node: Node, first: int) -> bool:
        """Add the new symbols among the sizes of a node's results, values `first` and up; return if there are any."""
        added = [self.symbols.learn_sizes(fake, first + i) for i, fake in enumerate(tensors(node))]
        return any(added)

    def kernel_call(
        self, op: str, args: tuple[Arg, ...], outputs: tuple[int, ...], node: Node, *, allocates: bool = False
    ) -> KernelCall:
        """Return the call of a kernel; `require_kernels` reports a missing kernel.

        `allocates`: the sizes of the results depend on data.
        """
        line = source_line(node)
        source = self.sources.setdefault(line, len(self.sources)) if line else -1
        dtypes = {self.values[i].dtype for i in (*refs(args), *outputs)}
        if self.kernels.find(op, dtypes, allocates=allocates) is None:
            size = ", of a size that depends on data" if allocates else ""
            missing = f"{op} for {', '.join(sorted(t.name for t in dtypes))}{size} ({describe(node)})"
            self._no_kernel.append((missing, how_to_give(op, allocates=allocates)))
        return KernelCall(self.shared.operator(op), args, outputs, source)

    def kernel_of(self, call: KernelCall) -> Kernel | None:
        """Return the kernel of a call."""
        dtypes = {self.values[i].dtype for i in (*refs(call.args), *call.outputs)}
        return self.kernels.find(self.shared.operator_name(call.operator), dtypes)

    def require_kernels(self) -> None:
        """Raise LoweringError if a call has no kernel."""
        if self._no_kernel:
            more = f" and {len(self._no_kernel) - 1} more" if len(self._no_kernel) > 1 else ""
            missing, remedy = self._no_kernel[0]
            raise LoweringError(f"no backend and no kernel supports {missing}{more}", remedy=remedy)

    def is_view(self, op: str, results: Any) -> bool:
        """Return if the results of the operator's kernel are views of its first argument."""
        kernel = self.kernels.find(op, {d for t in results if (d := dtype_of(t.dtype))})
        return kernel is not None and kernel.is_view
