"""Torch's OpInfo through torch.compile: results and gradients of operators as in eager.

`make test-slow` runs all entries; the default run has some of every family.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from delegate.testing import assert_same
from tests.support.opinfo import database
from tests.support.sampling import every

from .compiling import Lowered, compiled

SOME = [
    "addmm", "amax", "atan2", "bmm", "cat", "clamp", "cumsum", "diagonal", "expand", "fft.rfft", "gather", "index_put",
    "linalg.solve", "logsumexp", "masked_fill", "matmul", "nn.functional.avg_pool2d", "nn.functional.batch_norm",
    "nn.functional.conv2d", "nn.functional.cross_entropy", "nn.functional.embedding", "nn.functional.gelu",
    "nn.functional.group_norm", "nn.functional.interpolate", "nn.functional.layer_norm", "nn.functional.max_pool2d",
    "nn.functional.pad", "nn.functional.scaled_dot_product_attention", "prod", "scatter_add", "softmax", "sort",
    "split", "std", "topk", "tril", "unfold", "var", "where",
]  # fmt: skip
DTYPES = (torch.float32, torch.complex64, torch.int64)  # an entry is tried with the first that it supports
RAN, NO_GRAPH, BY_TORCH = "ran", "no graph", "torch runs a graph"
REFUSED, UNFILLED = "torch refuses it", "its results are memory that nobody has filled"
# How entries end that do not run here; all others do, and are as in eager.
EXPECTED: dict[str, set[str]] = {
    NO_GRAPH: {
        # The entry sets torch's seed first, or is a method that dynamo skips: the graph ends before the operator.
        "item", "cauchy", "exponential", "geometric", "log_normal", "normal_in_place", "uniform", "svd_lowrank",
        "pca_lowrank", "randn", "randn_like", "rand_like", "randint", "randint_like", "multinomial", "normal",
        "normal_number_mean", "bernoulli", "nn_functional_fractional_max_pool2d", "nn_functional_fractional_max_pool3d",
        "nn_functional_rrelu", "nn_functional_scaled_dot_product_attention", "nn_functional_dropout",
        "nn_functional_dropout2d", "nn_functional_dropout3d", "nn_functional_alpha_dropout",
        "nn_functional_feature_alpha_dropout_with_train", "nn_functional_feature_alpha_dropout_without_train",
        "nn_functional_multi_head_attention_forward",
        # Python reads a value of the data.
        "allclose", "equal", "corrcoef", "cov", "tensor_split", "nn_functional_one_hot",
        "nn_functional_gaussian_nll_loss",
        # Sizes of the data, which dynamo does not capture by default.
        "combinations", "masked_select", "unique", "unique_consecutive", "bincount", "nonzero", "argwhere",
        "nn_functional_ctc_loss", "linalg_lstsq", "linalg_lstsq_grad_oriented",
        # Nothing is computed: sizes, or views of an input.
        "broadcast_shapes", "T", "H", "mT", "mH",
        # Dynamo captures neither the resizing of memory nor an enumeration among the arguments.
        "resize_", "resize_as_", "torch__scaled_mm_v2",
    },
    # Dtypes that no kernel has.
    BY_TORCH: {"torch__scaled_mm", "chalf"},
    # For GPUs, or with sparse results, which nothing here compares.
    REFUSED: {
        "sparse_sampled_addmm", "sparse_mm_reduce", "to_sparse", "torch_ops_aten__flash_attention_forward",
        "torch_ops_aten__efficient_attention_forward", "jiterator_unary", "jiterator_binary",
        "jiterator_4inputs_with_extra_args", "jiterator_binary_return_by_ref", "jiterator_2inputs_2outputs",
    },
    UNFILLED: {"empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty", "empty_permuted"},
}  # fmt: skip


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def ran(function: Any, entry: Any, sample: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
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


def outcome(entry: Any, lowered: Lowered) -> str:
    """Return the outcome of an entry's first sample: one of the words above, or the difference from eager."""
    lowered.clear()
    if entry.formatted_name in EXPECTED[UNFILLED]:
        return UNFILLED
    torch._dynamo.reset()
    dtype = next((d for d in DTYPES if d in entry.supported_dtypes("cpu")), torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that sparse tensors are in beta state
        gradients = entry.supports_autograd and dtype is torch.float32
        sample = next(iter(entry.sample_inputs("cpu", dtype, requires_grad=gradients)))
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*inputs: torch.Tensor) -> Any:
        own = list(leaves)
        for place, tensor in zip(places, inputs, strict=True):
            own[place] = tensor
        first, args, kwargs = tree_unflatten(own, spec)
        return entry.op(first, *args, **kwargs)

    inputs = [leaves[i] for i in places]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            reference = ran(function, entry, sample, inputs)
            assert_same(reference, reference)  # raises where the results are sparse
        except Exception:
            return REFUSED
        try:
            assert_same(ran(compiled(function), entry, sample, inputs), reference, 2e-4, at_least=0.1)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    if any(str(w.message).startswith("torch runs a graph") for w in caught):
        return BY_TORCH
    return RAN if lowered else NO_GRAPH


def expected(entry: Any) -> str:
    """Return the expected outcome of an entry."""
    return next((how for how, names in EXPECTED.items() if entry.formatted_name in names), RAN)


@pytest.fixture(scope="module")
def entries() -> list[Any]:
    return database()


@pytest.mark.parametrize("name", every(4, SOME))
def test_some_entries(entries: list[Any], name: str, lowered: Lowered) -> None:
    chosen = [entry for entry in entries if entry.name == name]
    assert chosen
    assert {e.formatted_name: outcome(e, lowered) for e in chosen} == {e.formatted_name: expected(e) for e in chosen}


@pytest.mark.slow
def test_every_entry(entries: list[Any], lowered: Lowered) -> None:
    outcomes, on_xnnpack = defaultdict[str, set[str]](set), 0
    for entry in entries:
        outcomes[outcome(entry, lowered)].add(entry.formatted_name)
        on_xnnpack += "xnnpack" in lowered.backends
    del outcomes[RAN]
    assert outcomes == EXPECTED
    assert on_xnnpack > 340
