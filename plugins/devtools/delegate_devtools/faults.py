"""The kinds of faults: compare results with torch, and with torch at lower precision, to name the cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch.fx import Node

from delegate.accuracy.recording import RecordedCall, Tensors
from delegate.accuracy.reference import EagerRegion
from delegate.edge.node import module_path, op_name, source_line
from delegate.errors import AccuracyError
from delegate_devtools.diagnosis import FaultKind, FaultyNode
from delegate_devtools.recorder import to_float64

_FLOAT16_MAX = 65504.0
_FLOAT16_ERROR = 0.05  # relative, or absolute below 1: more than a few roundings of float16
_FEWEST_CLAMPED = 2  # elements at an end of the range: one may be a coincidence
_MANY = 0.9  # share of elements that a hypothesis must explain
_MOST = 0.5  # share of the elements beyond float16 that must be wrong: a library may compute some at higher precision
_CLOSE = 1e-3  # relative difference up to which two numbers count as the same, when a hypothesis is tested
_FLOAT32 = 1e-5  # noise of a few roundings of float32, over the size of the results
_AS_NOISY = 4.0  # times the error of a rounding that the rounding may explain


def faulty_node(node: Node) -> FaultyNode:
    """Return a node of a graph as a node at fault."""
    return FaultyNode(node.name, op_name(node), module_path(node), source_line(node))


def kind_of(call: RecordedCall, eager: EagerRegion | None, exact: Tensors = ()) -> FaultKind:
    """Return the kind of a fault.

    Args:
        call: the inputs, and the results here and in torch.
        eager: the operators in torch, to run them at lower precision; None: they cannot be run again.
        exact: torch's results in float64, if they are known.
    """
    actual, expected = _flat(call.actual), _flat(call.expected)
    half = _at_precision(eager, call.inputs, _to_float16)
    beyond = expected.isfinite() & (expected.abs() > _FLOAT16_MAX)
    if half is not None:
        beyond |= expected.isfinite() & ~half.isfinite()
    lost = expected.isfinite() & ~actual.isfinite()
    if lost.any():
        return _not_finite(actual, expected, lost, beyond)
    if (expected.isnan() & ~actual.isnan()).any():
        count = int((expected.isnan() & ~actual.isnan()).sum())
        return FaultKind("NaN", f"{count} of {len(expected)} elements are NaN in torch, and are numbers here")
    if (overflow := _explain_overflow(actual, expected, beyond)) is not None:
        return overflow
    finite = expected.isfinite() & actual.isfinite()
    actual, expected = actual[finite], expected[finite]
    for hypothesis in (_explain_clamp, partial(_explain_rounding, exact=exact), _moved_or_scaled):
        if (kind := hypothesis(actual, expected, call, eager)) is not None:
            return kind
    return FaultKind("wrong values")


def _not_finite(actual: torch.Tensor, expected: torch.Tensor, lost: torch.Tensor, beyond: torch.Tensor) -> FaultKind:
    """Return the kind of results that are not finite, some of which may be beyond float16."""
    what = "NaN" if actual[lost].isnan().any() else "infinity"
    if float(beyond[lost].float().mean()) > _MANY or (what == "infinity" and bool(beyond[lost].any())):
        return _overflow(what, expected, lost)
    return FaultKind(what, f"{int(lost.sum())} of {len(lost)} elements are {what}, and are numbers in torch")


def _explain_overflow(actual: torch.Tensor, expected: torch.Tensor, beyond: torch.Tensor) -> FaultKind | None:
    """Explain results that are wrong where float16 cannot hold torch's results; a library may return anything there."""
    wrong = ~((actual - expected).abs() <= _FLOAT16_ERROR * expected.abs().clamp(min=1)) & expected.isfinite()
    lost = wrong & beyond
    if not lost.any() or float(lost[wrong].float().mean()) < _MANY or float(lost[beyond].float().mean()) < _MOST:
        return None
    return _overflow("zero" if not actual[lost].any() else "other numbers", expected, lost)


def _overflow(what: str, expected: torch.Tensor, lost: torch.Tensor) -> FaultKind:
    largest = float(expected[lost].abs().max())
    cause = f"the result reaches {largest:.3g}" if largest > _FLOAT16_MAX else "an intermediate result is larger still"
    text = f"{int(lost.sum())} of {len(lost)} elements are {what}"
    text += "" if what == "other numbers" else ", and are numbers in torch"
    return FaultKind("overflow", f"{text}; float16 ends at {_FLOAT16_MAX:g}, and {cause}")


def _explain_clamp(
    actual: torch.Tensor, expected: torch.Tensor, call: RecordedCall, eager: EagerRegion | None
) -> FaultKind | None:
    """Explain results that are torch's results, clamped to a range."""
    if not actual.any():
        return None
    low, high = float(actual.min()), float(actual.max())
    tolerance = _CLOSE * max(abs(low), abs(high))
    wrong = (actual - expected).abs() > tolerance
    at_end = ((actual >= high - tolerance) & (expected > high)) | ((actual <= low + tolerance) & (expected < low))
    if int((wrong & at_end).sum()) < _FEWEST_CLAMPED or float(at_end[wrong].float().mean()) < _MANY or wrong.all():
        return None
    least, most = float(expected.min()), float(expected.max())
    fit = f"a range of {least:.4g} to {most:.4g} would fit"
    fit += (
        f": scale {(most - least) / 255:.3g} in 8 bits" if any(not t.is_floating_point() for t in call.inputs) else ""
    )
    share = float((wrong & at_end).float().mean())
    text = f"{share:.0%} of the elements are cut off at {low:.4g} or {high:.4g}"
    return FaultKind("saturation", f"{text}; {fit}" if call.expected[0].is_floating_point() else text)


