"""Comparison of results with expected results, for the kit, the project's tests and the plugins' tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from delegate.edge.torch_private import pytree

_BITS = {torch.bfloat16: torch.uint16}  # NumPy has no bfloat16: the runtime returns its bits


def assert_same(
    actual: Any,
    expected: Any,
    tolerance: float = 1e-5,
    *,
    each: bool = False,
    at_least: float = 0.0,
    steps: int = 0,
    signed_zeros: bool = False,
) -> None:
    """Assert that results equal the expected results.

    Structures, dtypes and shapes must be equal, and the places of NaN and of each infinity. Integers, bools and all
    leaves without numbers must be equal. Floating-point and complex numbers may have a relative error.

    Args:
        actual: a pytree of tensors, arrays and other values; an array of uint16 may hold the bits of bfloat16.
        expected: a pytree of the same structure; a tensor and an array count as the same kind of leaf.
        tolerance: the largest allowed error, relative to the largest finite expected value of the leaf; 0 for equality.
        each: make errors relative to each expected value instead.
        at_least: the smallest value that errors are relative to; smaller values are compared absolutely.
        steps: the largest allowed difference of integers.
        signed_zeros: distinguish -0.0 from 0.0.

    Raises:
        AssertionError: with the place of the leaf and of its worst value.
    """
    _check_tolerance(tolerance)
    worst = _worst(actual, expected, each=each, at_least=at_least, steps=steps, signed_zeros=signed_zeros)
    if worst.error > tolerance:
        raise AssertionError(f"{worst}, more than {tolerance:g}")


def relative_error(actual: Any, expected: Any, *, each: bool = False, at_least: float = 0.0) -> float:
    """Return the largest error of results, relative to the largest finite expected value of each leaf.

    Args:
        actual, expected, each, at_least: see `assert_same`.

    Returns:
        a number that is never NaN; infinity if an expected leaf is zero everywhere and the result is not.

    Raises:
        AssertionError: if structures, dtypes, shapes, integers or the places of NaN or infinity differ.
    """
    return _worst(actual, expected, each=each, at_least=at_least, steps=0, signed_zeros=False).error


@dataclass(frozen=True)
class _Error:
    """The relative error of one value and its place."""

    error: float = 0.0
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: relative error {self.error:.3g}"


def _check_tolerance(tolerance: float) -> None:
    if not 0 <= tolerance < 1:
        raise ValueError(f"a tolerance of {tolerance} accepts anything: pass a number from 0 to less than 1")


def _worst(actual: Any, expected: Any, *, each: bool, at_least: float, steps: int, signed_zeros: bool) -> _Error:
    """Return the largest error of all leaves; raise if something differs that has no error."""
    results, actual_spec = pytree.tree_flatten(actual)
    references, expected_spec = pytree.tree_flatten_with_path(expected)
    if actual_spec != expected_spec:
        raise AssertionError(f"the structure is {actual_spec}, expected {expected_spec}")
    worst = _Error()
    for result, (path, reference) in zip(results, references, strict=True):
        name = f"result{pytree.keystr(path)}"
        error = _leaf(name, result, reference, each, at_least, steps, signed_zeros)
        worst = max(worst, error, key=lambda e: e.error)
    return worst


def _leaf(name: str, actual: Any, expected: Any, each: bool, at_least: float, steps: int, signed_zeros: bool) -> _Error:
    if not (_is_numbers(actual) and _is_numbers(expected)):
        if type(actual) is not type(expected) or actual != expected:
            raise AssertionError(f"{name} is {actual!r}, expected {expected!r}")
        return _Error()
    want, got = _tensor(expected), _tensor(actual)
    if isinstance(actual, np.ndarray) and _BITS.get(want.dtype) is got.dtype:
        got = got.view(want.dtype)
    for what, one, other in (("dtype", got.dtype, want.dtype), ("shape", [*got.shape], [*want.shape])):
        if one != other:
            raise AssertionError(f"{name}: {what} {one}, expected {other}")
    if not (want.is_floating_point() or want.is_complex()):
        return _integers(name, got, want, steps)
    return _floats(name, got, want, each, at_least, signed_zeros)


def _integers(name: str, got: Tensor, want: Tensor, steps: int) -> _Error:
    """Compare integers and bools without rounding or overflow."""
    wide = [np.asarray(x.numpy(), np.uint64 if x.dtype is torch.uint64 else np.int64) for x in (got, want)]
    distance = (np.maximum(*wide) - np.minimum(*wide)).view(np.uint64)  # right even if the difference wraps
    if (distance > steps).any():
        position = int(distance.argmax())
        one, other = got.flatten()[position].item(), want.flatten()[position].item()
        within = f" within {steps}" if steps else ""
        raise AssertionError(f"{name}{_index(position, want.shape)} is {one}, expected {other}{within}")
    return _Error()


def _floats(name: str, got: Tensor, want: Tensor, each: bool, at_least: float, signed_zeros: bool) -> _Error:
    sizes = want.abs().double()
    got, want = _doubles(got), _doubles(want)
    places: list[tuple[str, Callable[[Tensor], Tensor]]] = [
        ("NaN", torch.isnan),
        ("infinity", torch.isposinf),
        ("-infinity", torch.isneginf),
    ]
    if signed_zeros:
        places.append(("-0.0", lambda x: x.signbit() & (got == 0) & (want == 0)))
    for what, is_there in places:
        different = is_there(got) != is_there(want)
        if different.any():
            position = int(different.int().argmax())
            one, other = got.flatten()[position].item(), want.flatten()[position].item()
            at = _index(position, want.shape)
            raise AssertionError(f"{name}{at} is {one}, expected {other}: the positions of {what} differ")
    if not want.numel():
        return _Error()
    finite = want.isfinite()
    if want.dim() > sizes.dim():  # the parts of complex numbers
        sizes = sizes.unsqueeze(-1).expand_as(want)
    sizes = sizes.where(sizes.isfinite(), 0.0)
    difference = (got.where(finite, 0.0) - want.where(finite, 0.0)).abs()
    scale = (sizes if each else sizes.max().expand_as(sizes)).clamp(min=at_least)
    error = (difference / scale).where(difference > 0, 0.0)  # a difference from zero is infinitely large
    position = int(error.argmax())
    one, other = got.flatten()[position].item(), want.flatten()[position].item()
    where = f"{name}{_index(position, want.shape)} is {one:.9g}, expected {other:.9g}"
    return _Error(float(error.flatten()[position]), where)


def _index(position: int, shape: torch.Size) -> list[int]:
    """Return the index of the value at a position in row-major order."""
    return [int(i) for i in np.unravel_index(position, tuple(shape))]


def _is_numbers(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | np.ndarray | np.generic) or type(leaf) is float or type(leaf) is complex


def _tensor(leaf: Any) -> Tensor:
    """Return a leaf as a tensor on the CPU, with its own dtype."""
    if isinstance(leaf, Tensor):
        return leaf.detach().resolve_conj().resolve_neg().cpu()
    array = np.array(leaf, order="C")
    if array.dtype.name == "bfloat16":  # of ml_dtypes
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _doubles(x: Tensor) -> Tensor:
    """Return floating-point numbers as float64, the parts of complex numbers in a dimension of their own."""
    return torch.view_as_real(x.to(torch.complex128)) if x.is_complex() else x.double()
