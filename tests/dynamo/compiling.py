"""torch.compile by this project, and the programs that it lowers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from delegate.compiled import CompiledProgram
from delegate.dynamo.backend import compile_graph


def compiled(function: Callable[..., Any], *, dynamic: bool | None = None, **options: Any) -> Any:
    """The function, compiled; on XNNPACK where the options name no backends."""
    return torch.compile(function, backend=compile_graph, dynamic=dynamic, options={"backends": "xnnpack", **options})


class Lowered(list[CompiledProgram]):
    """The programs of the graphs that were compiled, in order."""

    @property
    def backends(self) -> set[str]:
        """Where their nodes run."""
        return {node.backend for program in self for node in program.report.nodes}
