"""Detectors with torchvision's operators, and mixtures of experts, from export to a process without torch."""

from __future__ import annotations

import pytest
import torch

import delegate
from delegate.errors import InputError
from tests.support import zoo
from tests.support.detection import torchvision
from tests.support.kernels import sample
from tests.support.lowering import answers, assert_same
from tests.support.processes import run_without_torch
from tests.support.sampling import every


class OneStage(torch.nn.Module):
    """Boxes at every pixel, the best of them, and of those the ones that do not overlap: as YOLO, SSD and RetinaNet."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, 4, 1), torch.nn.ReLU())
        self.head = torch.nn.Conv2d(16, 4 + 3, 3, padding=1)

    def forward(self, image):
        found = self.head(self.backbone(image))[0].flatten(1)
        side = image.shape[3] // 4
        places = torch.arange(found.shape[1])
        center = torch.stack([places % side, places // side], 1) * 4.0
        size = found[:2].T.exp() * 6
        offset = found[2:4].T
        boxes = torch.cat([center + offset - size / 2, center + offset + size / 2], 1)
        scores, labels = found[4:].sigmoid().max(0)
        scores, best = scores.topk(60)
        boxes, labels = boxes[best], labels[best]
        kept = torch.ops.torchvision.nms(boxes + labels[:, None] * 1000.0, scores, 0.4)
        return boxes[kept], scores[kept], labels[kept]


class TwoStages(OneStage):
    """The best boxes, pooled from the features and classified: as Faster R-CNN."""

    def __init__(self) -> None:
        super().__init__()
        self.classify = torch.nn.Linear(16 * 9, 5)

    def forward(self, image):
        boxes, scores, _ = super().forward(image)
        rois = torch.cat([torch.zeros_like(scores)[:, None], boxes], 1)
        pooled = torch.ops.torchvision.roi_align(self.backbone(image), rois, 0.25, 3, 3, 2, True)
        return boxes, self.classify(pooled.flatten(1)).softmax(1)


class Deformable(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.offset = torch.nn.Conv2d(3, 18, 3, padding=1)
        self.mask = torch.nn.Conv2d(3, 9, 3, padding=1)
        with torchvision():
            from torchvision.ops import DeformConv2d
        self.conv = DeformConv2d(3, 8, 3, padding=1)

    def forward(self, x):
        return self.conv(x, self.offset(x), self.mask(x).sigmoid()).relu()


# Detector -> how many nodes XNNPACK runs, and how many it refuses for each reason.
ON_XNNPACK = {
    OneStage: {"runs": 18, "dtype": 5, "non_constant": 3, "operator": 2, "slower": 1},
    TwoStages: {"runs": 21, "slower": 3, "dtype": 4, "operator": 4, "non_constant": 3},
    Deformable: {"runs": 4, "operator": 1},
}


@pytest.mark.parametrize(("make", "backends"), every(3, [OneStage, TwoStages, Deformable], [[], ["xnnpack"]]), ids=str)
def test_detectors(make, backends):
    torch.manual_seed(0)
    image = sample(1, 3, 48, 64, scale=1.0)
    with torchvision():
        module = make().eval()
        program = delegate.to_backend(torch.export.export(module, (image,)), backends)
        if backends:
            assert answers(program, "xnnpack") == ON_XNNPACK[make]
        for seed in (0, 1):
            given = sample(1, 3, 48, 64, scale=1.0, seed=seed)
            found, expected = program(given), module(given)
            assert_same(found, expected)


def test_without_torch(tmp_path):
    torch.manual_seed(0)
    image = sample(1, 3, 48, 64, scale=1.0)
    with torchvision():
        module = TwoStages().eval()
        delegate.to_backend(torch.export.export(module, (image,)), []).save(tmp_path / "model.dlg")
        expected = module(image)
    assert_same(run_without_torch(tmp_path / "model.dlg", [image.numpy()]), [*expected])


class Whole(torch.nn.Module):
    """A detector of torchvision's own, of random weights of a spread for which scores differ."""

    def __init__(self, name, spread, **options):
        super().__init__()
        with torchvision():
            import torchvision.models.detection as builders
        self.detector = getattr(builders, name)(weights=None, weights_backbone=None, num_classes=5, **options)
        self.detector.score_thresh = 0.0
        for weight in self.detector.head.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=spread * weight[0].numel() ** -0.5)

    def forward(self, image):
        return self.detector([image[0]])[0]


def _apart(boxes, scores, classes, threshold):
    """batched_nms without its questions of how many boxes there are, which torch does not export."""
    from torchvision.ops import nms

    return nms(boxes + (classes.to(boxes) * 1e4)[:, None], scores, threshold)


# Name -> size of the image, spread of the weights, options.
_SMALL = {"min_size": 64, "max_size": 96, "topk_candidates": 50}
WHOLE = {
    "ssdlite320_mobilenet_v3_large": ((320, 320), 2, {}),
    "ssd300_vgg16": ((64, 80), 0.7, {"detections_per_img": 50}),
    "retinanet_resnet50_fpn": ((64, 80), 0.7, _SMALL),
    "fcos_resnet50_fpn": ((64, 80), 2, _SMALL),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dynamic"), [*((name, False) for name in WHOLE), ("retinanet_resnet50_fpn", True)])
def test_a_whole_detector(name, dynamic, tmp_path, monkeypatch):
    size, spread, options = WHOLE[name]
    torch.manual_seed(0)
    image, other, narrow = (torch.rand(1, 3, *s) for s in (size, [2 * n for n in size], (77, 87)))
    sizes = ({2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO},) if dynamic else None
    with torchvision():
        from torchvision.ops import boxes

        monkeypatch.setattr(boxes, "batched_nms", _apart)
        module = Whole(name, spread, **options)
        zoo.calibrate(module.detector.backbone, (torch.rand(2, 3, *size),))
        exported = torch.export.export(module.eval(), (image,), dynamic_shapes=sizes, strict=False)
        expected = module(image)
        program = delegate.to_backend(exported, "xnnpack")
        assert sum(p.work for p in program.report.partitions) > 0.99
        program.save(tmp_path / "model.dlg")
        assert_same(program(image), expected, 0.01)
        if dynamic:
            assert_same(program(other), module(other), 0.01)
            with pytest.raises(InputError, match="the sizes break an assumption of the export"):  # another aspect ratio
                program(narrow)
    assert len(expected["scores"].unique()) == len(expected["scores"]) > 20  # equal scores have no order
    results = run_without_torch(tmp_path / "model.dlg", [image.numpy()])
    assert_same(results, list(expected.values()), 0.01)


@pytest.mark.extended
def test_mixture_of_experts():
    """As transformers exports it, its operator included."""
    with zoo.libraries():
        from transformers import MixtralConfig, MixtralForCausalLM

        config = MixtralConfig(
            vocab_size=100, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=4, use_cache=False,
        )  # fmt: skip
        torch.manual_seed(0)
        module = MixtralForCausalLM(config).eval()
        tokens = torch.randint(0, 100, (1, 12))
        exported = torch.export.export(module, (tokens,), strict=False)
        assert any("grouped_mm_fallback" in str(n.target) for n in exported.graph.nodes)
        program = delegate.to_backend(exported, [])
        found, expected = program(tokens), module(tokens)
    assert_same(found["logits"], expected.logits)
