"""The private names of torch that only this package uses; `delegate.edge.torch_private` has the others.

Torch has a public replacement for none of them, so a new version of torch is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends import common
from torch._export.verifier import SpecViolationError  # what ExportedProgram raises for a wrong graph
from torch._guards import TracingContext, tracing  # the state of torch.compile while it calls a backend
from torch.export import ExportedProgram
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes

__all__ = ["SpecViolationError", "TracingContext", "disable_current_modes", "tracing"]

SET_GRAD_ENABLED = torch._C._set_grad_enabled  # as graphs of torch.compile call it
# Returns a backend of torch.compile on ATen graphs, as torch's page on custom backends has it.
aot_autograd: Callable[..., Callable[..., Any]] = common.aot_autograd


def drop_guards(ep: ExportedProgram) -> None:
    """Remove the conditions on inputs that an export assumes."""
    ep._guards_code = []
