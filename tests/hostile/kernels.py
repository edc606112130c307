"""Hostile calls of portable kernels: arguments no model has, arrays between guard pages, results filled or refused.

    python -m tests.hostile.kernels [CALLS PER KERNEL] [FIRST]

Calls are numbered, and a number is the same call every time: give the first that was not run yet.

A call may raise any Exception, which the runtime turns into a KernelError. What it may not: end the process, hang where
Python cannot stop it, or leave a part of its result as it was, which shows what lay there.
"""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from delegate.kernels.portable import TABLE
from delegate.program.dtypes import DType
from tests.hostile.guarded import Guarded
from tests.support.children import Finding, run_cases

INTS = (0, 1, -1, 2, 3, -2, 5, 7, 64, 255, -(2**31), 2**31, 2**32 + 1, 2**62, -(2**62), 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))
# What stands in a file where something else should: every kind of argument, and tensors without dimensions or elements.
KINDS = (
    *(
        True,
        False,
        None,
        0,
        1,
        -1,
        0.5,
        float("nan"),
        1j,
        "none",
        "sum",
        DType.float32,
        DType.bool,
        [],
        [0],
        [1.5, None],
    ),
    *(np.zeros((), np.float32), np.ones((), np.bool_), np.zeros((0,), np.int64), np.zeros((2, 0, 3), np.float32)),
    *(np.full((), np.nan, np.float32), np.full(3, -(2**63), np.int64), np.zeros((1,) * 32, np.uint8)),
)
_LARGEST = 1 << 16  # bytes of an array of a call
_SLOTS = 16


@dataclass(frozen=True)
class Call:
    """A call of a kernel that is right: what torch's samples make. `outs` is None for one that gives its results."""

    op: str
    args: list[Any]
    outs: list[np.ndarray | None] | None


def recorded(entries: Iterable[Any], dtypes: Iterable[Any], samples: int = 2) -> list[Call]:
    """The operator calls that torch makes of samples of its OpInfo entries, where a kernel has the operator."""
    import torch

    from tests.support import opinfo

    calls: list[Call] = []

    class Recorder(opinfo.Comparison):
        def _compare(self, op: Any, args: Any, kwargs: Any) -> None:
            from tests.support.kernels import schema_arguments, to_runtime

            signature = f"{op} {opinfo._layout((args, kwargs))}"
            if signature in self._seen or str(op) not in TABLE:
                return
            self._seen.add(signature)
            try:
                results = op(*args, **kwargs)
                results = list(results) if isinstance(results, tuple | list) else [results]
                given = [to_runtime(a) for a in schema_arguments(op, args, kwargs)]
                outs = [None if r is None else np.array(to_runtime(r), order="C") for r in results]
            except Exception:
                return
            if all(a.nbytes <= _LARGEST for a in (*_arrays(given), *(o for o in outs if o is not None))):
                calls.append(Call(str(op), _copied(given), outs))

    recorder = Recorder(opinfo.Rows())
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        for entry in entries:
            for dtype in dtypes:
                if dtype in entry.supported_dtypes("cpu"):
                    some = islice(entry.sample_inputs("cpu", dtype, requires_grad=False), samples)
                    with suppress(RuntimeError, AssertionError, NotImplementedError):
                        for sample in some:
                            with recorder:
                                entry(sample.input, *sample.args, **sample.kwargs)
    return calls


def invented(op: str, dtype: DType) -> Call:
    """A call of an operator that no sample has, after its schema; it need not be right."""
    import torch

    namespace, name, overload = op.split(".")
    schema = getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema
    tensor = np.ones((2, 3, 4), dtype.numpy)
    args = [_invented(str(a.type), tensor) for a in schema.arguments]
    return Call(op, args, [tensor.copy() for _ in schema.returns])


def _invented(kind: str, tensor: np.ndarray) -> Any:
    plain = {"Tensor": tensor, "Tensor[]": [tensor, tensor], "List[Tensor]": [tensor, tensor], "int": 1, "float": 0.5}
    plain |= {"bool": False, "str": "none", "List[int]": [1, 1], "number": 1, "Optional[Tensor]": tensor}
    return plain.get(kind)


