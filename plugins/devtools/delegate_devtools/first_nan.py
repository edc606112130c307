"""The first instruction of a program whose results have NaN, found without torch by one more run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from delegate.kernels.half_precision import from_bfloat16
from delegate.program.dtypes import DType
from delegate.program.instructions import describe_operator, source_of
from delegate.program.model import DelegateCall, Instruction, KernelCall, MethodDefinition, Program
from delegate.runtime.backend import DeviceTensor
from delegate.runtime.loaded import LoadedProgram
from delegate.runtime.steps import DelegateStep, KernelStep, Step
from delegate.runtime.watch import Shapes, Watch, WrappedStep


def first_nan(program: LoadedProgram, method: str, leaves: Sequence[Any]) -> str:
    """Run a method once more, with initial states, and describe its first instruction whose results have NaN.

    Args:
        program: the program.
        method: the name of the method.
        leaves: the leaves of the arguments; arrays that the method writes to are copied.

    Returns:
        operator, value and the user's line, or the partition and its backend; empty if no result has NaN.
    """
    watch = _FirstNan()
    context = program.context()
    context.method(method).watch(watch)
    context.method(method).run([leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves])
    return watch.found


class _FirstNan(Watch):
    """An observer of instructions that notes the first one whose results have NaN."""

    def __init__(self) -> None:
        self.found = ""

    def wrap(
        self, program: Program, method: MethodDefinition, call: Instruction, steps: Iterable[Step], shapes: Shapes
    ) -> list[Step]:
        """Return the steps of an instruction, in which kernels and delegates are observed."""
        run = partial(self._run, program, method, call)
        return [WrappedStep(s, partial(run, s)) if isinstance(s, KernelStep | DelegateStep) else s for s in steps]

    def _run(
        self, program: Program, method: MethodDefinition, call: Instruction, step: KernelStep | DelegateStep
    ) -> None:
        step()
        results = step.outs if isinstance(step, KernelStep) else step.outputs
        dtypes = (method.values[index].dtype for index in call.outputs)
        if not self.found and any(map(_has_nan, results, dtypes)):
            self.found = _describe(program, method, call)


def _has_nan(result: Any, dtype: DType) -> bool:
    array = result.fetch() if isinstance(result, DeviceTensor) else result
    if not isinstance(array, np.ndarray):
        return False
    numbers = from_bfloat16(array) if dtype is DType.bfloat16 else array
    return numbers.dtype.kind in "fc" and bool(np.isnan(numbers).any())


def _describe(program: Program, method: MethodDefinition, call: Instruction) -> str:
    if isinstance(call, DelegateCall):
        spec = program.delegates[call.delegate]
        return f"partition {spec.name} on {spec.backend}"
    assert isinstance(call, KernelCall)
    name = method.values[call.outputs[0]].name
    return describe_operator(program.operators[call.operator], name, source_of(method, call))
