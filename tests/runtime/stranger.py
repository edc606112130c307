"""A backend for tests whose delegates add, and do harm where the first number says so; it needs no torch.

`program` makes a program of it by hand: two inputs, their sum, `partitions` times one after another.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from delegate.backend.info import Availability, BackendInfo
from delegate.errors import BackendFailed, BackendUnavailable
from delegate.program.dtypes import DType
from delegate.program.expr import Expr, Op, Symbol
from delegate.program.file import serialize
from delegate.program.model import (
    DelegateCall,
    DelegateSpec,
    Input,
    KernelCall,
    MethodDefinition,
    Program,
    Ref,
    Storage,
    StorageKind,
    Tree,
    Value,
)
from delegate.runtime.backend import Array, BackendRuntime, Delegate, TensorType

SEGV, EXIT, RAISE, HANG, SLOW, PID, MAIN = range(9000, 9007)
WRITE_INPUT, RESHAPE_INPUTS, RESHAPE_OUTPUT, KEEP, USE_KEPT, RESHAPE_KEPT, RETYPE_OUTPUT, TRANSPOSE_OUTPUT = range(
    9100, 9108
)


def harm(code: float) -> None:
    """What a number asks for."""
    if code == SEGV:
        signal.raise_signal(signal.SIGSEGV)  # in this very thread
    elif code == EXIT:
        os._exit(7)
    elif code == RAISE:
        raise ZeroDivisionError("a fault of the plugin\nin two lines")
    elif code == HANG:
        threading.Event().wait()
    elif code == SLOW:
        time.sleep(0.5)


class Adder(Delegate):
    kept: tuple[Sequence[Array], Sequence[Array]] = (), ()

    def prepare(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
        if len(inputs) != 2:
            raise BackendFailed(f"it adds two, not {len(inputs)}")

    def execute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        code = inputs[0].flat[0] if inputs[0].size else 0
        harm(code)
        np.add(*inputs, out=outputs[0])
        self.misuse(code, inputs, outputs)
        if code == PID:
            outputs[0][...] = os.getpid()
        elif code == MAIN:
            outputs[0][...] = "unguarded" in vars(sys.modules["__main__"])

    def misuse(self, code: float, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if code == WRITE_INPUT:
            inputs[1][...] = 7
        elif code == RESHAPE_INPUTS:
            for array in inputs:
                array.shape = (-1,)
        elif code == RESHAPE_OUTPUT:
            outputs[0].shape = (-1,)
        elif code == RETYPE_OUTPUT:
            outputs[0].dtype = np.int32
        elif code == TRANSPOSE_OUTPUT:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # since NumPy 2.4
                outputs[0].strides = (4, 8)  # columns for rows
        elif code == KEEP:
            self.kept = inputs, outputs
        elif code == USE_KEPT:
            self.kept[1][0][...] = 7
        elif code == RESHAPE_KEPT:
            for array in (*self.kept[0], *self.kept[1]):
                array.shape = (-1,)

    def close(self) -> None:
        if os.environ.get("STRANGER_CLOSE") == "hang":
            harm(HANG)
        if os.environ.get("STRANGER_CLOSE"):
            raise ValueError("it does not close")


class StrangerRuntime(BackendRuntime):
    def runs_code(self, compile_specs: Mapping[str, Any]) -> bool:
        return bool(compile_specs.get("code"))

    def init(self, blob: memoryview, compile_specs: Mapping[str, Any]) -> Delegate:
        if compile_specs.get("absent"):
            raise BackendUnavailable("the device is absent", where="socket 3", remedy="plug it in")
        assert bytes(blob) == b"sum"
        harm(compile_specs.get("init", 0))
        return Adder()


INFO = BackendInfo(
    "stranger",
    "Additions by NumPy, for tests",
    f"{__name__}:None",
    f"{__name__}:StrangerRuntime",
    lambda: Availability(True),
    "pip install nothing",
)

LEAF = Tree("leaf")
TREE = Tree("tuple", children=(Tree("tuple", children=(LEAF, LEAF)), Tree("dict")))


def program(*specs: Mapping[str, Any], dynamic: bool = False, fallback: bool = False, inputs: int = 2) -> bytes:
    """The bytes of a program: x + y, then + y again for every further partition.

    Args:
        specs: compile specs of each partition; one without any if there are none.
        dynamic: whether the first size, 2, is one of 1 to 8.
        fallback: whether partitions are kept in kernels.
        inputs: how many each partition says that it takes.
    """
    all_specs = specs or ({},)
    count = len(all_specs)
    between = [(StorageKind.ARENA, 0, 128 * n) for n in range(count - 1)]
    calls = tuple(DelegateCall(n, (n + 1 if n else 0, 1, 1)[:inputs], (n + 2,)) for n in range(count))
    delegates = tuple(
        DelegateSpec(f"stranger_{n}", "stranger", 0, dict(spec), 0 if fallback else -1)
        for n, spec in enumerate(all_specs)
    )
    made = Program(
        methods=(_method("forward", between, calls, dynamic),),
        operators=("aten.add.Tensor",) if fallback else (),
        constants=(),
        states=(),
        delegates=delegates,
        segments=(b"sum",),
        fallbacks=(_method("sum", [], (KernelCall(0, (Ref(0), Ref(1), 1), (2,)),), dynamic),) if fallback else (),
    )
    return serialize(made)


def _method(name: str, between: list[Any], calls: tuple[Any, ...], dynamic: bool) -> MethodDefinition:
    homes = [(StorageKind.INPUT, 0, 0), (StorageKind.INPUT, 1, 0), *between, (StorageKind.OUTPUT, 0, 0)]
    shape = (Expr(Op.SYMBOL, 0) if dynamic else 2, 3)
    return MethodDefinition(
        name,
        (Input("x", 0), Input("y", 1)),
        (Ref(len(homes) - 1),),
        TREE,
        LEAF,
        tuple(Value(f"v{i}", DType.float32, shape, Storage(*home)) for i, home in enumerate(homes)),
        calls,
        symbols=(Symbol("rows", 1, 8, 0, 0),) if dynamic else (),
        arenas=(128 * len(between),),
    )
