"""What the graphs of one method write into while they are emitted: its values, source lines and missing kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from delegate.edge.node import describe, dtype_of, source_line, tensors
from delegate.emit.shared import SharedTables
from delegate.emit.symbols import Symbols
from delegate.errors import LoweringError
from delegate.program.dtypes import DType
from delegate.program.lifetimes import refs
from delegate.program.model import Arg, KernelCall, Storage, Value
from delegate.runtime.kernels import HOW_TO_GIVE, Kernels

if TYPE_CHECKING:
    from delegate.kernels.kernel import Kernel


class Tables:
    """The tables of one method; its own graph and those of its control flow share them.

    Args:
        symbols: the symbolic numbers of the method.
        shared: where operators, constants, states and delegates of the program are collected.
        kernels: the kernels that what is left will run on.
    """

    def __init__(self, symbols: Symbols, shared: SharedTables, kernels: Kernels) -> None:
        self.symbols, self.shared, self.kernels = symbols, shared, kernels
        self.values: list[Value] = []
        self.sources: dict[str, int] = {}
        self._no_kernel: list[str] = []

    def add(self, value: Value) -> int:
        """The index of a new value."""
        self.values.append(value)
        return len(self.values) - 1

    def define(self, node: Node, storage: Storage) -> list[int]:
        """New values for all tensors that a node gives.

        Raises:
            LoweringError: programs hold no such tensor.
        """
        made = tensors(node)
        names = [node.name] if len(made) == 1 else [f"{node.name}.{i}" for i in range(len(made))]
        return [self.like(fake, name, storage, node) for name, fake in zip(names, made, strict=True)]

    def like(self, fake: torch.Tensor, name: str, storage: Storage, node: Node) -> int:
        """A new value of the dtype and shape of a fake tensor that a node gives or takes; raises as `define` does."""
        shape = tuple(self.symbols.dim(s, describe(node)) for s in fake.shape)
        return self.add(Value(name, self.dtype(fake.dtype, node), shape, storage))

    def dtype(self, dtype: torch.dtype, node: Node) -> DType:
        """The dtype as programs have it; raises LoweringError where they have none."""
        found = dtype_of(dtype)
        if found is None:
            raise LoweringError(f"programs hold no tensors of {dtype}", where=describe(node))
        return found

    def learn_sizes(self, node: Node, first: int) -> bool:
        """Add the symbols that are sizes of what a node gives, value `first` and the following; whether any are new."""
        found = [self.symbols.learn_sizes(fake, first + i) for i, fake in enumerate(tensors(node))]
        return any(found)

    def kernel_call(
        self, op: str, args: tuple[Arg, ...], outputs: tuple[int, ...], node: Node, *, allocates: bool = False
    ) -> KernelCall:
        """The call of a kernel; if there is none, `require_kernels` will say so.

        `allocates`: it makes results whose sizes depend on data.
        """
        line = source_line(node)
        source = self.sources.setdefault(line, len(self.sources)) if line else -1
        dtypes = {self.values[i].dtype for i in (*refs(args), *outputs)}
        if self.kernels.find(op, dtypes, allocates=allocates) is None:
            self._no_kernel.append(f"{op} for {', '.join(sorted(t.name for t in dtypes))} ({describe(node)})")
        return KernelCall(self.shared.operator(op), args, outputs, source)

    def kernel_of(self, call: KernelCall) -> Kernel | None:
        """The kernel that a call runs."""
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

    def is_view(self, op: str, made: Any) -> bool:
        """Whether the operator's kernel gives views of its first argument."""
        kernel = self.kernels.find(op, {d for t in made if (d := dtype_of(t.dtype))})
        return kernel is not None and kernel.is_view
