"""Calls torch.compile with this project's backend, and collects the lowered programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from delegate_torch_compile.backend import compile_graph

from delegate.compiled import CompiledProgram
from tests.support.lowering import answers


def compile_on(function: Callable[..., Any], *, dynamic: bool | None = None, **options: Any) -> Any:
    """Return the compiled function; on XNNPACK if the options name no backends."""
    return torch.compile(function, backend=compile_graph, dynamic=dynamic, options={"backends": "xnnpack", **options})


class Lowered(list[CompiledProgram]):
    """The programs of the compiled graphs, in order."""

    @property
    def backends(self) -> set[str]:
        """Return the backends of the nodes of the programs."""
        return {node.backend for program in self for node in program.report.nodes}

    @property
    def answers(self) -> dict[str, int]:
        """Return how many nodes XNNPACK runs ("runs"), and how many it refuses for each reason."""
        found: Counter[str] = Counter()
        for program in self:
            found.update(answers(program, "xnnpack"))
        return dict(found)
