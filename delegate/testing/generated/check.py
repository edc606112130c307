"""What samples give when they are lowered, against eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from hypothesis import HealthCheck, Phase, given, reject, settings

import delegate
from delegate.errors import DelegateError, ExecutionError
from delegate.testing.comparison import assert_same
from delegate.testing.generated.families import FAMILIES
from delegate.testing.generated.sample import Sample, vary

_SMALLEST = 0.01  # sums of values that cancel each other have errors of the values' size


def compared(
    family: str, backends: Any, tolerance: float, examples: int, *, dynamic: bool = True, taken_alone: bool = False
) -> Callable[[], None]:
    """A property: samples of a family, lowered, give what eager gives. They are the same at every run.

    Args:
        family: one of `FAMILIES`.
        backends, tolerance, taken_alone: see `check`.
        examples: how many samples are tried.
        dynamic: whether some have dynamic sizes.
    """

    @settings(
        max_examples=examples, database=None, deadline=None, derandomize=True, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(vary(FAMILIES[family], dynamic=dynamic))
    def run(sample: Sample) -> None:
        check(sample, backends, tolerance, taken_alone=taken_alone)

    return run


def check(sample: Sample, backends: Any, tolerance: float, *, taken_alone: bool = False) -> set[str]:
    """Lower a sample and compare it with eager at all its sizes; gives the backends that took part of it.

    What torch does not export is rejected; sizes that the exported module refuses, the program has to refuse.

    Args:
        sample: what is lowered.
        backends: what `to_backend` takes for them, or a dict that is a configuration.
        tolerance: largest error, relative to each value or to the largest.
        taken_alone: compare only where a backend took part of it.
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
    taken = {node.backend for node in program.report.nodes}
    if taken_alone and not program.report.partitions:
        return taken
    again = exported.module()
    assert_same(program(*map(_by_columns, first)), module(*first), tolerance, at_least=_SMALLEST)
    for inputs in (first, *others):
        try:
            again(*inputs)
        except Exception:
            _refused(program, inputs)
        else:
            assert_same(program(*inputs), module(*inputs), tolerance, at_least=_SMALLEST)
    return taken


def _by_columns(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, the first dimension the fastest in memory."""
    dims = tuple(reversed(range(x.dim())))
    return x.permute(dims).contiguous().permute(dims)


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
