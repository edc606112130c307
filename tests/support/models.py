"""The models that prove it: torchvision's families, timm architectures, language models, recurrent nets.

Random weights, seeded, eval mode, built without any download; inputs as small as the architecture allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.support.demanding import DEMANDING
from tests.support.uncommon import UNCOMMON
from tests.support.zoo import Inputs, calibrate, libraries, vary


@dataclass(frozen=True, slots=True)
class Model:
    """How to build a module and example inputs, both from the seeded generator.

    Args:
        build: gives the module.
        inputs: gives example inputs of batch size 1.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]


def _image(*size: int) -> Callable[[], Inputs]:
    return lambda: (torch.randn(1, 3, *size),)


def _vision(name: str, *size: int, **options: Any) -> Model:
    def build() -> nn.Module:
        import torchvision.models

        return torchvision.models.get_model(name, weights=None, **options)

    return Model(build, _image(*size))


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


def _classifiers() -> dict[str, Model]:
    fixed = {"vit_b_16": 64, "vit_b_32": 64, "vit_h_14": 56, "vit_l_16": 64, "vit_l_32": 64}
    return {
        **{name: _vision(name, 64, 64) for name in _CLASSIFIERS.split()},
        **{name: _vision(name, size, size, image_size=size) for name, size in fixed.items()},
        "inception_v3": _vision("inception_v3", 299, 299, init_weights=False),
        "maxvit_t": _vision("maxvit_t", 224, 224),
    }


def _segmenters() -> dict[str, Model]:
    return {name: _vision(name, 64, 64, weights_backbone=None) for name in _SEGMENTERS.split()}


def _videos() -> dict[str, Model]:
    plain = ("mc3_18", "r2plus1d_18", "r3d_18", "swin3d_b", "swin3d_s", "swin3d_t")
    fixed = ("mvit_v1_b", "mvit_v2_s", "s3d")
    return {
        **{name: _vision(name, 8, 56, 56) for name in plain},
        **{name: _vision(name, 16, 224, 224) for name in fixed},
    }


def _timm(name: str, size: int, **options: Any) -> Model:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, **options)

    return Model(build, _image(size, size))


def _convmixer() -> nn.Module:
    from timm.models.convmixer import ConvMixer

    return ConvMixer(dim=128, depth=6)  # of 32 random layers without a way around them, eager itself is off by 1e-3


_TIMM = {
    "beit_base_patch16_224": _timm("beit_base_patch16_224", 64, img_size=64),
    "cait_xxs24_224": _timm("cait_xxs24_224", 64, img_size=64),
    "coat_lite_tiny": _timm("coat_lite_tiny", 64, img_size=64),
    "coatnet_nano_rw_224": _timm("coatnet_nano_rw_224", 224),
    "convmixer": Model(_convmixer, _image(64, 64)),
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

_VOCABULARY = 500


def _tokens() -> Inputs:
    return (torch.randint(0, _VOCABULARY, (1, 24)),)


def _spectrogram() -> Inputs:
    return (torch.randn(1, 16, 60),)


def _language(cls: str, config: str, inputs: Callable[[], Inputs] = _tokens, **shape: Any) -> Model:
    """A model of transformers by the names of its class and of its configuration's."""

    def build() -> nn.Module:
        import transformers

        return getattr(transformers, cls)(getattr(transformers, config)(**shape))

    return Model(build, inputs)


_WORDS = {"vocab_size": _VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_DECODER = {**_SIZES, "num_key_value_heads": 2, "vocab_size": _VOCABULARY, "use_cache": False}
_LANGUAGE = {
    "bert": _language("BertModel", "BertConfig", **_SIZES, vocab_size=_VOCABULARY),
    "distilbert": _language(
        "DistilBertModel", "DistilBertConfig", dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=_VOCABULARY
    ),
    "gpt2": _language("GPT2LMHeadModel", "GPT2Config", n_embd=64, n_layer=2, n_head=4, use_cache=False, **_WORDS),
    "llama": _language("LlamaForCausalLM", "LlamaConfig", **_DECODER),
    "qwen3": _language("Qwen3ForCausalLM", "Qwen3Config", **_DECODER, head_dim=16),
    "t5_encoder": _language(
        "T5EncoderModel", "T5Config", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=_VOCABULARY
    ),
    "whisper_encoder": Model(lambda: _whisper().get_encoder(), _spectrogram),
}


def _whisper() -> nn.Module:
    shape = {"num_mel_bins": 16, "max_source_positions": 30, "d_model": 64, "vocab_size": _VOCABULARY}
    layers = {f"{half}_layers": 2 for half in ("encoder", "decoder")}
    heads = {f"{half}_attention_heads": 4 for half in ("encoder", "decoder")}
    sizes = {f"{half}_ffn_dim": 128 for half in ("encoder", "decoder")}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return _language("WhisperModel", "WhisperConfig", **shape, **layers, **heads, **sizes, **tokens).build()


def _sequence() -> Inputs:
    return (torch.randn(1, 12, 16),)


def _recurrent(cls: type[nn.RNNBase], **options: Any) -> Model:
    return Model(lambda: cls(16, 32, num_layers=3, batch_first=True, **options), _sequence)


_RECURRENT = {
    "lstm": _recurrent(nn.LSTM),
    "lstm_bidirectional": _recurrent(nn.LSTM, bidirectional=True),
    "lstm_projected": _recurrent(nn.LSTM, proj_size=16),
    "gru": _recurrent(nn.GRU),
    "gru_bidirectional": _recurrent(nn.GRU, bidirectional=True),
}

_DEMANDING = {name: Model(build, inputs) for name, (build, inputs) in (DEMANDING | UNCOMMON).items()}
CLASSIFICATION = _classifiers()
SEGMENTATION = _segmenters()
VIDEO = _videos()
MODELS: Mapping[str, Model] = {
    **_RECURRENT, **_DEMANDING, **_LANGUAGE, **_TIMM, **SEGMENTATION, **VIDEO, **CLASSIFICATION,
}  # fmt: skip

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
    model = MODELS[name]
    with libraries(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = model.inputs()
        module = model.build()
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
