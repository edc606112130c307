"""Regions of interest: as in torchvision, over numbers of samples and regions of any size."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.export import Dim

import delegate
from delegate.testing import assert_same
from tests.support.detection import torchvision
from tests.support.functions import Function
from tests.support.values import numbers

SIZES = (
    (0, 0, 5, 5),
    (2, 2, 9, 9),
    (3, 3, 3.2, 3.1),
    (4, 4, 4, 4),
    (-3, -3, 25, 25),
    (7, 7, 5, 5),
    (1.3, 0.2, 18.7, 12),
)
REGIONS = torch.tensor([(0, *corners) for corners in SIZES])


@pytest.mark.parametrize(("samples", "aligned"), [*itertools.product((-1, 0, 2), (False, True))])
def test_as_torchvision(samples: int, aligned: bool) -> None:
    """torchvision's default is -1: as many samples as a region has pixels for each bin."""
    with torchvision():
        module = Function(lambda x, r: torch.ops.torchvision.roi_align(x.relu(), r, 0.9, 2, 3, samples, aligned) * 2)
        x = numbers(1, 2, 20, 20)
        exported = torch.export.export(module, (x, REGIONS), dynamic_shapes=((None, {0: Dim("n", min=0, max=64)}),))
        program = delegate.to_backend(exported, config={"backends": ["openvino"]})
        for regions in (REGIONS, REGIONS[:1], REGIONS[:0]):
            assert_same(program(x, regions), module(x, regions), 1e-5)
    (align,) = (node for node in program.report.nodes if "roi_align" in node.op)
    if aligned and samples <= 0:
        assert "aligned regions without area" in str(align.verdicts["openvino"])
    else:
        assert align.backend == "openvino"
