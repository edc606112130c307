"""The models that prove it: torchvision's families, timm architectures, language models, and models written out.

Random weights, seeded, eval mode, built without any download; inputs as small as the architecture allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from tests.support.models.language import LANGUAGE
from tests.support.models.vision import CLASSIFICATION, SEGMENTATION, TIMM, VIDEO
from tests.support.models.written import UNCOMMON, WRITTEN, Entry
from tests.support.zoo import Inputs, calibrate, libraries, vary

MODELS: Mapping[str, Entry] = {**WRITTEN, **LANGUAGE, **TIMM, **SEGMENTATION, **VIDEO, **CLASSIFICATION}

# What torch cannot export, and the words that it says so with.
NOT_EXPORTED: Mapping[str, str] = {}

# A TFLite model holds less than 2 GiB, and each of these has more: it is cut.
LARGE = ("regnet_y_128gf", "vit_h_14")

# The planner of memory is greedy: the arena over the largest sum of live tensors, where that is more than MAX_WASTE.
WASTE: Mapping[str, float] = {"qwen2_moe": 1.15}

QUICK = (
    "bert_masked", "attention_by_hand", "gat", "dlrm", "convolutions_float16", "by_hand_bfloat16",
    *UNCOMMON, "lstm_bidirectional", "gru", "gpt2", "llama", "t5_encoder", "mobilenet_v3_small",
)  # fmt: skip

LENGTH = ("bert", "distilbert", "gpt2", "llama", "qwen3", "t5_encoder")  # whose sequences may have any length, too
DYNAMIC = (
    *LENGTH, "whisper_encoder", "gru", "lstm_bidirectional", "mobilenet_v3_small", "shufflenet_v2_x0_5", "resnet18",
    "lraspp_mobilenet_v3_large", "mobilevit_xxs", "vit_tiny_patch16_224", "convnext_tiny", "swin_t", "r3d_18",
)  # fmt: skip


def make(name: str) -> tuple[nn.Module, Inputs]:
    """The module in eval mode, and example inputs: the same for every call, whatever was drawn before."""
    build, draw_inputs = MODELS[name]
    with libraries(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs, module = draw_inputs(), build()
        _soften(module)
        vary(module)
        return calibrate(module, inputs, samples=6), inputs


def _soften(module: nn.Module) -> None:
    """Weak residual branches, as some recipes start with: deep nets of strong ones amplify rounding."""
    for block in module.modules():
        in_regnet = getattr(getattr(block, "f", None), "c", (None, None))[1]
        for last in (getattr(block, "bn3", None), in_regnet):
            if isinstance(last, nn.BatchNorm2d):
                nn.init.zeros_(last.weight)


def export(module: nn.Module, inputs: Inputs, dynamic_shapes: Any = None) -> torch.export.ExportedProgram:
    """The exported program, without what third-party code warns of."""
    with libraries():
        return torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
