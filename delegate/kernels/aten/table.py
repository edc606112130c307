"""The table over torch's kernels. Its rows are made on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch._ops import OpOverload, OpOverloadPacket

from delegate.kernels.aten.calls import make_kernel
from delegate.kernels.aten.tensors import to_torch, to_torch_with_bfloat16
from delegate.kernels.kernel import Kernel
from delegate.kernels.table import ANY, COMPLEX, KernelTable
from delegate.program.dtypes import DType

# These read or write files, which kernels must not do.
_BEYOND_MEMORY = frozenset({"aten.from_file.default"})
_INDEX = "aten.index.Tensor"  # the sizes of its results depend on data for masks, not for positions


class AtenTable(KernelTable):
    """All operators with a CPU kernel in torch, including custom ones, on every dtype.

    Torch itself rejects a dtype when a program runs, as in eager.
    """

    torch_free = False

    def seed(self, seed: int) -> None:
        """Seed torch's global generator. The numbers are then the same as in eager."""
        torch.manual_seed(seed)

    def find(self, op: str, dtypes: Iterable[DType], *, allocates: bool = False) -> Kernel | None:
        """Return torch's kernel of an operator, or None.

        It is None for operators whose result sizes depend on data, that return no tensor, or that are in-place
        operators of aten. It is also None if `allocates` is set, or if bfloat16 (arrays of its bits in uint16) occurs
        with uint16.
        """
        types = frozenset(dtypes)
        if (
            allocates
            or types >= {DType.bfloat16, DType.uint16}
            or op not in self
            or (op == _INDEX and DType.bool in types)
        ):
            return None
        convert = to_torch_with_bfloat16 if DType.bfloat16 in types else to_torch
        function = _function(op, not types.isdisjoint(COMPLEX))
        return Kernel(op, function, ANY, is_view=False, library=self.library, convert=convert)

    def rows(self, op: str) -> tuple[Kernel, ...]:
        """Return the kernel of an operator, which accepts all dtypes."""
        kernel = self.find(op, ())
        return () if kernel is None else (kernel,)

    def __contains__(self, op: object) -> bool:
        operator = _operator(str(op))
        return operator is not None and _is_kernel(operator)


TABLE = AtenTable("aten")


def _operator(name: str) -> OpOverload | None:
    """Return the operator "namespace.name.overload"; None if this process has none."""
    parts = name.split(".")
    if len(parts) != 3:
        return None
    namespace, packet_name, overload = parts
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    operator = getattr(packet, overload, None) if isinstance(packet, OpOverloadPacket) else None
    return operator if isinstance(operator, OpOverload) else None


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
    """Return if a custom operator's writes can go to copies: it writes to single tensors and does not return them."""
    written = [a for a in op._schema.arguments if a.is_write]
    returns = op._schema.returns
    plain = all(str(a.type) in ("Tensor", "Optional[Tensor]") for a in (*written, *returns))
    return bool(written) and plain and op.namespace != "aten" and all(r.alias_info is None for r in returns)


@cache
def _function(name: str, is_complex: bool) -> Callable[..., None]:
    op = _operator(name)
    assert op is not None
    return make_kernel(op, lazily=is_complex)
