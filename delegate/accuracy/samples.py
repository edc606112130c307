"""The inputs that a program is verified on, and their origin."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from delegate.edge.program import META_VALUE
from delegate.edge.signature import read_inputs
from delegate.edge.torch_private import pytree
from delegate.errors import InputError, did_you_mean
from delegate.report.rows import InputOrigin
from delegate.runtime.backend import Array

_ACCEPTED = "give a tuple of arguments, a dict of keyword arguments, or a list of these; by method, a dict of these"


@dataclass(frozen=True, slots=True)
class Sample:
    """The arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def samples_of(inputs: Any, exported: Mapping[str, ExportedProgram]) -> dict[str, list[Sample]]:
    """Return the calls to verify each method on, in the order of `inputs`.

    Args:
        inputs: the calls of the only method, or a dict of these by method. Calls are a list of samples, or one sample.
            A sample is a tuple of arguments, a dict of keyword arguments, or one tensor.
        exported: the methods.

    Raises:
        InputError: `inputs` is none of these, names an unknown method, or holds no sample.
    """
    if isinstance(inputs, Mapping) and inputs and set(inputs) <= set(exported):
        by_method = dict(inputs)
    elif len(exported) == 1:
        by_method = dict.fromkeys(exported, inputs)
    else:
        _refuse_unknown(inputs, exported)
    return {name: _samples(calls, name) for name, calls in by_method.items()}


def example_samples(exported: Mapping[str, ExportedProgram]) -> dict[str, list[Sample]]:
    """Return the inputs that methods were exported with; raises InputError if a method has lost them."""
    missing = next((name for name, ep in exported.items() if ep.example_inputs is None), None)
    if missing is not None:
        what = f"there are bounds to verify, but no inputs, and method {missing} has no example inputs"
        raise InputError(what, remedy="give inputs: to_backend(..., verify=inputs), or `delegate lower --verify FILE`")
    return {name: [Sample(*ep.example_inputs)] for name, ep in exported.items() if ep.example_inputs is not None}


# Fewer elements of other data can be spread like random ones, and more add nothing.
_LEAST_RANDOM, _MOST_RANDOM = 1000, 100_000
_DEVIATION = 2.0  # of random numbers from their distribution, times the root of their number, is less in 99.9% of cases


def origin_of(samples: Sequence[Sample]) -> InputOrigin:
    """Return RANDOM for calls that a user gave if all their large tensors of floats look random, else GIVEN."""
    leaves = pytree.tree_leaves([(call.args, dict(call.kwargs)) for call in samples])
    floats = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    large = [leaf for leaf in floats if leaf.numel() >= _LEAST_RANDOM]
    return InputOrigin.RANDOM if large and all(map(_looks_random, large)) else InputOrigin.GIVEN


def _looks_random(tensor: torch.Tensor) -> bool:
    """Return True for numbers like the results of torch.randn or torch.rand.

    They have one of these distributions (Kolmogorov-Smirnov test), and neighbours are not correlated.
    """
    values = tensor.detach().cpu().flatten()[:_MOST_RANDOM].double()
    bound = _DEVIATION / math.sqrt(len(values))
    correlation = torch.corrcoef(torch.stack((values[:-1], values[1:])))[0, 1]
    ordered = values.sort().values
    ranks = (torch.arange(len(values), dtype=torch.float64) + 0.5) / len(values)
    distributions = torch.special.ndtr(ordered), ordered.clamp(0, 1)
    return bool(correlation.abs() < 2 * bound) and any(bool((d - ranks).abs().max() < bound) for d in distributions)


def input_names(ep: ExportedProgram) -> list[str]:
    """Return the names of the inputs that the caller chooses, in order: all but those that export fixed."""
    return [leaf.name for leaf in read_inputs(ep) if not leaf.is_literal]


def sample_of(ep: ExportedProgram, arrays: Mapping[str, Array]) -> Sample:
    """Return the call with these arrays.

    Args:
        ep: the method.
        arrays: Input name -> array. A bfloat16 input is its bits in uint16; a number is an array of one element.
    """
    types = {n.name: n.meta[META_VALUE] for n in ep.graph.find_nodes(op="placeholder")}
    leaves = [
        leaf.literal if leaf.is_literal else _value(arrays[leaf.name], types[leaf.node]) for leaf in read_inputs(ep)
    ]
    args, kwargs = pytree.tree_unflatten(leaves, ep.call_spec.in_spec)
    return Sample(args, kwargs)


def _value(array: Array, like: Any) -> Any:
    """Convert an array to the tensor, or the number, that an input requires."""
    if not isinstance(like, torch.Tensor):
        return array.item()
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if like.dtype is torch.bfloat16 and array.dtype == "uint16" else tensor


def _refuse_unknown(inputs: Any, exported: Mapping[str, ExportedProgram]) -> None:
    names = list(exported)
    if not isinstance(inputs, Mapping):
        what = f"the program has {len(names)} methods, but the inputs to verify do not name one"
        raise InputError(what, remedy=f"give a dict of inputs by method: {', '.join(names)}")
    unknown = next((str(name) for name in inputs if name not in exported), "")
    raise InputError(f"the inputs to verify name an unknown method {unknown!r}", remedy=did_you_mean(unknown, names))


def _samples(calls: Any, method: str) -> list[Sample]:
    samples = calls if isinstance(calls, list) else [calls]
    if not samples:
        raise InputError(f"there are no inputs to verify method {method} on", remedy="give at least one sample")
    return [_sample(call, method) for call in samples]


def _sample(call: Any, method: str) -> Sample:
    if isinstance(call, Sample):
        return call
    if isinstance(call, torch.Tensor | np.ndarray):
        return Sample((torch.as_tensor(call),))
    call = pytree.tree_map_only(np.ndarray, torch.from_numpy, call)
    if isinstance(call, Mapping):
        return Sample(kwargs=dict(call))
    if isinstance(call, tuple | list):
        return Sample(tuple(call))
    raise InputError(f"cannot verify method {method} on a {type(call).__name__}", remedy=_ACCEPTED)
