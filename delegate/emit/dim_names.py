"""The user's own names of dynamic dimensions, such as "batch" of `Dim("batch")`, for messages."""

from __future__ import annotations

from typing import Any

import sympy
from torch._dynamo.source import ConstantSource


def dim_name(size: Any, given: str = "") -> str:
    """The name of a symbolic size: with the names of `torch.export.Dim` where torch still knows them, else torch's.

    torch forgets them where a program was saved as .pt2 and loaded again.

    Args:
        size: the symbolic size.
        given: what to call a size that is a symbol without a name, e.g. "x.shape[0]".
    """
    expr = size.node.expr
    shape_env = size.node.shape_env
    names = {s: _symbol_name(s, shape_env) for s in expr.free_symbols}
    if given and names.get(expr) == str(expr):
        return given
    return str(expr.xreplace({s: sympy.Symbol(name) for s, name in names.items()}))


def _symbol_name(symbol: Any, shape_env: Any) -> str:
    names = getattr(shape_env, "source_name_to_debug_name", {})
    for source in getattr(shape_env, "var_to_sources", {}).get(symbol, ()):
        if isinstance(source, ConstantSource):  # the root of a derived dimension, e.g. `half` of 2 * half
            return source.source_name
        if source.name in names:
            return str(names[source.name])
    return str(symbol)
