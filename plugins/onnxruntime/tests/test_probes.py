"""What is computed otherwise is still needed: the library alone differs from torch."""

from __future__ import annotations

import pytest
from delegate_onnxruntime.providers.deviations import DEVIATIONS

from tests.support.probes import PROBES, Probe, unprobed

OWN = [probe for probe in PROBES if probe.backend == "onnxruntime"]


@pytest.mark.parametrize("probe", OWN, ids=lambda probe: probe.operator)
def test_the_library_alone_differs(probe: Probe) -> None:
    assert probe.differs()


def test_every_rewritten_row_has_a_probe() -> None:
    assert len(OWN) > 2
    assert unprobed("onnxruntime", DEVIATIONS) == []
