"""Calls torch.compile with this project's backend, and collects the lowered programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from delegate.compiled import CompiledProgram
from delegate.dynamo.backend import compile_graph


def compiled(function: Callable[..., Any], *, dynamic: bool | None = None, **options: Any) -> Any:
    """Return the compiled function; on XNNPACK if the options name no backends."""
    return torch.compile(function, backend=compile_graph, dynamic=dynamic, options={"backends": "xnnpack", **options})


class Lowered(list[CompiledProgram]):
    """The programs of the compiled graphs, in order."""

    @property
    def backends(self) -> set[str]:
        """Return the backends of the nodes of the programs."""
        return {node.backend for program in self for node in program.report.nodes}
