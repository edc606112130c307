"""Tools for the authors of backends, from the package `delegate-testing`: tests to subclass, comparison of results."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delegate_testing import BackendTests, Case, assert_same, relative_error

__all__ = ["BackendTests", "Case", "assert_same", "relative_error"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("delegate_testing"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"delegate.testing.{name} needs {error.name}: pip install ./plugins/testing") from error
