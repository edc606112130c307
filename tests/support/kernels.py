"""Calls portable kernels as the runtime does, and compares them with torch eager."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from delegate.edge.node import dtype_of, torch_dtype
from delegate.kernels.portable import TABLE
from delegate.kernels.table import Kernel
from delegate.program.dtypes import DType
from delegate.testing import assert_same

LIBRARIES = [TABLE]  # the tests of a plugin add its table
_IGNORED = (torch.layout, torch.device, torch.memory_format)
# Relative and absolute tolerance by the result's dtype; the larger of both holds. A step of bfloat16 is 7.8e-3.
_TOLERANCE = {
    torch.float64: (1e-10, 1e-12),
    torch.float32: (2e-5, 2e-6),
    torch.float16: (2e-3, 5e-4),
    torch.bfloat16: (1.6e-2, 4e-3),
    torch.complex64: (2e-5, 2e-6),
    torch.complex128: (1e-10, 1e-12),
}


def check(op: OpOverload, *args: Any, rtol: float | None = None, atol: float | None = None, **kwargs: Any) -> None:
    """Assert that the kernel of `op` returns what torch returns: shapes, dtypes, values, NaN and infinity.

    Integers and bools are compared exactly, others by their dtype's tolerance unless `rtol` or `atol` is set.
    """
    expected = op(*args, **kwargs)
    expected = tuple(expected) if isinstance(expected, tuple | list) else (expected,)
    results = run(op, *args, expected=expected, **kwargs)
    for index, (e, f) in enumerate(zip(expected, results, strict=True)):
        if e is None:
            continue
        where = f"{op} result {index} for {describe(args)}, {describe(kwargs)}"
        assert f.shape == e.shape, f"{where}: shape {tuple(f.shape)}, torch gives {tuple(e.shape)}"
        assert f.dtype == e.dtype, f"{where}: dtype {f.dtype}, torch gives {e.dtype}"
        r, a = _TOLERANCE.get(e.dtype, (0.0, 0.0))
        relative, absolute = r if rtol is None else rtol, a if atol is None else atol
        try:
            assert_same(f, e, relative, each=True, at_least=absolute / relative if relative else 0.0)
        except AssertionError as error:
            error.add_note(f"{where}\nkernel {f.flatten()[:16]}\ntorch  {e.flatten()[:16]}")
            raise


def run(
    op: OpOverload, *args: Any, expected: tuple[torch.Tensor | None, ...], **kwargs: Any
) -> tuple[torch.Tensor | None, ...]:
    """Return the kernel's results, in memory that was filled with garbage. `expected` has their shapes and dtypes."""
    filled = schema_arguments(op, args, kwargs)
    dtypes = {dtype_of(t.dtype) for t in (*tensors_in(filled), *tensors_in(list(expected)))}
    known = [t for t in dtypes if t is not None]
    kernels = (t.find(str(op), known, allocates=allocates) for t in LIBRARIES for allocates in (False, True))
    kernel = next(filter(None, kernels), None)
    assert kernel is not None, f"no kernel of {op} for {sorted(t.name for t in dtypes if t)}"
    arguments = [to_runtime(a) for a in filled]
    before = [a.copy() for a in tensors_in_runtime(arguments)]
    with np.errstate(all="ignore"):
        if kernel.is_view:
            results = kernel.function(*arguments)
            if results is None:
                arguments[0] = np.ascontiguousarray(arguments[0])
                results = kernel.function(*arguments)
            results = tuple(results) if isinstance(results, tuple | list) else (results,)
            for result in results:
                assert result.size == 0 or np.shares_memory(result, arguments[0]), f"{op} copies"
        elif kernel.allocates:
            returned = kernel.function(*arguments)
            results = returned if isinstance(returned, tuple) else (returned,)
            assert not any(np.shares_memory(r, a) for r in results for a in tensors_in_runtime(arguments))
        else:
            results = tuple(None if t is None else garbage(t) for t in expected)
            returned = kernel.function(
                *arguments, out=results if len(op._schema.returns) > 1 or is_list(op) else results[0]
            )
            assert returned is None, f"{op} returns something"
    for old, new in zip(before, tensors_in_runtime(arguments), strict=True):
        assert old.tobytes() == new.tobytes(), f"{op} changes its arguments"
    if kernel.in_place and _can_be_result(arguments[0], results[0]):
        check_in_place(kernel, arguments, results[0])
    return tuple(None if t is None else to_torch(r, t.dtype) for r, t in zip(results, expected, strict=True))


