"""Modules on their way through the whole compiler, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import delegate
from delegate.compiled import CompiledProgram
from delegate.plugins import PORTABLE
from delegate.runtime.loaded import LoadedProgram
from delegate.testing import assert_same, relative_error
from delegate.verdict import Reason
from tests.support.functions import Function

__all__ = [
    "answers",
    "assert_runs",
    "assert_same",
    "backend_delegates",
    "compare",
    "compiled",
    "left",
    "refused",
    "relative_error",
    "steps_of",
]


def compiled(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    backends: Any = (),
    config: Any = None,
    dynamic_shapes: Any = None,
    kernels: Any = None,
    portable: Mapping[str, int] | None = None,
) -> CompiledProgram:
    """Export and lower a module, and assert which nodes the requested backends leave to portable kernels.

    Args:
        module: set to evaluation.
        args, kwargs, dynamic_shapes: of the export.
        backends, config, kernels: of `to_backend`; portable kernels alone without backends and configuration.
        portable: operators with the number of their nodes that no requested backend runs.
    """
    exported = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=dynamic_shapes)
    program = delegate.to_backend(exported, backends if config is None else None, config=config, kernels=kernels)
    assert left(program) == dict(portable or {}), f"other nodes are portable than expected:\n{program.report}"
    return program


def compare(
    function: Callable[..., Any],
    calls: Sequence[tuple[torch.Tensor, ...]],
    backends: Any,
    sizes: tuple[Any, ...] | None = None,
    tolerance: float = 0.0,
) -> frozenset[str]:
    """Compare a function with eager on the arguments of each call; return the operators that ran on backends.

    Args:
        function: a module, or a function of tensors.
        calls: the arguments of each call; the first ones are exported.
        backends: names of backends, or a configuration with them.
        sizes: the dynamic sizes of each argument.
        tolerance: see `assert_same`.
    """
    shapes = None if sizes is None else (sizes,)
    exported = torch.export.export(Function(function), calls[0], dynamic_shapes=shapes)
    config = {"backends": backends} if not isinstance(backends, Mapping) else dict(backends)
    program = delegate.to_backend(exported, config=config)
    for inputs in calls:
        assert_same(program(*inputs), function(*inputs), tolerance)
    return frozenset(n.op for n in program.report.nodes if n.backend != PORTABLE)


def steps_of(values: torch.Tensor, step: float) -> torch.Tensor:
    """Return values on the grid of a quantization as numbers of its steps.

    Args:
        values: dequantized values of any shape.
        step: the scale of the quantization.

    Raises:
        AssertionError: if a value is not on the grid.
    """
    steps = values.double() / step
    assert_same(steps, steps.round(), 1e-6, each=True, at_least=1.0)
    return steps.round().long()


def backend_delegates(program: LoadedProgram) -> list[Any]:
    """Return the delegates that backends have created for a program, without guards and fallbacks."""
    delegates: list[Any] = list(program._shared.delegates)
    while wrapped := [i for i, d in enumerate(delegates) if hasattr(d, "_delegate")]:
        for i in wrapped:
            delegates[i] = delegates[i]._delegate
    return delegates


def left(program: CompiledProgram) -> dict[str, int]:
    """Return how many nodes of each operator the requested backends left to kernels, apart from free views."""
    nodes = (n for n in program.report.nodes if n.backend == PORTABLE and n.verdicts)
    return dict(Counter(n.op for n in nodes if all(v.reason is not Reason.BORDER for v in n.verdicts.values())))


def refused(program: CompiledProgram, backend: str) -> dict[str, int]:
    """Return how many nodes of each operator a backend left to others, apart from free views at its border."""
    nodes = (n for n in program.report.nodes if n.backend != backend)
    return dict(Counter(n.op for n in nodes if n.verdicts[backend].reason is not Reason.BORDER))


def answers(program: CompiledProgram, backend: str) -> dict[str, int]:
    """Return how many nodes a backend runs ("runs"), and how many it refused for each reason."""
    nodes = program.report.nodes
    return dict(Counter("runs" if n.backend == backend else n.verdicts[backend].reason.name.lower() for n in nodes))


def assert_runs(program: CompiledProgram, backend: str, expected: Mapping[str, int] | None = None) -> None:
    """Assert that a backend runs every node of a program but the expected refusals.

    Args:
        program: that was lowered for the backend.
        backend: its name.
        expected: operators with the number of their nodes that the backend refuses; a refusal that is gone fails too.
    """
    assert any(n.backend == backend for n in program.report.nodes), f"{backend} runs nothing:\n{program.report}"
    found = refused(program, backend)
    assert found == dict(expected or {}), f"{backend} refuses {found}, expected {expected}"
