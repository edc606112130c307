"""Suppression of overlapping boxes (NMS): torchvision's operator, which has a portable kernel.

`nms` is the operator of torchvision if it loads beside the installed torch. Otherwise the same operator is defined
here, in plain torch. Both export to `torchvision.nms`. The number of boxes may be 0 or 1, which torchvision's own
shape function excludes: with it, an exported program rejects an image that has one object.
"""

from __future__ import annotations

import torch

try:
    import torchvision.ops  # noqa: F401 - defines the operator
except (ImportError, RuntimeError):  # not installed, or built for another torch

    @torch.library.custom_op("torchvision::nms", mutates_args=())
    def _nms(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
        kept: list[int] = []
        areas = (dets[:, 2:] - dets[:, :2]).prod(1)
        for i in scores.argsort(descending=True, stable=True).tolist():
            common = torch.minimum(dets[i, 2:], dets[kept, 2:]) - torch.maximum(dets[i, :2], dets[kept, :2])
            overlap = common.clamp(min=0).prod(1)
            if (overlap <= iou_threshold * (areas[i] + areas[kept] - overlap)).all():
                kept.append(i)
        return torch.tensor(kept, dtype=torch.int64)


@torch.library.register_fake("torchvision::nms", allow_override=True)
def _(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    return dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Return the indices of the boxes that overlap no better one, best first."""
    return torch.ops.torchvision.nms(boxes, scores, iou_threshold)
