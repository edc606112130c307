"""Models whose lockfiles are replayed, and the comparison of a program with its replay, byte by byte."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

import delegate
from delegate.program.file import assemble
from delegate.program.instructions import strip_debug_info
from delegate.program.model import Program
from tests.support.availability import require

torch.manual_seed(0)
X, IMAGE, IDS = torch.randn(4, 16), torch.randn(2, 3, 16, 16), torch.tensor([[1, 2, 3]])


class Calling(nn.Module):
    """A module that calls a function with its layers."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.layers, x)


def square(**options: Any) -> nn.Module:
    return nn.Linear(16, 16, **options)


# Constants that torch and its decompositions compute with other bits: linspace, gelu, norms.
FOLDED = Calling(lambda m, x: m[0](x) * torch.linspace(-3, 7, 16) + torch.linspace(0, 1, 16), square())
NORMED = Calling(
    lambda m, x: m[0](x) + nn.functional.layer_norm(m[1].weight, (16,)).logsumexp(0) + nn.functional.gelu(m[1].weight),
    square(),
    nn.Linear(16, 4),
)
BRANCHES = Calling(
    lambda m, x: torch.cond(x.sum() > 0, lambda a: a.relu() + torch.linspace(0, 1, 16), lambda a: a - 1, (m[0](x),)),
    square(),
)
PARTLY = Calling(
    lambda m, x: (m[0](x).roll(1, 1).tril() + torch.special.erfcx(x).nan_to_num(0) + torch.celu(x)).std(1), square()
)
WRITING = Calling(
    lambda m, x: m[0](x).clone().index_add_(0, torch.tensor([0, 1]), x[:2]).masked_fill(x > 1, 0.0).addcmul(x, x),
    square(),
)
ATTENDING = Calling(
    lambda m, x: nn.functional.scaled_dot_product_attention(m[0](x), m[1](x), x, is_causal=True), square(), square()
)
CONVOLVING = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
MOVING = Calling(lambda m, x: (m[0](x).flip(0) + torch.arange(x.shape[0])[:, None]).cumsum(0), square())
HALVES = Calling(lambda m, x: m[0](x).softmax(-1) + torch.linspace(0, 1, 16, dtype=x.dtype), square())
# OpenVINO preserves these operators, refuses them in float64, and no kernel runs them: they are decomposed later.
STACKED = Calling(
    lambda m, x: (
        torch.vstack((m[0](x), x)).relu(),
        torch.hstack((x.double(), x.double())) + 1,
        torch.linalg.cross(x[:, :3].double(), torch.vstack((x, x)).double()[:4, 3:6]),
    ),
    square(),
)
DYNAMIC = ({0: Dim.AUTO},)

MODELS: dict[str, tuple[nn.Module, torch.Tensor, Any]] = {
    "folded": (FOLDED, X, None),
    "normed": (NORMED, X, None),
    "branches": (BRANCHES, X, None),
    "partly decomposed": (PARTLY, X, None),
    "stacked": (STACKED, X, None),
    "writing": (WRITING, X, None),
    "attention": (ATTENDING, torch.randn(2, 2, 5, 16), None),
    "convolution": (CONVOLVING, IMAGE, None),
    "recurrent": (
        Calling(lambda m, x: m[0](x)[0], nn.GRU(16, 8, batch_first=True)),
        torch.randn(2, 5, 16),
        None,
    ),
    "embedding": (nn.Sequential(nn.Embedding(10, 16), nn.Linear(16, 4)), IDS, None),
    "data-dependent": (
        Calling(lambda m, x: (m[0](x).topk(3).values, torch.nonzero(x > 0)), square()),
        X,
        None,
    ),
    "dynamic": (nn.Sequential(square(), nn.GELU(), nn.LayerNorm(16)), X, DYNAMIC),
    "dynamic and moving": (MOVING, X, DYNAMIC),
    "empty": (square(), torch.randn(0, 16), None),
    "of one": (nn.Linear(1, 1), torch.randn(1, 1), None),
    "in bfloat16": (copy.deepcopy(HALVES).bfloat16(), X.bfloat16(), None),
    "in float64": (copy.deepcopy(HALVES).double(), X.double(), None),
}


def export(name: str) -> ExportedProgram:
    module, x, dynamic = MODELS[name]
    shapes = None if dynamic is None else (dynamic[0],)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The tensor attributes self.*_flat_weights")  # torch's own of its GRU
        return torch.export.export(module.eval(), (x,), dynamic_shapes=shapes)


def export_all(name: str) -> Any:
    """Return the model of a name, or the three methods of "several"."""
    if name != "several":
        return export(name)
    return {"a": export("folded"), "b": export("recurrent"), "c": export("partly decomposed")}


def sha256(program: Program) -> str:
    """Return the checksum of the file of a program.

    The artifacts of the DSP are left out: Qualcomm's library numbers the tensors in them through a whole process.
    """
    numbered = {spec.segment for spec in program.delegates if spec.backend == "dsp"}
    segments = tuple(b"" if n in numbered else segment for n, segment in enumerate(program.segments))
    return hashlib.sha256(b"".join(map(bytes, assemble(program._replace(segments=segments))))).hexdigest()


def replay(model: Any, backends: Any, lock: Path, **options: Any) -> Program:
    """Return the replayed program, whose own lock has to be the same text."""
    again = lock.with_suffix(".again")
    placement = delegate.Replay(lock, lockfile=again)
    program = delegate.to_backend(model, backends, placement=placement, cache=False, **options).program
    assert again.read_text() == lock.read_text()
    return program


def check_measured(name: str, backends: list[str] | None, folder: Path) -> None:
    """Assert that the replay of a measured program has its bytes, also those of the report in its debug info."""
    model, lock = export_all(name), folder / "delegate.lock"
    for backend in backends or ():
        require(backend)
    measured = delegate.Measured(budget=30, lockfile=lock)
    first = delegate.to_backend(model, backends, placement=measured, cache=False).program
    assert sha256(replay(model, backends, lock)) == sha256(first)


def check_preferred(name: str, backends: list[str] | None, folder: Path) -> None:
    """Assert that the replay of a placement by preference has its bytes, and so has a program by its plan.

    Their debug info differs: it says "by the plan" of nodes that another backend supports, too.
    """
    model, lock = export_all(name), folder / "delegate.lock"
    for backend in backends or ():
        require(backend)
    preferred = delegate.ByPreference(lockfile=lock)
    first = delegate.to_backend(model, backends, placement=preferred, cache=False)
    planned = delegate.to_backend(model, backends, placement=first.plan, cache=False).program
    for program in (replay(model, backends, lock), planned):
        assert sha256(strip_debug_info(program)) == sha256(strip_debug_info(first.program))
