"""Small models whose sizes no default of a quantization scheme fits well, and their lowering with all defaults."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

import delegate
from tests.support import zoo
from tests.support.quantized import settings_of, sqnr

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    from delegate.quantization import quantize, schemes

LEAST = {"int4": 12.0, "": 25.0}  # dB, by a part of the scheme's name


class Tied(nn.Module):
    """A table of embeddings that is the weight of a layer too."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(rows, width), nn.Linear(width, rows, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x))


class Twice(nn.Module):
    """One layer that is called twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.relu(self.layer(x)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


@dataclass(frozen=True, slots=True)
class Sized:
    """A model.

    Args:
        build: makes it.
        shape: of its input.
        dynamic: its `dynamic_shapes`; calls then have 0, 1 and more rows.
        indices: the number of rows that its input selects; 0 for floats.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dynamic: Any = None
    indices: int = 0

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor]:
        """Return arguments of a call."""
        if self.indices:
            return (torch.randint(self.indices, self.shape, generator=generator),)
        return (torch.randn(self.shape, generator=generator),)


def _layers(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.ReLU())))


MODELS: Mapping[str, Sized] = {
    "48 inputs": Sized(lambda: nn.Linear(48, 7), (4, 48)),
    "one input": Sized(lambda: nn.Linear(1, 5), (4, 1)),
    "odd and prime": Sized(lambda: _layers(48, 64, 31, 127, 2, 3, 33), (4, 48)),
    "one dimension": Sized(lambda: nn.Linear(66, 3), (66,)),
    "dynamic": Sized(lambda: _layers(48, 33, 64, 5), (4, 48), ({0: torch.export.Dim("rows", min=0, max=64)},)),
    "tied": Sized(lambda: Tied(13, 48), (2, 3), indices=13),
    "tied, odd": Sized(lambda: Tied(7, 9), (2, 3), indices=7),
    "twice": Sized(lambda: Twice(48), (4, 48)),
    "attention": Sized(lambda: Attention(12, 3), (2, 5, 12)),
    "convolutions": Sized(lambda: nn.Sequential(nn.Conv2d(3, 7, 3), nn.Conv2d(7, 7, 3, groups=7)), (1, 3, 7, 7)),
    "transposed": Sized(lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (1, 4, 5, 5)),
    "weight norm": Sized(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(48, 5)), (4, 48)),
    "no outputs": Sized(lambda: nn.Linear(48, 0), (4, 48)),
    "no rows": Sized(lambda: nn.Linear(48, 5), (0, 48)),
}


def cases(backend: str) -> list[tuple[str, str]]:
    """Return the pairs of scheme and model for a backend."""
    return [(scheme, name) for scheme in schemes(backend) for name in MODELS]


def check_defaults(backend: str, scheme: str, name: str, portable: Collection[str] = ()) -> None:
    """Quantize a model with all defaults of a scheme, lower it, and check its results, and that the backend runs it.

    Args:
        backend: the backend.
        scheme: its scheme.
        name: the model.
        portable: the models with elements that the backend runs on kernels alone.
    """
    model, generator = MODELS[name], torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    with warnings.catch_warnings():  # of torch: nothing initializes a weight without elements
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        warnings.filterwarnings("ignore", "no operator of the model is quantized")
        module = model.build().eval()
        batches = [model.batch(generator) for _ in range(4)]
        exported = torch.export.export(module, batches[0], dynamic_shapes=model.dynamic)
        program = delegate.to_backend(quantize(exported, settings_of(backend, scheme), batches), backend)
    assert bool(program.report.partitions) == (name not in {*portable, "no outputs", "no rows"})
    (x,) = batches[0]
    for count in (0, 1, len(x)) if model.dynamic else (len(x),):
        actual, expected = program(x[:count]), module(x[:count]).detach()
        assert actual.shape == expected.shape
        if expected.numel():
            assert sqnr(expected, actual) >= next(least for part, least in LEAST.items() if part in scheme)
