"""A decoder with a static cache, in two methods, generates the tokens that eager generates, without torch too."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import delegate
from delegate.compiled import CompiledProgram
from delegate.program import file
from delegate.program.model import StorageKind
from examples.llama.model import Llama
from tests.support.lowering import assert_runs
from tests.support.processes import AHEAD_OF_TIME, run
from tests.support.zoo import libraries

PROMPT, TOKENS = [5, 17, 3, 42, 8], 64
PROMPTS = PROMPT, PROMPT[::-1]

EXAMPLE = Path(__file__).parents[2] / "examples" / "llama"


def transformers_llama() -> nn.Module:
    """Llama of transformers with its static cache, which it makes exportable itself; tokens, positions -> logits."""
    with libraries():
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.integrations.executorch import TorchExportableModuleWithStaticCache
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, use_cache=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.generation_config.cache_implementation = "static"
    cached = TorchExportableModuleWithStaticCache(model, batch_size=1, max_cache_len=80)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = cached

        def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            return self.model(tokens, cache_position=positions)[:, -1]

    return Last().eval().requires_grad_(False)


def arguments(tokens: list[int], first: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([tokens]), torch.arange(first, first + len(tokens))


def generated(prefill, decode, prompt: list[int]) -> list[int]:
    with torch.no_grad():
        tokens = [int(prefill(*arguments(prompt, 0)).argmax())]
        while len(tokens) < TOKENS:
            tokens.append(int(decode(*arguments(tokens[-1:], len(prompt) + len(tokens) - 1)).argmax()))
    return tokens


@pytest.fixture(scope="module")
def model() -> Llama:
    torch.manual_seed(0)
    return Llama().eval()


@pytest.fixture(scope="module", params=[[], ["xnnpack"]], ids=["portable", "xnnpack"])
def program(request, model) -> CompiledProgram:
    return compiled(model, request.param, REFUSED)


# The operators that XNNPACK refuses, of both methods: tables of tokens, comparisons, indices that are computed.
REFUSED = {
    "aten.embedding.default": 2, "aten.unsqueeze.default": 2, "aten.le.Tensor": 2, "aten.index.Tensor": 4,
    "aten.index_put.default": 8,
}  # fmt: skip
REFUSED_OF_TRANSFORMERS = {
    "aten.embedding.default": 2, "aten.select.int": 2, "aten.add.Tensor": 10, "aten.unsqueeze.default": 10,
    "aten.le.Tensor": 2, "aten._to_copy.default": 2, "aten.index_put.default": 8,
}  # fmt: skip


def compiled(model: nn.Module, backends: list[str], refused: dict[str, int]) -> CompiledProgram:
    exported = {
        "prefill": torch.export.export(model, arguments(PROMPT, 0)),
        "decode": torch.export.export(model, arguments([1], 9)),
    }
    program = delegate.to_backend(exported, backends)
    if backends:
        assert_runs(program, "xnnpack", refused)
    return program


@pytest.fixture(scope="module")
def expected(model) -> list[list[int]]:
    """What eager generates for the prompt and for the prompt turned round."""
    fresh = [copy.deepcopy(model) for _ in PROMPTS]
    return [generated(own, own, prompt) for own, prompt in zip(fresh, PROMPTS, strict=True)]


def test_the_tokens_of_eager(program, expected):
    assert len(set(expected[0])) > 5  # it does not only repeat itself
    assert generated(program.method("prefill"), program.method("decode"), PROMPT) == expected[0]


@pytest.mark.parametrize("backends", [[], ["xnnpack"]], ids=["portable", "xnnpack"])
def test_transformers_with_its_static_cache(backends):
    model = transformers_llama()
    with libraries():
        program = compiled(model, backends, REFUSED_OF_TRANSFORMERS)
    tokens = generated(program.method("prefill"), program.method("decode"), PROMPT)
    assert tokens == generated(model, model, PROMPT)
    decode = next(m for m in program.program.methods if m.name == "decode")
    written = [decode.values[o] for call in decode.instructions for o in call.outputs]
    assert (
        sum(v.storage.kind is StorageKind.STATE and len(v.shape) == 4 for v in written) == 4
    )  # each cache once, in place
    assert not any(v.name.endswith("(updated)") and len(v.shape) == 4 for v in written)


def test_two_conversations_at_once(program, expected):
    contexts = [program.context() for _ in PROMPTS]
    tokens = [[int(c.method("prefill")(*arguments(p, 0)).argmax())] for c, p in zip(contexts, PROMPTS, strict=True)]
    for position in range(5, 20):
        for context, line in zip(contexts, tokens, strict=True):
            line.append(int(context.method("decode")(*arguments(line[-1:], position)).argmax()))
    assert tokens == [line[:16] for line in expected]


def test_saved_and_without_torch(program, expected, tmp_path):
    program.save(tmp_path / "llama.dlg")
    prompts = [",".join(map(str, p)) for p in (*PROMPTS, PROMPT)]
    generate = f"import runpy; runpy.run_path({str(EXAMPLE / 'generate.py')!r}, run_name='__main__')"
    done = run(generate, tmp_path / "llama.dlg", *prompts, absent=AHEAD_OF_TIME)
    found = [[int(t) for t in line.split()] for line in done.stdout.splitlines()]
    assert found == [*expected, expected[0]], done.stderr


@pytest.mark.slow
def test_the_example_exports(tmp_path):
    export = [sys.executable, str(EXAMPLE / "export.py"), str(tmp_path / "llama.dlg")]
    done = subprocess.run(export, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert delegate.load(tmp_path / "llama.dlg").methods == ("prefill", "decode")


def test_methods_share_constants_and_caches(program):
    names = [state.name for state in program.program.states]
    assert sorted(names) == sorted(f"layers.{i}.attention.{n}" for i in range(2) for n in ("keys", "values"))
    names = [constant.name for constant in program.program.constants]
    assert len({n for n in names if "." in n}) == len([n for n in names if "." in n])
    loaded = file.load(file.serialize(program.program))
    place_of: dict[bytes, int] = {}
    for tensor in (*loaded.constants, *loaded.states):  # what is equal lies in one place, in the file and in memory
        segment = loaded.segments[tensor.segment]
        address = np.frombuffer(segment, np.uint8).ctypes.data
        assert place_of.setdefault(bytes(segment), address) == address


def test_a_conversation_goes_on_from_a_snapshot(program):
    context = program.context()
    context.method("prefill")(*arguments(PROMPT, 0))
    snapshot = context.snapshot()
    first = context.method("decode")(*arguments([7], 5))
    context.method("decode")(*arguments([8], 6))
    context.restore(snapshot)
    np.testing.assert_array_equal(context.method("decode")(*arguments([7], 5)), first)
