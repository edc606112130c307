"""torchvision's own operators beside a CPU-only torch, for which its compiled ones do not load: in plain torch."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Iterator

import torch

from tests.support import zoo

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
}


def _nms(boxes, scores, threshold):
    """One box after the other, each against each that is kept."""
    kept: list[int] = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if all(_overlap(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def _overlap(a, b):
    size = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0)
    common = size.prod()
    overlap = common / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - common)
    return overlap.nan_to_num(0.0).item()


def _nms_fake(boxes, scores, threshold):
    """As torchvision's own, whose size is 2 or more."""
    return boxes.new_empty(torch.library.get_ctx().create_unbacked_symint(), dtype=torch.int64)


def _roi_align(x, rois, scale, height, width, ratio, aligned):
    """Point by point; torchvision's own version in Python differs where a region leaves the image."""
    made = torch.zeros(len(rois), x.shape[1], height, width)
    for k, roi in enumerate(rois):
        x1, y1, x2, y2 = (roi[1:] * scale - (0.5 if aligned else 0)).tolist()
        spans = [(y1, y2 - y1, height), (x1, x2 - x1, width)]
        spans = [(start, (span if aligned else max(span, 1.0)) / bins) for start, span, bins in spans]
        (top, tall), (left, wide) = spans
        down, across = (ratio if ratio > 0 else max(math.ceil(bin_), 0) for bin_ in (tall, wide))
        for i, j in itertools.product(range(height), range(width)):
            for a, b in itertools.product(range(down), range(across)):
                y, z = top + tall * (i + (a + 0.5) / down), left + wide * (j + (b + 0.5) / across)
                made[k, :, i, j] += _point(x[int(roi[0])], y, z) / (down * across)
    return made


def _point(image, y, x):
    """The pixels around a point, weighted; 0 where it is more than one pixel outside."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return torch.zeros(len(image))
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    dy, dx = y - top, x - left
    upper = image[:, top, left] * (1 - dx) + image[:, top, right] * dx
    return upper * (1 - dy) + (image[:, bottom, left] * (1 - dx) + image[:, bottom, right] * dx) * dy


def _roi_align_fake(x, rois, scale, height, width, ratio, aligned):
    return x.new_empty(rois.shape[0], x.shape[1], height, width)


def _roi_pool(x, rois, scale, height, width):
    """Bins as torchvision has them: of rounded corners, the lower one within."""
    values, places = torch.zeros(len(rois), x.shape[1], height, width), torch.full((), -1)
    places = places.expand(values.shape).clone().int()
    for k, roi in enumerate(rois):
        x1, y1, x2, y2 = (math.floor(v * scale + 0.5) for v in roi[1:].tolist())
        tall, wide = max(y2 - y1 + 1, 1) / height, max(x2 - x1 + 1, 1) / width
        for i in range(height):
            top, bottom = (
                min(max(v, 0), x.shape[2]) for v in (math.floor(i * tall) + y1, math.ceil((i + 1) * tall) + y1)
            )
            for j in range(width):
                left, right = (
                    min(max(v, 0), x.shape[3]) for v in (math.floor(j * wide) + x1, math.ceil((j + 1) * wide) + x1)
                )
                if top < bottom and left < right:
                    part = x[int(roi[0]), :, top:bottom, left:right].flatten(1)
                    best = part.max(1)
                    values[k, :, i, j] = best.values
                    row, column = best.indices // (right - left) + top, best.indices % (right - left) + left
                    places[k, :, i, j] = (row * x.shape[3] + column).int()
    return values, places


def _roi_pool_fake(x, rois, scale, height, width):
    made = _roi_align_fake(x, rois, scale, height, width, 0, False)
    return made, made.int()


def _deform_conv2d(x, weight, offset, mask, bias, sh, sw, ph, pw, dh, dw, groups, offset_groups, use_mask):
    """Every tap samples the image by grid_sample, whose border is 0 outside too."""
    n, channels, height, width = x.shape
    kh, kw = weight.shape[2:]
    oh, ow = offset.shape[2:]
    moved = offset.reshape(n, offset_groups, kh, kw, 2, oh, ow)
    total = torch.zeros(n, weight.shape[0], oh, ow)
    for i in range(kh):
        for j in range(kw):
            taps = []
            for g in range(offset_groups):
                y = moved[:, g, i, j, 0] + (torch.arange(oh) * sh - ph + i * dh)[:, None]
                z = moved[:, g, i, j, 1] + torch.arange(ow) * sw - pw + j * dw
                grid = torch.stack([(2 * z + 1) / width - 1, (2 * y + 1) / height - 1], -1)
                part = x[:, g * channels // offset_groups : (g + 1) * channels // offset_groups]
                tap = torch.nn.functional.grid_sample(part, grid, align_corners=False)
                taps.append(tap * mask.reshape(n, offset_groups, 1, kh, kw, oh, ow)[:, g, :, i, j] if use_mask else tap)
            total += torch.nn.functional.conv2d(torch.cat(taps, 1), weight[:, :, i : i + 1, j : j + 1], groups=groups)
    return total + bias[:, None, None]


def _deform_conv2d_fake(x, weight, offset, *_):
    return x.new_empty(x.shape[0], weight.shape[0], *offset.shape[2:])


_KERNELS = {
    "nms": (_nms, _nms_fake),
    "roi_align": (_roi_align, _roi_align_fake),
    "roi_pool": (_roi_pool, _roi_pool_fake),
    "deform_conv2d": (_deform_conv2d, _deform_conv2d_fake),
}
_library = torch.library.Library("torchvision", "FRAGMENT")


@contextlib.contextmanager
def torchvision() -> Iterator[None]:
    """Where torchvision's detectors are made, run and exported."""
    with zoo.libraries():
        import torchvision.extension
        import torchvision.ops
    if not torchvision.extension._has_ops():  # its own operators load nowhere here
        _define()
    modules = [torchvision.extension, *(m for name, m in sys.modules.items() if name.startswith("torchvision.ops."))]
    originals = [(m, m._has_ops) for m in modules if hasattr(m, "_has_ops")]
    for module, _ in originals:
        module._has_ops = lambda: True
    try:
        with zoo.libraries():
            yield
    finally:
        for module, original in originals:
            module._has_ops = original


def _define() -> None:
    for name, (kernel, fake) in _KERNELS.items():
        if not hasattr(torch.ops.torchvision, name):
            _library.define(name + _SCHEMAS[name])
            _library.impl(name, kernel, "CPU")
            torch.library.register_fake(f"torchvision::{name}", fake, lib=_library)
