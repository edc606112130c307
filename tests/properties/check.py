"""What a sample gives when it is lowered, against eager."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from hypothesis import reject

import delegate
from delegate.errors import DelegateError, ExecutionError
from tests.properties.sample import Sample


def check(sample: Sample, backends: Any, tolerance: float) -> set[str]:
    """Lower a sample and compare it with eager at all its sizes; gives the backends that took part of it.

    `backends` is what `to_backend` takes for them, or a dict that is a configuration.

    What torch does not export is rejected; sizes that the exported module refuses, the program has to refuse.
    """
    first, *others = sample.calls()
    module = sample.module()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, first, dynamic_shapes=sample.dynamic_shapes())
            module(*first)
    except Exception:  # attributes that torch does not take
        reject()
    config = backends if isinstance(backends, dict) else None
    program = delegate.to_backend(exported, backends if config is None else None, config=config)
    again = exported.module()
    for inputs in (first, *others):
        try:
            again(*inputs)
        except Exception:
            _refused(program, inputs)
        else:
            same(program(*inputs), module(*inputs), tolerance)
    return {node.backend for node in program.report.nodes}


def _refused(program: Any, inputs: Sequence[torch.Tensor]) -> None:
    try:
        given = program(*inputs)
    except ExecutionError:
        return
    except DelegateError as error:
        raise AssertionError(f"the exported module refuses {_shapes(inputs)}, the program says {error!r}") from error
    raise AssertionError(f"the exported module refuses {_shapes(inputs)}, the program gives {_shapes(given)}")


def _shapes(tree: Any) -> list[list[int]]:
    return [list(x.shape) for x in pytree.tree_leaves(tree)]


def same(actual: Any, expected: Any, tolerance: float) -> None:
    """Equal structure, dtypes and shapes; equal infinities and NaN; the rest equal up to an error of the largest."""
    assert pytree.tree_structure(actual) == pytree.tree_structure(expected)
    for one, other in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        got, wanted = one.double(), other.double()
        finite = wanted[wanted.isfinite()].abs()
        largest = float(finite.max()) if finite.numel() else 0.0
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * max(largest, 0.01), equal_nan=True)
