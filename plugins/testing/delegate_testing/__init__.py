"""The tests that every backend must pass: a class of pytest tests to subclass, and its cases.

`delegate --help` imports this package, so the classes are imported when they are read.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delegate_testing.cases import Case as Case
    from delegate_testing.comparison import assert_same as assert_same
    from delegate_testing.comparison import relative_error as relative_error
    from delegate_testing.kit import BackendTests as BackendTests

_PLACES = {"BackendTests": "kit", "Case": "cases", "assert_same": "comparison", "relative_error": "comparison"}

__all__ = ["BackendTests", "Case", "assert_same", "relative_error"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"delegate_testing.{_PLACES[name]}"), name)
