"""OpenVINO's layers in events, from its performance counters."""

from __future__ import annotations

import pytest

from tests.support.cases.inner_operators import assert_operators


@pytest.mark.parametrize("dynamic", [False, True])
def test_layers(dynamic: bool) -> None:
    assert_operators("openvino", "Convolution", "FullyConnected", dynamic=dynamic)
