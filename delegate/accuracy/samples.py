"""The inputs that a program is verified on, as users give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from delegate.edge.program import META_VALUE
from delegate.edge.signature import read_signature
from delegate.errors import InputError, did_you_mean
from delegate.runtime.backend import Array

_FORMS = "give a tuple of arguments, a dict of keyword arguments, or a list of these; by method, a dict of these"


@dataclass(frozen=True, slots=True)
class Sample:
    """The arguments of one call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def samples_of(given: Any, exported: Mapping[str, ExportedProgram]) -> dict[str, list[Sample]]:
    """Method -> the calls to verify it on, in the order in which methods were given.

    Args:
        given: the calls of the only method, or a dict of these by method. Calls are a list of samples, or one; a sample
            is a tuple of arguments, a dict of keyword arguments, or one tensor.
        exported: the methods.

    Raises:
        InputError: it is none of these, names no method, or holds no sample.
    """
    if isinstance(given, Mapping) and given and set(given) <= set(exported):
        by_method = dict(given)
    elif len(exported) == 1:
        by_method = dict.fromkeys(exported, given)
    else:
        _refuse_unknown(given, exported)
    return {name: _samples(calls, name) for name, calls in by_method.items()}


def example_samples(exported: Mapping[str, ExportedProgram]) -> dict[str, list[Sample]]:
    """The inputs that methods were exported with; raises InputError where a method does not have them any more."""
    missing = next((name for name, ep in exported.items() if ep.example_inputs is None), None)
    if missing is not None:
        what = f"there are bounds to verify, but neither inputs nor the example inputs of method {missing}"
        raise InputError(what, remedy="give some: to_backend(..., verify=inputs), or `delegate lower --verify FILE`")
    return {name: [Sample(*ep.example_inputs)] for name, ep in exported.items() if ep.example_inputs is not None}


def input_names(ep: ExportedProgram) -> list[str]:
    """The inputs of a method that the caller has a choice of, in order: all but those that export fixed."""
    return [given.name for given in read_signature(ep).inputs if not given.is_literal]


def sample_of(ep: ExportedProgram, arrays: Mapping[str, Array]) -> Sample:
    """The call with these arrays.

    Args:
        ep: the method.
        arrays: by the names of its inputs; of a bfloat16 input the bits, in uint16, of a number one element.
    """
    types = {n.name: n.meta[META_VALUE] for n in ep.graph.find_nodes(op="placeholder")}
    leaves = [
        given.literal if given.is_literal else _value(arrays[given.name], types[given.node])
        for given in read_signature(ep).inputs
    ]
    args, kwargs = pytree.tree_unflatten(leaves, ep.call_spec.in_spec)
    return Sample(args, kwargs)


def _value(array: Array, like: Any) -> Any:
    """An array as the tensor, or the number, that an input takes."""
    if not isinstance(like, torch.Tensor):
        return array.item()
    found = torch.from_numpy(array)
    return found.view(torch.bfloat16) if like.dtype is torch.bfloat16 and array.dtype == "uint16" else found


def _refuse_unknown(given: Any, exported: Mapping[str, ExportedProgram]) -> None:
    names = list(exported)
    if not isinstance(given, Mapping):
        what = f"the program has {len(names)} methods, and the inputs to verify name none"
        raise InputError(what, remedy=f"give a dict of inputs by method: {', '.join(names)}")
    unknown = next((str(name) for name in given if name not in exported), "")
    raise InputError(f"the inputs to verify name a method {unknown!r}", remedy=did_you_mean(unknown, names))


def _samples(calls: Any, method: str) -> list[Sample]:
    given = calls if isinstance(calls, list) else [calls]
    if not given:
        raise InputError(f"there are no inputs to verify method {method} on", remedy="give at least one sample")
    return [_sample(call, method) for call in given]


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
    raise InputError(f"a {type(call).__name__} is no sample to verify method {method} on", remedy=_FORMS)
