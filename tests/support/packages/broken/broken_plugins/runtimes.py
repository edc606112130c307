"""Runtime halves: one that computes with NumPy, and those in which one method does wrong."""

import numpy as np

from broken_plugins.faults import fail, nonsense
from delegate.runtime.backend import BackendRuntime, Delegate


class Rows(Delegate):
    def __init__(self, specs):
        self._rows, self._outputs = specs["rows"], specs["outputs"]

    def execute(self, inputs, outputs):
        values = list(inputs)
        for function, *operands in self._rows:
            values.append(getattr(np, function)(*(values[i] for i in operands)))
        for output, i in zip(outputs, self._outputs, strict=True):
            output[...] = values[i]


class Adds(BackendRuntime):
    def init(self, blob, compile_specs):
        return Rows(compile_specs)


def half_done(self, inputs, outputs):
    """Fill the outputs with something, then fail."""
    for output in outputs:
        output[...] = 7
    fail()


DELEGATES = {
    "prepare_error": {"prepare": fail},
    "execute_error": {"execute": half_done},
    "execute_nonsense": {"execute": nonsense},
    "close_error": {"close": fail},
}


def _runtime(name, methods):
    made = type("Delegate", (Rows,), methods)
    return type(name, (Adds,), {"init": lambda self, blob, specs: made(specs), "__module__": __name__})


globals().update({n: _runtime(n, methods) for n, methods in DELEGATES.items()})
WAYS = {"init_error": fail, "init_nonsense": nonsense}
globals().update({n: type(n, (Adds,), {"init": way, "__module__": __name__}) for n, way in WAYS.items()})
