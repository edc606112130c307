"""A backend of somebody else, made up by each test: it adds with NumPy until a half of it is replaced."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from delegate.backend.info import Availability, BackendInfo
from delegate.registry import default_registry
from delegate.runtime.backend import BackendRuntime, Delegate

NAME = "faulty"
MODULE = types.ModuleType("tests_faulty_backend")  # tests put both halves there, as `Aot` and `Runtime`


class Sum(Delegate):
    def execute(self, inputs, outputs):
        np.add(*inputs, out=outputs[0])


class Runtime(BackendRuntime):
    def init(self, blob, compile_specs):
        return Sum()


def executes(function: Callable[..., Any]) -> type[BackendRuntime]:
    """The runtime part of a backend whose delegates do this."""
    made = type("Faulty", (Sum,), {"execute": lambda self, inputs, outputs: function(inputs, outputs)})
    return type("FaultyRuntime", (Runtime,), {"init": lambda self, blob, specs: made()})


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The registry with the backend in it; autouse in the modules that import it."""
    monkeypatch.setitem(sys.modules, MODULE.__name__, MODULE)
    default_registry.cache_clear()
    paths = (f"{MODULE.__name__}:Aot", f"{MODULE.__name__}:Runtime")
    default_registry().register(BackendInfo(NAME, "", *paths, lambda: Availability(True), "pip install faulty"))
    yield
    default_registry.cache_clear()
