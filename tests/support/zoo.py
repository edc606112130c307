"""Real architectures with seeded random weights, built without any download, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn.modules.batchnorm import _BatchNorm

Inputs = tuple[torch.Tensor, ...]


@contextlib.contextmanager
def libraries() -> Iterator[None]:
    """Where third-party libraries are imported and used: silences what they warn of about themselves, nothing else."""
    with warnings.catch_warnings(), _no_torchvision_fakes():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"(torchvision|timm|transformers)\.")
        yield


@contextlib.contextmanager
def _no_torchvision_fakes() -> Iterator[None]:
    """Ignores the fake kernels of torchvision's own C++ operators where they do not load, as beside a CPU-only torch.

    Classification models use none of these operators.
    """
    original = torch.library.register_fake

    def register(op, *args, **kwargs):
        if isinstance(op, str) and op.startswith("torchvision::") and not hasattr(torch.ops.torchvision, op[13:]):
            return lambda function: function
        return original(op, *args, **kwargs)

    torch.library.register_fake = register
    try:
        yield
    finally:
        torch.library.register_fake = original


def _torchvision(name: str) -> torch.nn.Module:
    with libraries():
        import torchvision.models
    return torchvision.models.get_model(name, weights=None)


def _timm(name: str) -> torch.nn.Module:
    with libraries():
        import timm
    return timm.create_model(name)


def _bert(**shape: int) -> torch.nn.Module:
    with libraries():
        from transformers import BertConfig, BertModel
    return BertModel(BertConfig(**shape), add_pooling_layer=False)


def _bert_mini() -> torch.nn.Module:
    return _bert(num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024, vocab_size=2000)


def _llama_mini() -> torch.nn.Module:
    with libraries():
        from transformers import LlamaConfig, LlamaForCausalLM
    shape = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "intermediate_size": 768}
    return LlamaForCausalLM(LlamaConfig(**shape, num_key_value_heads=4, vocab_size=4000, use_cache=False))


def _distilbert_mini() -> torch.nn.Module:
    with libraries():
        from transformers import DistilBertConfig, DistilBertModel
    return DistilBertModel(DistilBertConfig(n_layers=6, dim=256, n_heads=4, hidden_dim=1024, vocab_size=2000))


def _image(size: int) -> Inputs:
    return (torch.randn(1, 3, size, size),)


def _tokens(length: int) -> Inputs:
    return (torch.randint(0, 1000, (1, length)),)


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to build a module, and example inputs of batch size 1."""

    build: Callable[[str], torch.nn.Module]
    inputs: Callable[[int], Inputs]
    size: int


ZOO = {
    "mobilenet_v2": Architecture(_torchvision, _image, 224),
    "mobilenet_v3_small": Architecture(_torchvision, _image, 224),
    "resnet18": Architecture(_torchvision, _image, 224),
    "resnet50": Architecture(_torchvision, _image, 224),
    "efficientnet_b0": Architecture(_torchvision, _image, 224),
    "convnext_tiny": Architecture(_torchvision, _image, 224),
    "swin_t": Architecture(_torchvision, _image, 224),
    "vit_tiny": Architecture(lambda _: _timm("vit_tiny_patch16_224"), _image, 224),
    "mobilevit_xxs": Architecture(_timm, _image, 256),
    "bert_mini": Architecture(lambda _: _bert_mini(), _tokens, 128),
    "llama_mini": Architecture(lambda _: _llama_mini(), _tokens, 128),
}

WIDER = {  # ten more, for benchmarks
    **{
        name: Architecture(_timm, _image, 224)
        for name in (
            "deit_tiny_patch16_224", "regnety_004", "ghostnet_100", "tf_efficientnet_lite0", "mixer_s32_224",
            "resnext50_32x4d", "convnextv2_atto", "edgenext_xx_small", "poolformer_s12",
        )
    },
    "distilbert_mini": Architecture(lambda _: _distilbert_mini(), _tokens, 128),
}  # fmt: skip

LARGE = {  # for machines with a GPU
    "vit_b_16": Architecture(_torchvision, _image, 224),
    "bert_base": Architecture(lambda _: _bert(), _tokens, 128),
}


# Of networks whose layers enlarge the first errors: four times what is measured, also on portable kernels.
_LARGE_ERRORS = {
    **dict.fromkeys(("resnet50", "regnet_y_400mf", "shufflenet_v2_x0_5", "mnasnet0_5"), 9e-5),
    **{"resnext50_32x4d": 2e-4, "densenet121": 4e-5, "efficientnet_v2_s": 3e-5},
}


def tolerance(name: str) -> float:
    """Return the largest relative error of a network in float32 that sums in another order than eager."""
    return _LARGE_ERRORS.get(name, 1.6e-5)  # 3.9e-6 is measured of mobilenet_v2, and less of the others


def calibrate(module: torch.nn.Module, inputs: Inputs, samples: int = 2) -> torch.nn.Module:
    """Gives BatchNorm layers the statistics of one batch, in place, and returns the module in eval mode.

    With its start values a random network's activations vanish into denormals or explode.
    """
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    if norms:
        momenta = [m.momentum for m in norms]
        for m in norms:
            m.momentum = 1.0
        module.train()
        with torch.no_grad():
            module(*(torch.cat([x, *(torch.randn_like(x) for _ in range(samples - 1))]) for x in inputs))
        for m, momentum in zip(norms, momenta, strict=True):
            m.momentum = momentum
    return module.eval()


def vary(module: torch.nn.Module) -> None:
    """Parameters that start out as one number differ: zeros and tiny scales would hide what they are applied to."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and parameter.numel() > 1 and parameter.min() == parameter.max():
                spread = 0.1 * torch.randn_like(parameter)
                parameter.copy_(spread if parameter.max() == 0 else 0.5 + spread)


def make(name: str, size: int | None = None) -> tuple[torch.nn.Module, Inputs]:
    """Return the module in eval mode, and example inputs: the same for every call, whatever was drawn before.

    Args:
        name: of an architecture.
        size: length of the inputs; None for the usual one.
    """
    architecture = (ZOO | LARGE | WIDER)[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = architecture.inputs(size or architecture.size)
        module = architecture.build(name)
        vary(module)
        return calibrate(module, inputs), inputs


@functools.lru_cache(maxsize=4)
def export(name: str, size: int | None = None) -> torch.export.ExportedProgram:
    """Return the exported program of `make(name, size)`, which callers share and must not change."""
    module, inputs = make(name, size)
    with libraries():
        return torch.export.export(module, inputs)
