"""Models of images and videos: the families of torchvision, and architectures of timm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from tests.support.zoo import Inputs

Entry = tuple[Callable[[], nn.Module], Callable[[], Inputs]]


def _image(*size: int) -> Callable[[], Inputs]:
    return lambda: (torch.randn(1, 3, *size),)


def _vision(name: str, *size: int, **options: Any) -> Entry:
    def build() -> nn.Module:
        import torchvision.models

        return torchvision.models.get_model(name, weights=None, **options)

    return build, _image(*size)


_CLASSIFIERS = """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201
    efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6
    efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet mnasnet0_5 mnasnet0_75 mnasnet1_0
    mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf regnet_x_32gf
    regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf
    regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34
    resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0
    shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s
    swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn wide_resnet101_2 wide_resnet50_2
"""
_SEGMENTERS = """
    deeplabv3_mobilenet_v3_large deeplabv3_resnet101 deeplabv3_resnet50 fcn_resnet101 fcn_resnet50
    lraspp_mobilenet_v3_large
"""


_FIXED = {"vit_b_16": 64, "vit_b_32": 64, "vit_h_14": 56, "vit_l_16": 64, "vit_l_32": 64}
CLASSIFICATION: Mapping[str, Entry] = {
    **{name: _vision(name, 64, 64) for name in _CLASSIFIERS.split()},
    **{name: _vision(name, size, size, image_size=size) for name, size in _FIXED.items()},
    "inception_v3": _vision("inception_v3", 299, 299, init_weights=False),
    "maxvit_t": _vision("maxvit_t", 224, 224),
}
SEGMENTATION: Mapping[str, Entry] = {name: _vision(name, 64, 64, weights_backbone=None) for name in _SEGMENTERS.split()}
VIDEO: Mapping[str, Entry] = {
    **{
        name: _vision(name, 8, 56, 56)
        for name in ["mc3_18", "r2plus1d_18", "r3d_18", "swin3d_b", "swin3d_s", "swin3d_t"]
    },
    **{name: _vision(name, 16, 224, 224) for name in ("mvit_v1_b", "mvit_v2_s", "s3d")},
}


def _timm(name: str, size: int, **options: Any) -> Entry:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, **options)

    return build, _image(size, size)


def _convmixer() -> nn.Module:
    from timm.models.convmixer import ConvMixer

    return ConvMixer(dim=128, depth=6)  # of 32 random layers without a way around them, eager itself is off by 1e-3


TIMM: Mapping[str, Entry] = {
    "beit_base_patch16_224": _timm("beit_base_patch16_224", 64, img_size=64),
    "cait_xxs24_224": _timm("cait_xxs24_224", 64, img_size=64),
    "coat_lite_tiny": _timm("coat_lite_tiny", 64, img_size=64),
    "coatnet_nano_rw_224": _timm("coatnet_nano_rw_224", 224),
    "convmixer": (_convmixer, _image(64, 64)),
    "crossvit_9_240": _timm("crossvit_9_240", 240),
    "deit_tiny_distilled_patch16_224": _timm("deit_tiny_distilled_patch16_224", 64, img_size=64),
    "dla46x_c": _timm("dla46x_c", 64),
    "edgenext_xx_small": _timm("edgenext_xx_small", 64),
    "efficientformer_l1": _timm("efficientformer_l1", 224),
    "efficientformerv2_s0": _timm("efficientformerv2_s0", 224),
    "eva02_tiny_patch14_224": _timm("eva02_tiny_patch14_224", 56, img_size=56),
    "fastvit_t8": _timm("fastvit_t8", 64),
    "ghostnet_050": _timm("ghostnet_050", 64),
    "ghostnetv2_100": _timm("ghostnetv2_100", 64),
    "hiera_tiny_224": _timm("hiera_tiny_224", 224),
    "hrnet_w18_small": _timm("hrnet_w18_small", 64),
    "levit_128s": _timm("levit_128s", 224),
    "maxvit_pico_rw_256": _timm("maxvit_pico_rw_256", 256),
    "mixer_s32_224": _timm("mixer_s32_224", 224),
    "mobileone_s0": _timm("mobileone_s0", 128),
    "mobilevit_xxs": _timm("mobilevit_xxs", 64),
    "mvitv2_tiny": _timm("mvitv2_tiny", 64, img_size=64),
    "nfnet_l0": _timm("nfnet_l0", 64),
    "pit_ti_224": _timm("pit_ti_224", 224),
    "poolformer_s12": _timm("poolformer_s12", 64),
    "regnetz_005": _timm("regnetz_005", 64),
    "repvgg_a0": _timm("repvgg_a0", 64),
    "rexnet_100": _timm("rexnet_100", 64),
    "swinv2_tiny_window8_256": _timm("swinv2_tiny_window8_256", 64, img_size=64),
    "tnt_s_patch16_224": _timm("tnt_s_patch16_224", 64, img_size=64),
    "twins_svt_small": _timm("twins_svt_small", 64, img_size=64),
    "visformer_tiny": _timm("visformer_tiny", 64, img_size=64),
    "vit_tiny_patch16_224": _timm("vit_tiny_patch16_224", 64, img_size=64),
    "volo_d1_224": _timm("volo_d1_224", 64, img_size=64),
    "xcit_nano_12_p16_224": _timm("xcit_nano_12_p16_224", 64, img_size=64),
}
