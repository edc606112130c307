"""Conversion of float16 operands of products to float32 for the host's CPU: once, not by a call at every use.

bfloat16 stays, because its conversion is only a shift.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

_NARROW, _WIDE = "float16", "float32"


def raise_operands(module: Any) -> Any:
    """Return a module of Relax whose float32 products have operands in float32; its results are the same."""
    copy = tvm.IRModule(dict(module.functions_items()))
    raiser = _Raiser(copy)
    for name, function in module.functions_items():
        if isinstance(function, relax.Function):
            raiser.builder_.update_func(name, raiser.visit_expr(function))
    return raiser.builder_.get()


@mutator
class _Raiser(PyExprMutator):  # type: ignore[misc]  # TVM has no types
    def visit_call_(self, call: Any) -> Any:
        call = super().visit_call_(call)
        if str(getattr(call.attrs, "out_dtype", "")) != _WIDE:
            return call
        return relax.Call(call.op, [self._raised(a) for a in call.args], call.attrs)

    def _raised(self, value: Any) -> Any:
        return self.builder_.emit(relax.op.astype(value, _WIDE)) if str(value.ty.dtype) == _NARROW else value
