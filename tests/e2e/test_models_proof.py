"""Many models, portable-only and on XNNPACK: saved, run without torch, equal to eager."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.export import Dim

from tests.e2e.proof import MAX_ERROR, MAX_WASTE, prove
from tests.support import models, zoo
from tests.support.models.written import HALVES
from tests.support.sampling import only

logger = logging.getLogger(__name__)
QUIET = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
EXPORTED = [name for name in models.MODELS if name not in models.NOT_EXPORTED]


@QUIET
@pytest.mark.parametrize("name", only(models.QUICK, EXPORTED))
def test_same_as_eager_without_torch(name, tmp_path):
    module, inputs = models.make(name)
    exported = models.export(module, inputs)
    proofs = {kind: prove(exported, module, [inputs], kind or [], tmp_path) for kind in ("", "xnnpack")}
    for kind, proof in proofs.items():
        logger.info("%s, %s: %s", name, kind or "portable", proof)
    limit = 16 * torch.finfo(HALVES[name][2]).eps if name in HALVES else MAX_ERROR
    assert all(p.error <= limit for p in proofs.values()), proofs
    assert proofs[""].waste <= models.WASTE.get(name, MAX_WASTE), proofs
    least = 2 if name in models.LARGE else 0 if name.startswith(("lstm", "gru")) else 1  # these a kernel runs whole
    assert proofs["xnnpack"].partitions >= least, proofs
    (tmp_path / "model.dlg").unlink()


@QUIET
@pytest.mark.parametrize("name", only(("bert",), models.DYNAMIC))
def test_dynamic_sizes(name, tmp_path):
    module, (given,) = models.make(name)
    sizes = {0: Dim("batch", min=1, max=8)} | ({1: Dim("length", min=2, max=32)} if name in models.LENGTH else {})
    batches = {n: torch.cat([given.roll(i, -1) for i in range(n)]) for n in (2, 1, 5)}
    if name in models.LENGTH:
        batches[5] = batches[5][:, :9].contiguous()
    exported = models.export(module, (batches[2],), (sizes,))
    for kind in ("", "xnnpack"):
        proof = prove(exported, module, [(b,) for b in batches.values()], kind or [], tmp_path)
        logger.info("%s, dynamic, %s: %s", name, kind or "portable", proof)
        assert proof.error <= MAX_ERROR
        assert kind or proof.waste <= MAX_WASTE


def test_families_are_complete():
    with zoo.libraries():
        import torchvision.models as vision
    families = (vision, models.CLASSIFICATION), (vision.segmentation, models.SEGMENTATION), (vision.video, models.VIDEO)
    for module, named in families:
        assert set(vision.list_models(module=module)) == set(named)


@QUIET
@pytest.mark.slow
@pytest.mark.parametrize("name", models.NOT_EXPORTED)
def test_not_exported_for_the_stated_reason(name):
    module, inputs = models.make(name)
    with pytest.raises(Exception, match=models.NOT_EXPORTED[name]):
        models.export(module, inputs)
