"""The tables of one method during emission: its values, source lines and missing kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from delegate.edge.node import describe, dtype_of, source_line, tensors
from delegate.emit.shared import SharedTables
from delegate.emit.symbols import Symbols
from delegate.errors import LoweringError
from delegate.kernels.selection import HOW_TO_GIVE, Kernels
from delegate.program.dtypes import DType
from delegate.program.lifetimes import refs
from delegate.program.model import Arg, KernelCall, Storage, Value

if TYPE_CHECKING:
    from delegate.kernels.kernel import Kernel


class Tables:
    """The tables of one method; its own graph and those of its control flow share them.

    Args:
        symbols: the symbolic numbers of the method.
        shared: the operators, constants, states and delegates of the program.
        kernels: that run the nodes outside of partitions.
    """

    def __init__(self, symbols: Symbols, shared: SharedTables, kernels: Kernels) -> None:
        self.symbols, self.shared, self.kernels = symbols, shared, kernels
        self.values: list[Value] = []
        self.sources: dict[str, int] = {}
        self._no_kernel: list[str] = []

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
            raise LoweringError(f"programs hold no tensors of {dtype}", where=describe(node))
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
            self._no_kernel.append(f"{op} for {', '.join(sorted(t.name for t in dtypes))} ({describe(node)})")
        return KernelCall(self.shared.operator(op), args, outputs, source)

    def kernel_of(self, call: KernelCall) -> Kernel | None:
        """Return the kernel of a call."""
        dtypes = {self.values[i].dtype for i in (*refs(call.args), *call.outputs)}
        return self.kernels.find(self.shared.operator_name(call.operator), dtypes)

    def require_kernels(self) -> None:
        """Raise LoweringError if a call has no kernel."""
        if self._no_kernel:
            more = f" and {len(self._no_kernel) - 1} more" if len(self._no_kernel) > 1 else ""
            raise LoweringError(
                f"no backend took, and no kernel runs, {self._no_kernel[0]}{more}",
                remedy=HOW_TO_GIVE.format(op=self._no_kernel[0].split()[0]),
            )

    def is_view(self, op: str, results: Any) -> bool:
        """Return if the results of the operator's kernel are views of its first argument."""
        kernel = self.kernels.find(op, {d for t in results if (d := dtype_of(t.dtype))})
        return kernel is not None and kernel.is_view
