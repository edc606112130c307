"""Weights in few bits: quantizing parts of the rows gives the integers of torchao's own transformation."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from delegate_llm.runtime.model import Model

from delegate.testing import assert_same
from tests.support.language_models import PROMPT, configuration, reference
from tests.support.placing import decibels
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

with libraries():
    from delegate_llm import Options, export
    from delegate_llm.aot import weights
    from delegate_llm.aot.decoder import Decoder
    from delegate_llm.aot.source import read
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, PerAxis, PerGroup, quantize_


STATUS = Path("/proc/self/statm")


def resident() -> int:
    return int(STATUS.read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize(
    ("kind", "options", "granularity"),
    [("int4", {}, PerGroup(32)), ("int4", {"block": 64}, PerGroup(64)), ("int8", {}, PerAxis(0))],
    ids=str,
)
def test_parts_of_the_rows_have_the_integers_of_torchao(kind, options, granularity, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PART", 640)  # neither divides the rows nor the other way round
    source = read(configuration(tmp_path, "qwen3", intermediate_size=192))
    mine = source.load()
    weights.quantize_weights(mine, kind, **options)
    for name, module in source.load().base_model.layers[0].named_modules():
        if isinstance(module, torch.nn.Linear):
            theirs = torch.nn.Sequential(torch.nn.Linear(module.in_features, module.out_features, bias=False))
            theirs[0].weight = module.weight
            config = Int8DynamicActivationIntxWeightConfig(getattr(torch, kind), granularity)
            quantize_(theirs, config)
            own = mine.base_model.layers[0].get_submodule(name).weight
            assert str(own._quantization_type()) == str(theirs[0].weight._quantization_type())
            if kind == "int8":
                for part in own.tensor_data_names:
                    assert torch.equal(getattr(own, part), getattr(theirs[0].weight, part))
            else:  # torchao's scales, rounded to bfloat16
                assert torch.equal(own.scale, theirs[0].weight.scale.bfloat16().float())
                assert_same(own.qdata, theirs[0].weight.qdata, steps=1)
                assert_same(own.dequantize(), module.weight, 0.08)


@pytest.mark.parametrize("rounding", ["nearest", "hqq", "gptq"])
def test_scales_of_blocks_are_exact_in_bfloat16(rounding, tmp_path):
    model = read(configuration(tmp_path, "qwen3")).load()
    rows = torch.arange(8 * 128).view(8, 128) % 290 if rounding == "gptq" else None
    weights.quantize_weights(model, "int4", rounding=rounding, rows=rows)
    layers = [m for m in model.base_model.modules() if isinstance(m, torch.nn.Linear)]
    assert layers
    for layer in layers:
        assert torch.equal(layer.weight.scale, layer.weight.scale.bfloat16().float())


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rows_of_zeros_stay_in_integers(kind, tmp_path):
    """The row of the padding token is 0. The smallest float32 as its scale made libraries reject the head."""
    source = read(configuration(tmp_path, "qwen3"))
    assert not source.load().get_output_embeddings().weight[298].any()
    with libraries():
        program = export(source, tmp_path / "m.dlg", Options(context=64, chunk=8, weights=kind, head_weights=kind))
    assert {node.backend for node in program.report.nodes if node.method == "head"} == {"xnnpack"}
    expected = reference(source)(torch.tensor([PROMPT]), use_cache=False).logits[0, -1]
    logits = torch.from_numpy(Model(tmp_path / "m.dlg").conversation().feed(PROMPT))
    assert decibels(logits, expected) > 5


@pytest.mark.skipif(not STATUS.exists(), reason="this system has no /proc")
def test_an_empty_cache_takes_no_memory(tmp_path):
    model = read(configuration(tmp_path, "qwen3")).load()
    before = resident()
    decoder = Decoder(model, 1 << 20, 4, "float32")
    assert sum(cache.entries.nbytes for cache in decoder.keys) >= 1 << 30
    assert resident() - before < 1 << 28
