"""Some entries of every family of torch's OpInfo through torch.compile: results and gradients as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from delegate.testing import assert_same
from tests.support.opinfo import database
from tests.support.sampling import every

from .compiling import Lowered, compile_on

SOME = [
    "addmm", "amax", "atan2", "bmm", "cat", "clamp", "cumsum", "diagonal", "expand", "fft.rfft", "gather", "index_put",
    "linalg.solve", "logsumexp", "masked_fill", "matmul", "nn.functional.avg_pool2d", "nn.functional.batch_norm",
    "nn.functional.conv2d", "nn.functional.cross_entropy", "nn.functional.embedding", "nn.functional.gelu",
    "nn.functional.group_norm", "nn.functional.interpolate", "nn.functional.layer_norm", "nn.functional.max_pool2d",
    "nn.functional.pad", "nn.functional.scaled_dot_product_attention", "prod", "scatter_add", "softmax", "sort",
    "split", "std", "topk", "tril", "unfold", "var", "where",
]  # fmt: skip
DTYPES = (torch.float32, torch.complex64, torch.int64)  # an entry is tried with the first that it supports


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def run(function: Any, sample: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of a function, then the gradients of the sum of differentiable results."""
    torch.manual_seed(0)
    results = function(*inputs)
    values = [t.detach() for t in tensors(results)]
    losses = [t for t in tensors(sample.output_process_fn_grad(results)) if t.requires_grad]
    differentiable = [t for t in inputs if t.requires_grad]
    if losses and differentiable:
        total = sum(t.abs().sum() if t.is_complex() else t.sum() for t in losses)
        values += [t for t in torch.autograd.grad(total, differentiable, allow_unused=True) if t is not None]
    return values


@pytest.fixture(scope="module")
def entries() -> list[Any]:
    return database()


@pytest.mark.parametrize("name", every(4, SOME))
def test_as_in_eager(entries: list[Any], name: str, lowered: Lowered, recwarn: pytest.WarningsRecorder) -> None:
    chosen = [entry for entry in entries if entry.name == name]
    assert chosen
    for entry in chosen:
        torch._dynamo.reset()
        dtype = next(d for d in DTYPES if d in entry.supported_dtypes("cpu"))
        gradients = entry.supports_autograd and dtype is torch.float32
        sample = next(iter(entry.sample_inputs("cpu", dtype, requires_grad=gradients)))
        function, inputs = as_function(entry, sample)
        reference = run(function, sample, inputs)
        lowered.clear()
        assert_same(run(compile_on(function), sample, inputs), reference, 2e-4, at_least=0.1)
        assert lowered, entry.formatted_name
    assert not [w for w in recwarn if str(w.message).startswith("torch runs a graph")]


def as_function(entry: Any, sample: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return an entry as a function of the tensors of a sample, and these."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*inputs: torch.Tensor) -> Any:
        own = list(leaves)
        for place, tensor in zip(places, inputs, strict=True):
            own[place] = tensor
        first, args, kwargs = tree_unflatten(own, spec)
        return entry.op(first, *args, **kwargs)

    return function, [leaves[i] for i in places]
