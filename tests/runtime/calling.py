"""A kernel and a backend that call functions of a test while they run, and programs of them; it needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from delegate import DType, KernelTable
from delegate.backend.info import Availability, BackendInfo
from delegate.program.model import DelegateCall, DelegateSpec, KernelCall, Program, Ref
from delegate.runtime.backend import BackendRuntime, Delegate
from tests.support.program_builder import LEAF, Builder

HOOKS: list[Callable[[str], object]] = []  # get the name of what runs: "kernel" or "backend"
TABLE = KernelTable("calling")


@TABLE.kernel("calling::add_one", dtypes={DType.float32})
def add_one(x: Any, *, out: Any) -> None:
    _call_hooks("kernel")
    np.add(x, 1, out=out)


class Doubling(Delegate):
    def execute(self, inputs: Any, outputs: Any) -> None:
        _call_hooks("backend")
        np.multiply(inputs[0], 2, out=outputs[0])


class SafeDoubling(Doubling):
    thread_safe = True


class Runtime(BackendRuntime):
    def init(self, blob: memoryview, compile_specs: Any) -> Delegate:
        return SafeDoubling() if compile_specs else Doubling()


INFO = BackendInfo("calling", "", f"{__name__}:None", f"{__name__}:Runtime", lambda: Availability(True), "nothing")


def _call_hooks(place: str) -> None:
    for hook in HOOKS:
        hook(place)


def _with_delegate(made: Program, *, is_safe: bool) -> Program:
    spec = DelegateSpec("doubled_0", "calling", 2, {"safe": 1} if is_safe else {})
    return made._replace(
        methods=(made.methods[0]._replace(out_tree=LEAF),),
        operators=("calling.add_one.default",),
        delegates=(spec,),
        segments=(*made.segments, b"double"),
    )


def whole(*, is_safe: bool = False) -> Program:
    """(x + 1) * 2 by the kernel and a delegate, with a state that nothing uses."""
    build = Builder()
    x, more, twice = build.input(), build.value(), build.value()
    calls = [KernelCall(0, (Ref(x),), (more,)), DelegateCall(0, (more,), (twice,))]
    return _with_delegate(build.program(calls, [twice]), is_safe=is_safe)


def direct(*, is_safe: bool = False) -> Program:
    """x * 2 by a delegate alone, which is called directly."""
    build = Builder()
    x, twice = build.input(), build.value()
    return _with_delegate(build.program([DelegateCall(0, (x,), (twice,))], [twice]), is_safe=is_safe)
