"""Whole networks in integers: one partition, as accurate as the quantized program in eager, in small files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import delegate
from tests.support import zoo
from tests.support.quantized import require_whole, sqnr
from tests.support.sampling import every

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    from delegate.quantization import Settings, quantize

SIZE = 64  # of images, so that a test is short
# Model -> operators that stay in floats between integers.
NETWORKS = {
    "resnet18": set(),
    "mobilenet_v2": set(),
    "mobilenet_v3_small": {"aten.hardswish.default", "aten.hardsigmoid.default"},
}


@pytest.mark.parametrize("name", every(2, NETWORKS))
def test_network(name: str, tmp_path: Path) -> None:
    with zoo.libraries():
        module, _ = zoo.make(name)
        torch.manual_seed(0)
        x = torch.randn(1, 3, SIZE, SIZE)
        exported = torch.export.export(zoo.calibrate(module, (x,)), (x,))
        program = quantize(exported, Settings("xnnpack", observer="minmax"), [(torch.randn_like(x),) for _ in range(4)])
        compiled, floats = delegate.to_backend(program, "xnnpack"), delegate.to_backend(exported, "xnnpack")
        exact, reference = module(x).detach(), program.module()(x).detach()
    require_whole(compiled)
    notes = [
        n.removeprefix("computed in floats, not in integers: ") for p in compiled.report.partitions for n in p.notes
    ]
    assert {n.split(" ")[0] for n in notes if n.startswith("aten.")} == NETWORKS[name]
    assert sqnr(exact, compiled(x)) >= sqnr(exact, reference) - 1
    for kind, executable in (("integers", compiled), ("floats", floats)):
        executable.save(tmp_path / kind)
    assert os.path.getsize(tmp_path / "integers") <= 0.3 * os.path.getsize(tmp_path / "floats")
