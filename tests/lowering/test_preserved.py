"""A backend that preserves compound operators and then refuses them never makes a program unlowerable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.fx import Node

import delegate
from delegate.backend import aot
from delegate.backend.aot import PreprocessResult, Region
from delegate.backend.decomposition import is_compound_operator
from delegate.backend.info import Availability, BackendInfo
from delegate.testing import assert_same
from delegate.verdict import Reason, Verdict, no
from tests.support.functions import Function, functional_operators
from tests.support.plugins import registered

F = nn.functional
X, ROWS = torch.linspace(-2, 2, 24).reshape(4, 6), torch.tensor([1, 0, 2, 3])
IMAGE = torch.linspace(-1, 1, 2 * 4 * 8 * 8).reshape(2, 4, 8, 8)
WINDOW = torch.hann_window(16)

# Compound operators in several forms: sizes, tensors in place of numbers, and results in parts.
CASES: Mapping[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "repeats as a tensor": (lambda x, n: x.repeat_interleave(n, 0), (X, ROWS)),
    "one repeat as a tensor": (lambda x, n: x.repeat_interleave(n[2:3], 1), (X, ROWS)),
    "repeats of a flat tensor": (lambda x, n: x[:, 0].repeat_interleave(n), (X, ROWS)),
    "a number of repeats": (lambda x: x.repeat_interleave(2, 1), (X,)),
    "tile": (lambda x: x.tile(2, 1, 3), (X,)),
    "expand as": (lambda x, y: x[:, :1].expand_as(y) * 2, (X, X + 1)),
    "view as": (lambda x, y: (x * 2).view_as(y), (X, X + 1)),
    "stft": (lambda x: torch.view_as_real(torch.stft(x, 16, window=WINDOW, return_complex=True)), (torch.rand(2, 64),)),
    "linear": (lambda x: F.linear(x, torch.ones(3, 6), torch.ones(3)), (X,)),
    "layer norm": (lambda x: F.layer_norm(x, (6,)), (X,)),
    "group norm": (lambda x: F.group_norm(x, 2), (IMAGE,)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True), (IMAGE,)),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), (IMAGE,)),
    "bilinear resizing": (lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"), (IMAGE,)),
    "adaptive pooling": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (IMAGE,)),
    "split": (lambda x: torch.tensor_split(x, 3, 1), (X,)),
    "chunk": (lambda x: x.chunk(4, 1), (X,)),
    "meshgrid": (lambda x: torch.meshgrid(x[0], x[:, 0], indexing="ij"), (X,)),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), (X, X + 1)),
    "norm": (lambda x: torch.linalg.norm(x, dim=1), (X,)),
    "gelu and silu": (lambda x: F.gelu(x, approximate="tanh") + F.silu(x), (X,)),
    "unflatten": (lambda x: x.unflatten(1, (2, 3)).movedim(1, 0), (X,)),
    "diagonal": (lambda x: torch.diag_embed(x).tril(), (X,)),
    "cosine similarity": (F.cosine_similarity, (X, X + 1)),
    "batch norm": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)), (IMAGE,)),
    "one_hot": (lambda n: F.one_hot(n, 5), (ROWS,)),
}


class Keeper(aot.Backend):
    """A backend that preserves every compound operator, and then refuses all of them."""

    name = "keeper"
    Options: ClassVar[type[aot.Options]] = aot.Options
    kept: ClassVar[Set[str] | None] = None

    @property
    def preserve_ops(self) -> Set[str]:
        if Keeper.kept is None:
            Keeper.kept = {str(op) for op in functional_operators() if is_compound_operator(op)}
        return Keeper.kept

    def check(self, node: Node) -> Verdict:
        return no(Reason.OPERATOR, "keeper refuses every node")

    def preprocess(self, region: Region) -> PreprocessResult:
        raise NotImplementedError


INFO = BackendInfo(
    name="keeper",
    description="preserves compound operators and refuses them",
    aot="tests.lowering.test_preserved:Keeper",
    runtime="delegate.runtime.backend:BackendRuntime",
    probe=lambda: Availability(ok=True),
    install="",
)


@pytest.fixture(scope="module", autouse=True)
def with_keeper() -> Iterator[None]:
    for _ in registered(INFO):
        yield


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_it_is_decomposed(name: str, dynamic: bool) -> None:
    function, inputs = CASES[name]
    sizes = (tuple({0: Dim("first", min=1, max=64)} for _ in inputs),) if dynamic else None
    try:
        exported = export(Function(function), inputs, dynamic_shapes=sizes)
    except Exception as error:
        pytest.skip(f"torch does not export it: {error}")
    program = delegate.to_backend(exported, "keeper")
    assert {node.backend for node in program.report.nodes} == {"portable"}
    assert_same(program(*inputs), function(*inputs), 1e-5)
