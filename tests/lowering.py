"""Modules on their way through the whole compiler, for tests."""

from __future__ import annotations

from typing import Any

import torch

import delegate
from delegate.compiled import CompiledProgram
from delegate.testing import assert_same, relative_error

__all__ = ["assert_same", "compiled", "relative_error"]


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
