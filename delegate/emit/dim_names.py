"""The user's own names of dynamic dimensions, such as "batch" of `Dim("batch")`, for messages."""

from __future__ import annotations

from typing import Any

import sympy
from torch._dynamo.source import ConstantSource


def dim_name(size: Any) -> str:
    """The name of a symbolic size: with the names of `torch.export.Dim` where torch still knows them, else torch's.

    torch forgets them where a program was saved as .pt2 and loaded again.
    """
    expr = size.node.expr
    shape_env = size.node.shape_env
    names = {s: sympy.Symbol(_symbol_name(s, shape_env)) for s in expr.free_symbols}
    return str(expr.xreplace(names))


def _symbol_name(symbol: Any, shape_env: Any) -> str:
    names = getattr(shape_env, "source_name_to_debug_name", {})
    for source in getattr(shape_env, "var_to_sources", {}).get(symbol, ()):
        if isinstance(source, ConstantSource):  # the root of a derived dimension, e.g. `half` of 2 * half
            return source.source_name
        if source.name in names:
            return str(names[source.name])
    return str(symbol)
