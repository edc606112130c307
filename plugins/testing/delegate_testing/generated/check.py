"""Comparison of lowered samples of all families with eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st

import delegate
from delegate.compiled import CompiledProgram
from delegate.edge.torch_private import pytree
from delegate.errors import BackendFailed, DelegateError, ExecutionError
from delegate_testing.comparison import assert_same
from delegate_testing.generated.images import adaptive_pools, convolutions, pads, pools, resizes, shuffles
from delegate_testing.generated.places import places, programs
from delegate_testing.generated.sample import FunctionSample, vary
from delegate_testing.generated.tensors import activations, binaries, norms, products, reductions

FAMILIES: dict[str, st.SearchStrategy[FunctionSample]] = {
    "pools": pools(),
    "adaptive pools": adaptive_pools(),
    "convolutions": convolutions(),
    "pads": pads(),
    "resizes": resizes(),
    "shuffles": shuffles(),
    "reductions": reductions(),
    "norms": norms(),
    "places": places(),
    "activations": activations(),
    "binaries": binaries(),
    "products": products(),
    "programs": programs(),
}


_SMALLEST = 0.01  # where terms of a sum cancel, its error is relative to the terms, not to the sum


def check(sample: FunctionSample, backends: Any, tolerance: float, *, delegated_only: bool = False) -> CompiledProgram:
    """Lower a sample, compare it with eager at all its sizes, and return the program.

    Samples that torch cannot export are rejected, and if the exported module refuses a size, the program must refuse
    it.

    Args:
        sample: the sample to lower.
        backends: the argument of `to_backend`, or a configuration as a dict.
        tolerance: the largest error, relative to each value or to the largest.
        delegated_only: compare only samples of which a backend runs a part.
    """
    first, *others = sample.calls()
    module = sample.module()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, first, dynamic_shapes=sample.dynamic_shapes())
            module(*first)
    except Exception:  # attributes that torch does not accept
        reject()
    config = backends if isinstance(backends, dict) else None
    program = delegate.to_backend(exported, backends if config is None else None, config=config)
    if delegated_only and not program.report.partitions:
        return program
    reference = exported.module()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*degrees of freedom is <= 0")  # eager's, of variances of one number
        assert_same(program(*map(_by_columns, first)), module(*first), tolerance, at_least=_SMALLEST)
        for inputs in (first, *others):
            try:
                reference(*inputs)
            except Exception:
                _assert_refused(program, inputs)
            else:
                assert_same(program(*inputs), module(*inputs), tolerance, at_least=_SMALLEST)
    return program


def comparison_property(
    family: str,
    backends: Any,
    tolerance: float,
    examples: int,
    *,
    dynamic: bool = True,
    delegated_only: bool = False,
    check: Callable[..., object] = check,
) -> Callable[[], None]:
    """Return a property test: lowered samples of a family equal eager, on samples that are the same in every run.

    Args:
        family: a key of `FAMILIES`.
        backends, tolerance, delegated_only: see `check`.
        examples: the number of samples.
        dynamic: if some samples have dynamic sizes.
        check: called with each sample and the arguments of `check`, e.g. to count the nodes that a backend runs.
    """

    @seed(0)  # the same samples in every run
    @settings(
        max_examples=examples, database=None, deadline=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,  # one failure has a plain message
    )  # fmt: skip
    @given(vary(FAMILIES[family], dynamic=dynamic))
    def run(sample: FunctionSample) -> None:
        check(sample, backends, tolerance, delegated_only=delegated_only)

    return run


def _by_columns(x: torch.Tensor) -> torch.Tensor:
    """Return the same tensor in column-major order."""
    dims = tuple(reversed(range(x.dim())))
    return x.permute(dims).contiguous().permute(dims)


def _assert_refused(program: Any, inputs: Sequence[torch.Tensor]) -> None:
    try:
        results = program(*inputs)
    except (ExecutionError, BackendFailed):  # a backend's library may be the first to find that sizes do not fit
        return
    except DelegateError as error:
        raise AssertionError(
            f"the exported module rejects {_shapes(inputs)}, but the program raises {error!r}"
        ) from error
    raise AssertionError(f"the exported module rejects {_shapes(inputs)}, but the program returns {_shapes(results)}")


def _shapes(tree: Any) -> list[list[int]]:
    return [list(x.shape) for x in pytree.tree_leaves(tree)]
