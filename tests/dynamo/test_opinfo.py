"""Torch's OpInfo through torch.compile: results and gradients of operators as in eager.

`make test-slow` takes all entries; the default run some of every family.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from delegate.testing import assert_same
from tests.dynamo.compiling import Lowered, compiled
from tests.kernels.opinfo import database

SOME = [
    "addmm", "amax", "atan2", "bmm", "cat", "clamp", "cumsum", "diagonal", "expand", "fft.rfft", "gather", "index_put",
    "linalg.solve", "logsumexp", "masked_fill", "matmul", "nn.functional.avg_pool2d", "nn.functional.batch_norm",
    "nn.functional.conv2d", "nn.functional.cross_entropy", "nn.functional.embedding", "nn.functional.gelu",
    "nn.functional.group_norm", "nn.functional.interpolate", "nn.functional.layer_norm", "nn.functional.max_pool2d",
    "nn.functional.pad", "nn.functional.scaled_dot_product_attention", "prod", "scatter_add", "softmax", "sort",
    "split", "std", "topk", "tril", "unfold", "var", "where",
]  # fmt: skip
# What torch itself does not do the same way twice, or not in a compiled graph.
KNOWN: dict[str, str] = {}
# Entries of which dynamo gives this project no graph.
WITHOUT_GRAPH = {"nn.functional.scaled_dot_product_attention"}


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def ran(function: Any, entry: Any, sample: Any, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a function, then the gradients of the sum of those that have any."""
    torch.manual_seed(0)
    results = function(*given)
    found = [t.detach() for t in tensors(results)]
    losses = [t for t in tensors(sample.output_process_fn_grad(results)) if t.requires_grad]
    wanted = [t for t in given if t.requires_grad]
    if losses and wanted:
        total = sum(t.abs().sum() if t.is_complex() else t.sum() for t in losses)
        found += [t for t in torch.autograd.grad(total, wanted, allow_unused=True) if t is not None]
    return found


def problem(entry: Any) -> str:
    """What differs from eager in the first sample of an entry; empty where nothing does."""
    sample = next(iter(entry.sample_inputs("cpu", torch.float32, requires_grad=entry.supports_autograd)), None)
    if sample is None:
        return ""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*given: torch.Tensor) -> Any:
        own = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            own[place] = tensor
        first, args, kwargs = tree_unflatten(own, spec)
        return entry.op(first, *args, **kwargs)

    given = [leaves[i] for i in places]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted, again = (ran(function, entry, sample, given) for _ in range(2))
            if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(wanted, again, strict=True)):
                return ""  # memory that nobody has filled
        except Exception:  # torch itself does not run it here, or it is sparse
            return ""
        try:
            found = ran(compiled(function), entry, sample, given)
            assert_same(found, wanted, 2e-4, at_least=0.1)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.fixture(scope="module")
def entries() -> list[Any]:
    return database()


@pytest.mark.parametrize("name", SOME)
def test_some_entries(entries: list[Any], name: str, lowered: Lowered) -> None:
    chosen = [entry for entry in entries if entry.name == name]
    assert chosen
    assert [problem(entry) for entry in chosen] == [""] * len(chosen)
    assert bool(lowered) == (name not in WITHOUT_GRAPH)


@pytest.mark.slow
def test_every_entry(entries: list[Any]) -> None:
    found = {}
    for entry in entries:
        torch._dynamo.reset()
        if why := problem(entry):
            found[entry.formatted_name] = why
    assert {name: why for name, why in found.items() if name not in KNOWN} == {}
