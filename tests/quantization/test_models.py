"""Whole networks in integers: one partition, as accurate as the quantized program in eager, in small files."""

from __future__ import annotations

import pytest
import torch

import delegate
from delegate.program.file import serialize
from delegate.program.instructions import strip_debug_info
from tests.support import zoo
from tests.support.quantized import require_whole, settings_of, sqnr
from tests.support.sampling import only

pytest.importorskip("torchao", reason="torchao quantizes the models of these tests")
with zoo.libraries():
    from delegate.quantization import quantize

SIZE = 64  # of images, so that a test is short
# Model -> operators that stay in floats between integers.
NETWORKS = {
    "resnet18": set(),
    "mobilenet_v2": set(),
    "mobilenet_v3_small": {"aten.hardswish.default", "aten.hardsigmoid.default"},
}


@pytest.mark.parametrize("name", only(["mobilenet_v3_small"], NETWORKS))
def test_network(name: str) -> None:
    with zoo.libraries():
        module, _ = zoo.make(name)
        torch.manual_seed(0)
        x = torch.randn(1, 3, SIZE, SIZE)
        exported = torch.export.export(zoo.calibrate(module, (x,)), (x,))
        program = quantize(
            exported, settings_of("xnnpack", observer="minmax"), [(torch.randn_like(x),) for _ in range(4)]
        )
        compiled, floats = delegate.to_backend(program, "xnnpack"), delegate.to_backend(exported, "xnnpack")
        exact, reference = module(x).detach(), program.module()(x).detach()
    require_whole(compiled)
    notes = [
        n.removeprefix("computed in floats, not in integers: ") for p in compiled.report.partitions for n in p.notes
    ]
    assert {n.split(" ")[0] for n in notes if n.startswith("aten.")} == NETWORKS[name]
    assert sqnr(exact, compiled(x)) >= sqnr(exact, reference) - 1
    integers, whole = (len(serialize(strip_debug_info(p.program))) for p in (compiled, floats))
    assert integers <= 0.3 * whole
