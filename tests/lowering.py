"""Modules on their way through the whole compiler, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

import delegate
from delegate.compiled import CompiledProgram


def compiled(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    backends: Any = (),
    config: Any = None,
    dynamic_shapes: Any = None,
    kernels: Any = None,
) -> CompiledProgram:
    """The module exported and lowered; portable kernels alone unless backends are given."""
    exported = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=dynamic_shapes)
    return delegate.to_backend(exported, backends if config is None else None, config=config, kernels=kernels)


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Equal structure, dtypes and shapes; values equal up to a relative error of the largest value."""
    actual_leaves, actual_spec = pytree.tree_flatten(actual)
    expected_leaves, expected_spec = pytree.tree_flatten(expected)
    assert actual_spec == expected_spec
    for got, wanted in zip(actual_leaves, expected_leaves, strict=True):
        assert type(got) is type(wanted)
        if not isinstance(wanted, torch.Tensor):
            assert got == wanted
            continue
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        assert relative_error(got, wanted) <= tolerance


def relative_error(actual: Any, expected: Any) -> float:
    """The largest absolute difference over the largest absolute expected value."""
    got, wanted = (
        np.asarray(x.detach().double() if isinstance(x, torch.Tensor) else x, np.float64) for x in (actual, expected)
    )
    if not wanted.size:
        return 0.0
    return float(np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-30))