def _can_be_result(first: Any, result: np.ndarray) -> bool:
    return isinstance(first, np.ndarray) and (first.dtype, first.shape) == (result.dtype, result.shape)


def check_in_place(kernel: Kernel, arguments: list[Any], result: np.ndarray) -> None:
    """Assert that the kernel gives the same results in the memory of its first argument."""
    memory = arguments[0].copy(order="C")
    with np.errstate(all="ignore"):
        kernel.function(memory, *arguments[1:], out=memory)
    inexact = result.dtype.kind == "c"  # NumPy's products of complex numbers differ in the last bit in place
    if inexact:
        assert_same(memory, result, each=True)
    else:
        assert memory.tobytes() == result.tobytes(), f"{kernel.op} is not right in place"


def is_list(op: OpOverload) -> bool:
    """Return if the operator returns a list of tensors."""
    return len(op._schema.returns) == 1 and isinstance(op._schema.returns[0].type, torch.ListType)


def schema_arguments(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return all arguments in the order of the operator's schema, with defaults filled in."""
    filled = []
    for position, argument in enumerate(op._schema.arguments):
        if position < len(args):
            filled.append(args[position])
        elif argument.name in kwargs:
            filled.append(kwargs[argument.name])
        else:
            filled.append(argument.default_value if argument.has_default_value() else None)
    return filled


def to_runtime(arg: Any) -> Any:
    """Convert an argument to what the runtime passes to a kernel, with the same strides."""
    if isinstance(arg, torch.Tensor):
        bits = arg.detach().view(torch.uint16) if arg.dtype is torch.bfloat16 else arg.detach()
        return bits.resolve_conj().numpy()
    if isinstance(arg, torch.dtype):
        return dtype_of(arg)
    if isinstance(arg, _IGNORED):
        return None
    if isinstance(arg, list | tuple):
        return [to_runtime(a) for a in arg]
    return arg


def to_torch(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Convert a result to a tensor."""
    array_dtype = DType.bfloat16 if array.dtype == np.uint16 and dtype is torch.bfloat16 else DType.of(array.dtype)
    bits = torch.from_numpy(np.array(array, order="C"))
    return bits.view(torch.bfloat16) if array_dtype is DType.bfloat16 else bits.to(torch_dtype(array_dtype))


def garbage(like: torch.Tensor) -> np.ndarray:
    """Return memory of a tensor's shape and dtype, with contents that a kernel must overwrite."""
    array = to_runtime(torch.empty(like.shape, dtype=like.dtype))
    if array.dtype.kind in "fc":
        array.fill(np.nan)
    elif array.dtype == np.bool_:
        array.view(np.uint8).fill(1)
    else:
        array.fill(np.iinfo(array.dtype).max)
    return array


def tensors_in(arguments: list[Any]) -> Iterator[torch.Tensor]:
    """Return the tensors among arguments, including those in lists."""
    for arg in arguments:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from tensors_in(list(arg))


def tensors_in_runtime(arguments: list[Any]) -> Iterator[np.ndarray]:
    """Return the arrays among arguments, including those in lists."""
    for arg in arguments:
        if isinstance(arg, np.ndarray):
            yield arg
        elif isinstance(arg, list):
            yield from tensors_in_runtime(arg)


def describe(value: Any) -> str:
    """Return a text of arguments for messages."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(describe, value)) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {describe(v)}" for k, v in value.items()) + "}"
    return repr(value)


def sample(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    """Return a reproducible tensor of any dtype: normal values times `scale`, or integers that fit the dtype."""
    generator = torch.Generator().manual_seed(seed + math.prod(shape))
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point and not dtype.is_complex:
        low = 0 if dtype is torch.uint8 else -10
        return torch.randint(low, 11, shape, generator=generator).to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return (torch.randn(shape, generator=generator, dtype=wide) * scale).to(dtype)
