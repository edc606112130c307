"""What the estimated seconds of an operator depend on: rows with a model, its kind, and its units of work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from delegate.costs import quantities as kinds
from delegate.costs.estimates import CorrectedEstimates, Estimates
from delegate.costs.profile import UNKNOWN, MachineProfile, PlaceRates, Rate
from delegate.costs.quantities import Quantities, quantities_of
from delegate.edge.export import to_edge
from delegate.edge.node import is_compute, nbytes
from delegate.plugins import PORTABLE

WHOLE = frozenset(
    {
        "aten.scaled_dot_product_attention.default",
        "aten.avg_pool2d.default",
        "aten.max_pool2d.default",
        "aten.upsample_bilinear2d.vec",
        "aten._upsample_bilinear2d_aa.vec",
    }
)
MEGABYTE = (256, 1024)


def ones(*shape: int) -> Tensor:
    return torch.ones(shape)


# The last operator of the model -> its kind, units and third quantity.
CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], Quantities]] = {
    "a view": (lambda x: x.view(4, 4), (ones(16),), Quantities(kinds.VIEW, 0, 0)),
    "in a cache": (torch.abs, (ones(16, 16),), Quantities(kinds.SIMPLE, 256, 0)),
    "beyond a cache": (torch.abs, (ones(*MEGABYTE),), Quantities(kinds.SIMPLE, 2**18, 2**20)),
    "float64 counts twice": (torch.abs, (ones(16).double(),), Quantities(kinds.SIMPLE, 32, 0)),
    "in two steps of NumPy": (torch.relu, (ones(16, 16),), Quantities(kinds.SIMPLE, 256, 0, 2)),
    "a broadcast": (lambda x: x.expand(8, 16), (ones(1, 16),), Quantities(kinds.PERMUTE, 128, 0)),
    "no broadcast": (lambda x: x.expand(8, 16), (ones(8, 16),), Quantities(kinds.VIEW, 0, 0)),
    "a product": (torch.mm, (ones(4, 8), ones(8, 2)), Quantities(kinds.PRODUCT, 64, 224)),
    "few channels": (F.conv2d, (ones(1, 2, 4, 4), ones(1, 2, 3, 3)), Quantities(kinds.CONVOLUTION, 72 * 17, 216)),
    "many channels": (F.conv2d, (ones(1, 2, 4, 4), ones(16, 2, 1, 1)), Quantities(kinds.POINTWISE, 512 * 2, 1280)),
    "a maximum of windows": (lambda x: F.max_pool2d(x, 3), (ones(1, 1, 9, 9),), Quantities(kinds.WINDOW, 81, 0)),
    "an average of windows": (lambda x: F.avg_pool2d(x, 5, 1), (ones(1, 1, 9, 9),), Quantities(kinds.AVERAGE, 625, 0)),
    "short heads": (
        F.scaled_dot_product_attention,
        (ones(1, 1, 4, 8), ones(1, 1, 4, 8), ones(1, 1, 4, 8)),
        Quantities(kinds.ATTENTION, 4 * 4 * 16 * 7, 512),
    ),
    "rows": (lambda x: torch.softmax(x, -1), (ones(6, 4),), Quantities(kinds.SOFTMAX, 24, 6)),
    "rows to sort": (lambda x: torch.sort(x)[0], (ones(6, 4),), Quantities(kinds.SORT, 48, 6)),
    "a resize": (
        lambda x: F.interpolate(x, (8, 8), mode="bilinear"),
        (ones(1, 1, 4, 4),),
        Quantities(kinds.RESIZE, 64 * 4, 320),
    ),
    "an antialiased resize": (
        lambda x: F.interpolate(x, (2, 2), mode="bilinear", antialias=True),
        (ones(1, 1, 8, 8),),
        Quantities(kinds.RESIZE, 4 * 4 * 16, 272),
    ),
}


class Calling(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


@pytest.mark.parametrize("name", CASES)
def test_quantities(name: str) -> None:
    function, inputs, expected = CASES[name]
    edge = to_edge(torch.export.export(Calling(function), inputs), name="forward", preserve_ops=WHOLE)
    found = [quantities_of(node, nbytes) for node in edge.graph.nodes if is_compute(node)]
    assert [one for one in found if one.kind != kinds.VIEW] == [expected] * (expected.kind != kinds.VIEW)


def test_measured_parts_correct_estimates() -> None:
    """The smallest part that has a node counts; other nodes have the factor of all; other places are avoided."""
    edge = to_edge(
        torch.export.export(nn.Sequential(nn.Sigmoid(), nn.Sigmoid(), nn.Sigmoid()), (ones(8),)), name="forward"
    )
    first, second, third = (node for node in edge.graph.nodes if is_compute(node))
    rates = PlaceRates(Rate(1.0), {kinds.FUNCTION: Rate(2.0)}, {})
    costs = CorrectedEstimates(Estimates(MachineProfile("", {UNKNOWN: rates, PORTABLE: rates, "a": rates})), ["a"])
    costs.correct("a", (first, second), 13.0)  # of which a call takes 1
    assert [costs.node(n, "a") for n in (first, second, third)] == [6.0, 6.0, 6.0]
    assert costs.node(first, PORTABLE) == 6.0
    costs.correct("a", (first,), 3.0)
    costs.correct("a", (first, second, third), 100.0)
    assert [costs.node(n, "a") for n in (first, second)] == [2.0, 6.0]
    costs.correct_call("a", 0.5)
    assert costs.call("a", [first]) == 0.5
    assert costs.node(first, "b") > 1e6
