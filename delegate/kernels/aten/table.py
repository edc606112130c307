"""The table over torch's kernels: its rows are made when an operator is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch._ops import OpOverload, OpOverloadPacket

from delegate.kernels.aten.calls import into_memory
from delegate.kernels.aten.tensors import to_torch, to_torch_with_bfloat16
from delegate.kernels.kernel import Kernel
from delegate.kernels.table import ANY, COMPLEX, KernelTable
from delegate.program.dtypes import DType

# They read or write files, which no kernel has reason to.
_BEYOND_MEMORY = frozenset({"aten.from_file.default"})
_INDEX = "aten.index.Tensor"  # the sizes that it gives depend on data where it is given masks, not where positions


class AtenTable(KernelTable):
    """Every operator that torch has a CPU kernel of, custom ones included, on every dtype.

    Torch itself says no to a dtype when a program runs, as it would in eager.
    """

    torch_free = False

    def seed(self, seed: int) -> None:
        """Seed torch's global generator: the numbers are then eager's."""
        torch.manual_seed(seed)

    def find(self, op: str, dtypes: Iterable[DType], *, allocates: bool = False) -> Kernel | None:
        """Torch's kernel; None for what gives sizes that depend on data, or no tensor, and for in-place forms of aten.

        None too where it is to allocate, and where bfloat16, whose arrays are bits in uint16, meets uint16.
        """
        wanted = frozenset(dtypes)
        if (
            allocates
            or wanted >= {DType.bfloat16, DType.uint16}
            or op not in self
            or (op == _INDEX and DType.bool in wanted)
        ):
            return None
        convert = to_torch_with_bfloat16 if DType.bfloat16 in wanted else to_torch
        function = _function(op, not wanted.isdisjoint(COMPLEX))
        return Kernel(op, function, ANY, is_view=False, library=self.library, convert=convert)

    def rows(self, op: str) -> tuple[Kernel, ...]:
        """The kernel of an operator, which takes all dtypes."""
        kernel = self.find(op, ())
        return () if kernel is None else (kernel,)

    def __contains__(self, op: object) -> bool:
        found = _operator(str(op))
        return found is not None and _is_kernel(found)


TABLE = AtenTable("aten")


def _operator(name: str) -> OpOverload | None:
    """The operator "namespace.name.overload"; None where this process has none."""
    parts = name.split(".")
    if len(parts) != 3:
        return None
    namespace, packet_name, overload = parts
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    found = getattr(packet, overload, None) if isinstance(packet, OpOverloadPacket) else None
    return found if isinstance(found, OpOverload) else None


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
    """A custom operator whose writes can be made on copies: to single tensors, which it does not give back."""
    written = [a for a in op._schema.arguments if a.is_write]
    given = op._schema.returns
    plain = all(str(a.type) in ("Tensor", "Optional[Tensor]") for a in (*written, *given))
    return bool(written) and plain and op.namespace != "aten" and all(r.alias_info is None for r in given)


@cache
def _function(name: str, is_complex: bool) -> Callable[..., None]:
    op = _operator(name)
    assert op is not None
    return into_memory(op, lazily=is_complex)
