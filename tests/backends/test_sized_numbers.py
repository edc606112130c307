"""Numbers that are computed from dynamic sizes are those of the call, whatever takes them."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch import nn

import delegate
from delegate.accuracy.reference import EagerRegion
from delegate.backend.aot import RegionRefused
from delegate.backend.exported import exported_program
from delegate.backend.region import one_node_region
from delegate.backend.selected import sizes_open
from delegate.edge.decompose import Decomposer
from delegate.edge.torch_private import WITHOUT_LIBRARIES
from delegate.testing import assert_same
from delegate.verdict import Reason
from tests.support.availability import require
from tests.support.cases.sized_numbers import CASES, compare
from tests.support.sampling import only

# Backend -> case -> how many nodes it runs, and how many it refuses for each reason.
ANSWERS = {
    "xnnpack": {
        "part": {"runs": 24, "dynamic_shape": 40, "operator": 22, "dtype": 7, "attribute": 2, "refused": 1},
        "root": {"runs": 23, "dynamic_shape": 36, "operator": 19, "dtype": 7, "attribute": 2},
        "twice": {"runs": 37, "dynamic_shape": 60, "operator": 39, "dtype": 21, "attribute": 2, "refused": 1},
        "none": {"runs": 22, "dynamic_shape": 36, "operator": 19, "dtype": 8, "attribute": 2},
    },
    "webgpu": {
        "part": {"runs": 34, "dynamic_shape": 57, "operator": 3, "dtype": 1, "inaccurate": 1},
        "root": {"runs": 32, "dynamic_shape": 52, "operator": 1, "dtype": 1, "inaccurate": 1},
        "twice": {"runs": 59, "dynamic_shape": 67, "operator": 7, "dtype": 23, "inaccurate": 1, "refused": 3},
        "none": {"runs": 31, "dynamic_shape": 52, "operator": 1, "dtype": 2, "inaccurate": 1},
    },
}  # fmt: skip


@pytest.mark.parametrize("case", only(["none"], CASES))
@pytest.mark.parametrize("backend", ANSWERS)
def test_calls_are_right_at_other_sizes(backend, case):
    require(backend)
    compare(case, backend, ANSWERS[backend][case])


@pytest.mark.parametrize("case", only(["twice"], CASES))
def test_kernels_are_right_at_other_sizes(case):
    compare(case, "", {})


def test_the_report_says_why():
    x = torch.rand(4, 6)

    class Scaled(nn.Module):
        def forward(self, x):
            return nn.functional.elu(x * 2, x.shape[0] * 0.1)

    exported = torch.export.export(Scaled(), (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=8)},))
    program = delegate.to_backend(exported, "xnnpack")
    found = next(n for n in program.report.nodes if n.op == "aten.elu.default").verdicts["xnnpack"]
    assert found.reason is Reason.DYNAMIC_SHAPE
    assert found.message == "alpha is a number that is computed from the inputs' sizes"


def test_a_backend_may_decompose_what_compares_sizes():
    """conv2d asks whether there are 16 rows, which decides nothing."""
    x, shapes = torch.rand(5, 3, 8, 8), ({0: torch.export.Dim("n", min=1, max=64)},)
    exported = torch.export.export(nn.Conv2d(3, 8, 3), (x,), dynamic_shapes=shapes)
    node = next(n for n in exported.graph.nodes if "conv" in n.name and n.op == "call_function")
    known = node.meta["val"].shape[0].node.shape_env
    with sizes_open([node]):
        assert [n.name for (n,) in Decomposer().expand([node])] == ["convolution"]
    assert not known.guards


CONVOLUTIONS = {
    "1d": (nn.Conv1d(4, 4, 3), 1),
    "2d": (nn.Conv2d(4, 4, 3), 2),
    "of a pixel": (nn.Conv2d(4, 8, 1), 2),
    "in groups": (nn.Conv2d(4, 4, 3, groups=4), 2),
    "in steps": (nn.Conv2d(4, 4, 3, stride=2, dilation=2), 2),
    "transposed": (nn.ConvTranspose2d(4, 8, 2, stride=2), 2),
    "3d": (nn.Conv3d(4, 4, 3), 3),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_backend_may_have_torch_compute_what_compares_sizes(name):
    """The exporters of torch do."""
    module, dims = CONVOLUTIONS[name]
    x, shapes = torch.rand(5, 4, *[8] * dims), ({0: torch.export.Dim("n", min=1, max=64)},)
    exported = torch.export.export(nn.ReLU(), (x,), dynamic_shapes=shapes)
    node = next(n for n in exported.graph.nodes if n.op == "call_function")
    value, known = node.meta["val"], node.meta["val"].shape[0].node.shape_env
    weights = {k: value.fake_mode.from_tensor(w.detach(), static_shapes=True) for k, w in module.named_parameters()}
    with sizes_open([node]):
        result = torch.func.functional_call(module, weights, (value,))
    assert result.shape[0].node.expr == value.shape[0].node.expr
    assert not known.guards


def test_the_last_that_leaves_torchs_libraries_off_switches_them_on():
    """Two threads that lower at the same time may have left them off."""

    def enabled() -> tuple[bool, bool]:
        return torch._C._get_mkldnn_enabled(), torch._C._get_nnpack_enabled()

    before = enabled()
    with ExitStack() as first, ExitStack() as second:
        for stack in (first, second):
            stack.enter_context(WITHOUT_LIBRARIES)
        first.close()
        assert enabled() == (False, False)
    assert before == enabled() == (True, True)


class Elu(nn.Module):
    def forward(self, x):
        return nn.functional.elu(x - 1, max(x.shape[0] - 2, 1) / x.shape[0] ** 0.5)


def test_references_and_importers():
    """Torch computes any number of sizes again; a compiler that takes exported programs is given none but sizes."""
    shapes = ({0: torch.export.Dim("n", min=3, max=8)},)
    exported = torch.export.export(Elu(), (torch.rand(4, 6),), dynamic_shapes=shapes)
    region = one_node_region(next(n for n in exported.graph.nodes if "elu" in n.name))
    x = torch.rand(7, 6)
    assert_same(EagerRegion(region).results([x - 1]), [Elu()(x)])
    with pytest.raises(RegionRefused, match="is computed from sizes, and is not a size itself"):
        exported_program(region)
