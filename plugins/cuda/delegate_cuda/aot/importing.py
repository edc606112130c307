"""Import of an ExportedProgram to TVM's Relax, by TVM's importer for torch, with a guard around every conversion.

The guard ensures three things. An error names its node. The result of a conversion has the shape and dtype that torch
planned. And 16-bit floats are raised to float32, and rounded at the end of each operator, as torch does.

Only factors of products stay in 16 bits, or are rounded to 16 bits if option `precision` requires it. The importer sums
up all products in float32. Tensor cores compute the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from delegate.backend.aot import RegionRefused
from delegate.edge.node import arguments, op_name, tensors
from delegate_cuda.aot import rounding
from delegate_cuda.aot.conversions import CONVERSIONS
from delegate_cuda.aot.operators import TABLE
from delegate_cuda.runtime.library import one_line

_WIDE = "float32"


def to_relax(program: ExportedProgram, precision: str) -> Any:
    """Import a program; its function `main` has the inputs, then the parameters, and returns a tuple.

    Args:
        program: the program; parameters that only products read may be in `precision` already.
        precision: the precision to which operands of float32 products are rounded.

    Raises:
        RegionRefused: the importer does not support a node.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    importer = ExportedProgramImporter()
    importer.precision = precision  # for conversions that make products of their own
    done = frozenset(
        name for name, value in program.state_dict.items() if precision == rounding.TF32 and rounding.is_rounded(value)
    )
    conversions: dict[str, Callable[[Node], Any]] = dict(importer.convert_map)
    conversions |= {name: partial(convert, importer) for name, convert in CONVERSIONS.items()}
    importer.convert_map = {name: _Guard(importer, convert, done) for name, convert in conversions.items()}
    return importer.from_exported_program(
        program,
        keep_params_as_input=True,
        unwrap_unit_return_tuple=False,
        no_bind_return_tuple=False,
        custom_convert_map=None,
    )


@dataclass(frozen=True)
class _Guard:
    """The steps around one conversion: see the top of this file."""

    importer: Any
    convert: Callable[[Node], Any]
    done: Set[str]

    def __call__(self, node: Node) -> Any:
        env = self.importer.env
        before = {n: env[n] for n in _operands_of_arithmetic(node)}
        try:
            env.update({n: self._operand(node, n, value) for n, value in before.items()})
            return self._as_planned(node, self.convert(node))
        except Exception as error:  # TVM raises errors of many kinds, AssertionError among them
            raise RegionRefused({node.name: f"TVM: {one_line(error) or type(error).__name__}"}) from error
        finally:
            env.update(before)

    def _operand(self, node: Node, operand: Node, value: Any) -> Any:
        """Return an operand in the dtype of the computation."""
        if operand not in factors(node):
            return rounding.cast(self.importer, value, _WIDE)
        return value if operand.name in self.done else rounding.factor(self.importer, value)

    def _as_planned(self, node: Node, result: Any) -> Any:
        """Return the result in torch's dtype; raise ValueError if it differs from torch's plan."""
        from tvm import relax

        planned = node.meta["val"]
        if not isinstance(planned, torch.Tensor) or not isinstance(getattr(result, "ty", None), relax.TensorType):
            return result
        dtype, shape = str(planned.dtype).removeprefix("torch."), [_size(s) for s in result.ty.shape or ()]
        if len(shape) != planned.dim() or any(
            isinstance(s, int) and isinstance(p, int) and s != p for s, p in zip(shape, planned.shape, strict=True)
        ):
            raise ValueError(f"it returns a tensor of {shape}, but torch returns {list(planned.shape)}")
        if str(result.ty.dtype) == dtype:
            return result
        if not (planned.is_floating_point() and "float" in str(result.ty.dtype)):
            raise ValueError(f"it returns {result.ty.dtype}, but torch returns {dtype}")
        return rounding.cast(self.importer, result, dtype)


def factors(node: Node) -> tuple[Node, ...]:
    """Return the operands that are multiplied with each other and summed up."""
    row = TABLE.get(op_name(node))
    if row is None or not row.lower.products:
        return ()
    args = arguments(node)
    return tuple(args[name] for name in row.lower.products)


def _operands_of_arithmetic(node: Node) -> list[Node]:
    """Return the operands of arithmetic, without those that are only moved."""
    row = TABLE.get(op_name(node))
    if row is None or row.lower.moves:
        return []
    return [n for n in node.all_input_nodes if any(t.is_floating_point() for t in tensors(n)[:1])]


def _size(size: Any) -> Any:
    """Return a size as an int if it is known."""
    return int(size) if hasattr(size, "value") else size