def _arrays(args: Iterable[Any]) -> Iterator[np.ndarray]:
    for arg in args:
        if isinstance(arg, np.ndarray):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from _arrays(arg)


def _copied(arg: Any) -> Any:
    if isinstance(arg, list | tuple):
        return [_copied(a) for a in arg]
    return np.array(arg, order="C") if isinstance(arg, np.ndarray) else arg


def mutated(call: Call, source: random.Random) -> Call:
    """The call with one to three things changed."""
    args, outs = list(call.args), None if call.outs is None else list(call.outs)
    for _ in range(source.choice((1, 1, 2, 3))):
        if outs and source.random() < 0.2:
            i = source.randrange(len(outs))
            outs[i] = None if outs[i] is None else _reshaped(outs[i], source)
        elif args:
            i = source.randrange(len(args))
            args[i] = _changed(args[i], source)
    return Call(call.op, args, outs)


def _changed(arg: Any, source: random.Random) -> Any:  # noqa: PLR0911 - a kind of argument each
    if source.random() < 0.15:
        return source.choice(KINDS)
    if isinstance(arg, bool):
        return not arg
    if isinstance(arg, int):
        return source.choice(INTS)
    if isinstance(arg, float):
        return source.choice((*FLOATS, *map(float, INTS)))
    if isinstance(arg, np.ndarray):
        return source.choice((_reshaped, _refilled))(arg, source)
    if isinstance(arg, list):
        how = source.randrange(4)
        if how == 0 or not arg:
            return [*arg, arg[-1] if arg else source.choice(INTS)]
        if how == 1:
            return arg[:-1]
        i = source.randrange(len(arg))
        return [*arg[:i], _changed(arg[i], source), *arg[i + 1 :]]
    return source.choice((None, *INTS)) if arg is None else None


def _reshaped(array: np.ndarray, source: random.Random) -> np.ndarray:
    shape = list(array.shape)
    how = source.randrange(5)
    if how == 0 or not shape:
        shape = [source.choice((0, 1, 2, 3, 5)) for _ in range(source.randrange(6))]
    elif how == 1:
        shape.pop(source.randrange(len(shape)))
    elif how == 2:
        shape.insert(source.randrange(len(shape) + 1), source.choice((1, 2, 3)))
    else:
        shape[source.randrange(len(shape))] = source.choice((0, 1, 2, 3, 4, 9))
    return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


def _refilled(array: np.ndarray, source: random.Random) -> np.ndarray:
    """Other elements: where integers are indices or lengths, these lead out."""
    array = array.copy()
    flat = array.reshape(-1)
    for _ in range(min(flat.size, source.choice((1, 1, 2, 9)))):
        i = source.randrange(flat.size)
        if array.dtype.kind in "iu":
            flat[i] = np.array(source.choice(INTS) & (2 ** (8 * array.itemsize - 1) - 1)).astype(array.dtype)
            if array.dtype.kind == "i" and source.random() < 0.5:
                flat[i] = ~flat[i]
        elif array.dtype.kind in "fc":
            with np.errstate(over="ignore"):
                flat[i] = source.choice(FLOATS)
    return array