def _explain_rounding(
    actual: torch.Tensor, expected: torch.Tensor, call: RecordedCall, eager: EagerRegion | None, exact: Tensors
) -> FaultKind | None:
    """Explain an error that torch has too if it computes at lower precision."""
    noise = _noise(actual, expected)
    if 0 < noise <= _FLOAT32 * math.sqrt(float(expected.square().mean())):
        return FaultKind("rounding", f"the error is {_share(noise, expected)}: float32 rounds like that")
    is_rerun = eager is not None and not eager.choices  # float64 may have another right answer
    wide = _flat(exact) if exact else _at_precision(eager if is_rerun else None, call.inputs, to_float64)
    if wide is not None and noise:
        finite = _flat(call.expected).isfinite() & _flat(call.actual).isfinite()
        own = _noise(_flat(call.expected)[finite], wide[finite])
        if noise <= _AS_NOISY * own:
            return FaultKind("rounding", f"torch has an error of {_share(own, expected)} too, compared with float64")
    for name, change in _ROUNDINGS.items():
        emulated = _at_precision(eager, call.inputs, change)
        if emulated is None:
            continue
        finite = _flat(call.expected).isfinite() & _flat(call.actual).isfinite() & emulated.isfinite()
        own = _noise(emulated[finite], _flat(call.expected)[finite])
        if own > 0 and own / _AS_NOISY**2 <= noise <= _AS_NOISY * own:
            return FaultKind("precision", f"torch has an error of {_share(own, expected)} too if it computes in {name}")
    return None


def _moved_or_scaled(
    actual: torch.Tensor, expected: torch.Tensor, call: RecordedCall, eager: EagerRegion | None
) -> FaultKind | None:
    """Explain results that have a simple relation to torch's results."""
    if not len(actual):
        return None
    share = float(((actual - expected).abs() > _CLOSE * expected.abs().max()).float().mean())
    relation = next(_relations(actual, expected, call, eager), "") if share > 1 - _MANY else ""
    return FaultKind("wrong values", relation or f"{share:.0%} of the elements differ")


def _relations(
    actual: torch.Tensor, expected: torch.Tensor, call: RecordedCall, eager: EagerRegion | None
) -> Iterator[str]:
    """Return the relations that hold, in words."""
    size = float(expected.abs().max())
    if size and not actual.any():
        yield "all elements are zero"
    if _close(actual.sort().values, expected.sort().values, size):
        yield "the elements are those of torch in other places"
    if _close(actual, -expected, size):
        yield "all elements have the other sign"
    offset = float((actual - expected).median())
    if abs(offset) > _CLOSE * size and _close(actual, expected + offset, size):
        yield f"all elements are off by {offset:.4g}"
    large = expected.abs() > _CLOSE * size
    factor = float((actual[large] / expected[large]).median()) if large.any() else 0.0
    if factor and _close(actual, expected * factor, size * max(1.0, abs(factor))):
        yield f"all elements are {factor:.4g} times those of torch"
    if eager is not None and _is_swapped(actual, call, eager, size):
        yield "the results are those of torch with both operands swapped"


def _is_swapped(actual: torch.Tensor, call: RecordedCall, eager: EagerRegion, size: float) -> bool:
    """Return if an operator of two inputs of one type returned its result for swapped inputs."""
    if len(call.inputs) != 2 or call.inputs[0].shape != call.inputs[1].shape or eager.region.constants:
        return False
    try:
        swapped = _flat(tuple(eager.results(call.inputs[::-1])))
    except AccuracyError:
        return False
    finite = _flat(call.expected).isfinite() & _flat(call.actual).isfinite()
    return _close(actual, swapped[finite], size)


def _to_float16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float16) if tensor.is_floating_point() else tensor


def to_int8(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor rounded to 255 steps around zero, as symmetric int8 quantization does."""
    if not tensor.is_floating_point() or not tensor.numel():
        return tensor
    step = tensor.abs().max() / 127
    return (tensor / step).round() * step if bool(step > 0) else tensor


_ROUNDINGS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float16": _to_float16,
    "bfloat16": lambda t: t.to(torch.bfloat16) if t.is_floating_point() else t,
    "int8": to_int8,
}


def _at_precision(
    eager: EagerRegion | None, inputs: Tensors, change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor | None:
    """Return the results of operators whose inputs and constants are changed; None if torch cannot run them so."""
    if eager is None:
        return None
    try:
        return _flat(tuple(eager.run_changed(inputs, change)))
    except AccuracyError:
        return None


def _flat(tensors: Tensors) -> torch.Tensor:
    """Return all elements as float64 in one dimension."""
    parts = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    return torch.cat([t.detach().to(torch.float64).flatten() for t in parts])


def _noise(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return math.sqrt(float((actual - expected).square().mean())) if len(actual) else 0.0


def _share(noise: float, expected: torch.Tensor) -> str:
    size = math.sqrt(float(expected.square().mean()))
    return f"{noise / size:.1g} of its size" if size else f"{noise:.1g}"


def _close(actual: torch.Tensor, other: torch.Tensor, size: float) -> bool:
    return actual.shape == other.shape and bool(((actual - other).abs() <= _CLOSE * size).float().mean() > _MANY)
