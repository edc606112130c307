"""Names of dynamic dimensions for messages, such as "batch" of `Dim("batch")`."""

from __future__ import annotations

from typing import Any

import sympy
from torch._dynamo.source import ConstantSource


def dim_name(size: Any, default: str = "") -> str:
    """Return the name of a symbolic size: with the names of `torch.export.Dim` if torch still has them, else torch's.

    A program that was saved as .pt2 and loaded again has lost them.

    Args:
        size: the symbolic size.
        default: the name of a symbol without a name, e.g. "x.shape[0]".
    """
    expr = size.node.expr
    shape_env = size.node.shape_env
    names = {s: _symbol_name(s, shape_env) for s in expr.free_symbols}
    if default and names.get(expr) == str(expr):
        return default
    return str(expr.xreplace({s: sympy.Symbol(name) for s, name in names.items()}))


def _symbol_name(symbol: Any, shape_env: Any) -> str:
    names = getattr(shape_env, "source_name_to_debug_name", {})
    for source in getattr(shape_env, "var_to_sources", {}).get(symbol, ()):
        if isinstance(source, ConstantSource):  # the root of a derived dimension, e.g. `half` of 2 * half
            return source.source_name
        if source.name in names:
            return str(names[source.name])
    return str(symbol)