class Caller:
    """Runs mutated calls with all their arrays between guard pages."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self._memory: Guarded | None = None

    def call(self, number: int) -> Call:
        """The call of that number; the same every time."""
        source = random.Random(number)
        return mutated(self.calls[number % len(self.calls)], source)

    def __call__(self, number: int) -> str | None:
        self._memory = self._memory or Guarded(_SLOTS, 1 << 18)  # made in the child: a fork would share it
        call, at_end = self.call(number), random.Random(-number).random() < 0.8
        dtypes = {DType.of(a.dtype) for a in (*_arrays(call.args), *_arrays(call.outs or ()))}
        dtypes |= {a for a in call.args if isinstance(a, DType)}
        kernel = TABLE.find(call.op, dtypes) or TABLE.find(call.op, dtypes, allocates=True)
        if kernel is None:
            return None
        given = []
        for poison in (0x5A, 0xA5):
            self._memory.reset()
            try:
                args = self._guarded(call.args, at_end)
                outs = [o if o is None else self._memory.array(o, at_end=at_end) for o in call.outs or ()]
            except ValueError:
                return None  # arrays that are too large for this
            for out in outs:
                if out is not None:
                    out.view(np.uint8).reshape(-1).fill(poison & (1 if out.dtype == bool else 0xFF)) if out.ndim else (
                        out.fill(poison & 1)
                    )
            TABLE.seed(0)
            try:
                with np.errstate(all="ignore"):
                    if kernel.is_view or kernel.allocates:
                        made = kernel.function(*args)
                        outs = [] if made is None else list(made) if isinstance(made, tuple | list) else [made]
                        for out in outs:
                            if out.size < 1 << 20:
                                out.tobytes()  # reads every element
                    else:
                        kernel.function(*args, out=tuple(outs) if len(outs) > 1 else outs[0])
            except Exception:
                return None
            given.append([None if o is None or o.size > 1 << 20 else o.tobytes() for o in outs])
            if kernel.is_view or kernel.allocates:
                return None
        return None if given[0] == given[1] else "it leaves a part of its result as it was"

    def _guarded(self, arg: Any, at_end: bool) -> Any:
        assert self._memory is not None
        if isinstance(arg, list):
            return [self._guarded(a, at_end) for a in arg]
        if not isinstance(arg, np.ndarray):
            return arg
        made = self._memory.array(arg, at_end=at_end)
        made.flags.writeable = False
        return made


def describe(value: Any) -> str:
    """A call for people."""
    if isinstance(value, Call):
        return f"{value.op}{describe(value.args)} -> {describe(value.outs)}"
    if isinstance(value, np.ndarray):
        some = f" {value.reshape(-1)[:6].tolist()}" if value.dtype.kind in "iu" else ""
        return f"{value.dtype}{list(value.shape)}{some}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(describe, value))}]"
    return repr(value)


def hostile(calls: Sequence[Call], per_kernel: int, until: float = float("inf"), first: int = 0) -> Iterator[Finding]:
    """So many hostile calls of each of these calls; findings as they come."""
    caller = Caller(calls)
    for found in run_cases(caller, iter(range(first, first + per_kernel * len(calls))), until=until):
        yield Finding(found.case, f"{found.what}: {describe(caller.call(found.case))}")


def everything() -> list[Call]:
    """A few calls of every portable kernel, as many of each."""
    import torch
    import torch.ao.quantization.fx._decomposed  # registers the quantized operators

    import delegate.edge.conversations  # noqa: F401 - registers operators of ours
    from tests.support.opinfo import database

    by_kernel: dict[tuple[str, str], list[Call]] = {}
    for call in recorded(database(), [torch.float32, torch.int64, torch.complex64, torch.bool]):
        first = next(_arrays(call.args), None)
        by_kernel.setdefault((call.op, str(first.dtype) if first is not None else ""), []).append(call)
    for op in {k.op for k in TABLE} - {op for op, _ in by_kernel}:
        dtypes = {t for k in TABLE.rows(op) for t in k.dtypes} & {DType.float32, DType.int64, DType.uint8}
        try:
            for dtype in dtypes or {DType.float32}:
                by_kernel[op, dtype.name] = [invented(op, dtype)]
        except (AttributeError, ValueError):
            print("not called:", op)
    print(f"{len({op for op, _ in by_kernel})} of {len({k.op for k in TABLE})} operators have a call")
    return [calls[i % len(calls)] for calls in by_kernel.values() for i in range(3)]


def main() -> None:
    """Run, and print findings."""
    per_kernel, first = (int(given) for given in (*sys.argv[1:], *("100", "0")[len(sys.argv) - 1 :]))
    calls = everything()
    start = time.monotonic()
    found = 0
    for finding in hostile(calls, per_kernel, first=first):
        found += 1
        print(finding.case, finding.what[:600], flush=True)
    last = first + per_kernel * len(calls) - 1
    print(f"{found} findings in {time.monotonic() - start:.0f} s, numbers {first} to {last}")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
