"""Samples of operators on images, with their windows, borders and sizes."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from hypothesis import strategies as st

from delegate_testing.generated.sample import TRUTH, Draw, FunctionSample, each, image, weight


@st.composite
def pools(draw: Draw) -> FunctionSample:
    """Draw max and average pooling with all attributes."""
    dims, kind = draw(st.integers(1, 3)), draw(st.sampled_from(["max", "max indices", "avg", "avg", "lp"]))
    shape = image(draw, dims, 5, 9)
    kernel = each(draw, dims, st.integers(1, 4))
    options: dict[str, Any] = {"kernel_size": kernel, "ceil_mode": draw(TRUTH)}
    if draw(TRUTH):
        options["stride"] = each(draw, dims, st.integers(1, 4))
    if kind == "lp":
        return FunctionSample(
            f"lp_pool{dims}d", getattr(F, f"lp_pool{dims}d"), [shape], options={"norm_type": 2, **options}
        )
    if draw(TRUTH):
        options["padding"] = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    if kind.startswith("max"):
        if draw(TRUTH):
            options["dilation"] = each(draw, dims, st.integers(1, 2))
        options["return_indices"] = kind == "max indices"
        return FunctionSample(f"max_pool{dims}d", getattr(F, f"max_pool{dims}d"), [shape], options=options)
    options["count_include_pad"] = draw(TRUTH)
    if dims > 1 and draw(TRUTH):
        options["divisor_override"] = draw(st.integers(1, 5))
    return FunctionSample(f"avg_pool{dims}d", getattr(F, f"avg_pool{dims}d"), [shape], options=options)


@st.composite
def adaptive_pools(draw: Draw) -> FunctionSample:
    """Draw pooling to an output size."""
    dims, kind = draw(st.integers(1, 3)), draw(st.sampled_from(["max", "avg"]))
    size = each(draw, dims, st.sampled_from([1, 1, 2, 3, 4]))
    name = f"adaptive_{kind}_pool{dims}d"
    return FunctionSample(name, getattr(F, name), [image(draw, dims)], options={"output_size": size})


@st.composite
def convolutions(draw: Draw) -> FunctionSample:
    """Draw convolutions, transposed or not."""
    dims, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    per_group, outputs = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel = each(draw, dims, st.integers(1, 4))
    options: dict[str, Any] = {"groups": groups}
    stride, dilation = (each(draw, dims, st.integers(1, 3)) for _ in range(2))
    if draw(TRUTH):
        options["stride"] = stride
    if draw(TRUTH):
        options["dilation"] = dilation
    shape = image(draw, dims, 10, 13, per_group * groups)
    bias = [weight(outputs * groups)] if draw(TRUTH) else []
    if draw(TRUTH):
        name, first = f"conv{dims}d", (outputs * groups, per_group)
        plain = options.get("stride", (1,) * dims) == (1,) * dims
        around = [each(draw, dims, st.integers(0, 3)), *(["same"] if plain else []), "valid"]
        options["padding"] = draw(st.sampled_from(around))
    else:
        name, first = f"conv_transpose{dims}d", (per_group * groups, outputs)
        options["padding"] = each(draw, dims, st.integers(0, 2))
        limits = zip(options.get("stride", (1,) * dims), options.get("dilation", (1,) * dims), strict=True)
        options["output_padding"] = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in limits)
    return FunctionSample(name, getattr(F, name), [shape], [weight(*first, *kernel), *bias], options)


@st.composite
def pads(draw: Draw) -> FunctionSample:
    """Draw padding in every mode; constant padding also has negative widths."""
    mode = draw(st.sampled_from(["constant", "constant", "reflect", "replicate", "circular"]))
    if mode == "constant":
        shape = tuple(draw(st.lists(st.integers(3, 6), min_size=1, max_size=5)))
        widths = each(draw, 2 * draw(st.integers(1, len(shape))), st.integers(-1, 3))
        value = draw(st.sampled_from([0.0, 1.5, -2.0, float("inf"), float("-inf")]))
        return FunctionSample("pad", F.pad, [shape], options={"pad": widths, "value": value})
    dims = draw(st.integers(1, 3))
    widths = each(draw, 2 * dims, st.integers(-1, 3))
    return FunctionSample("pad", F.pad, [image(draw, dims)], options={"pad": widths, "mode": mode})


@st.composite
def resizes(draw: Draw) -> FunctionSample:
    """Draw interpolation in every mode, by size or by factor."""
    dims = draw(st.sampled_from([1, 2, 2, 2, 3]))
    modes = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}[dims]
    mode = draw(st.sampled_from([*modes, "nearest", "nearest-exact", "area"]))
    options: dict[str, Any] = {"mode": mode}
    if draw(TRUTH):
        options["size"] = each(draw, dims, st.integers(1, 12))
    else:
        factors = st.sampled_from([0.5, 1.5, 2.0, 1.3, 3.0, 0.7])
        options["scale_factor"] = draw(factors) if draw(TRUTH) else tuple(draw(factors) for _ in range(dims))
        if mode != "area" and draw(TRUTH):
            options["recompute_scale_factor"] = True
    if mode in modes:
        options["align_corners"] = draw(TRUTH)
    if mode in ("bilinear", "bicubic") and draw(st.integers(0, 3)) == 0:
        # For a width of 1, torch 2.13 writes the first row's value to all rows.
        options = {"mode": mode, "antialias": True, "size": (draw(st.integers(1, 12)), draw(st.integers(2, 12)))}
        options["align_corners"] = draw(TRUTH)
    return FunctionSample("interpolate", F.interpolate, [image(draw, dims)], options=options)


@st.composite
def shuffles(draw: Draw) -> FunctionSample:
    """Draw shuffles between channels and pixels, patches and grid samples."""
    kind, r = draw(st.sampled_from(["shuffle", "unshuffle", "channels", "unfold", "grid"])), draw(st.integers(1, 3))
    n, h, w = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    if kind == "shuffle":
        return FunctionSample("pixel_shuffle", F.pixel_shuffle, [(n, 2 * r * r, h, w)], options={"upscale_factor": r})
    if kind == "unshuffle":
        return FunctionSample(
            "pixel_unshuffle", F.pixel_unshuffle, [(n, 2, h * r, w * r)], options={"downscale_factor": r}
        )
    if kind == "channels":
        return FunctionSample("channel_shuffle", F.channel_shuffle, [(n, 2 * r, h, w)], options={"groups": r})
    if kind == "unfold":
        options = {k: each(draw, 2, st.integers(1, 2)) for k in ("kernel_size", "dilation", "stride")}
        return FunctionSample(
            "unfold", F.unfold, [(n, 2, h + 4, w + 4)], options={**options, "padding": draw(st.integers(0, 2))}
        )
    options = {
        "mode": draw(st.sampled_from(["bilinear", "nearest", "bicubic"])),
        "padding_mode": draw(st.sampled_from(["zeros", "border", "reflection"])),
        "align_corners": draw(TRUTH),
    }
    return FunctionSample("grid_sample", F.grid_sample, [(n, 2, h + 2, w + 2), (n, h, w, 2)], options=options)
