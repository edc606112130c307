"""Runtime halves: one that computes with NumPy, and those whose `init` does wrong."""

import numpy as np

from broken_plugins.faults import crash, fail, hang, nonsense
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


WAYS = {"init_error": fail, "init_crash": crash, "init_hang": hang, "init_nonsense": nonsense}
globals().update({n: type(n, (Adds,), {"init": way, "__module__": __name__}) for n, way in WAYS.items()})
