"""Batches of a language model in compiled loops: the tokens of the same conversations one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from delegate_llm import Batch, Model, Sampler

from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

with libraries():
    from delegate_llm import Options, export, read

CONFIG = {
    "model_type": "gemma2", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "sliding_window": 7, "query_pre_attn_scalar": 16, "initializer_range": 0.1, "eos_token_id": 299,
}  # fmt: skip
PROMPTS = ([*range(1, 20)], [7], [*range(40, 51)], [9, 8, 7, 6])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose first layer has a window, and its program with an int8 cache."""
    folder = tmp_path_factory.mktemp("gemma2")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with libraries():
        options = Options(context=48, chunk=8, conversations=4, weights="float32", cache="int8")
        export(read(folder / "config.json"), folder / "model.dlg", options, [])
    return folder / "model.dlg"


@pytest.mark.parametrize("kernels", ["numba", "portable"])
def test_as_one_by_one(program: Path, kernels: str) -> None:
    model = Model(program, kernels=[kernels])
    found: list[list[int]] = [[] for _ in PROMPTS]
    with model.program.profile() as profile:
        expected = [list(model.conversation().generate(prompt, 10, Sampler())) for prompt in PROMPTS]
    batch = Batch(model)
    with batch.conversations[0].context.profile() as profile:
        for number, token in batch.generate(PROMPTS, 10, [Sampler() for _ in PROMPTS]):
            found[number].append(token)
    assert found == expected
    assert len({token for answer in found for token in answer}) > 8
    libraries_of = {t.library for t in profile.timings if "cached_attention" in t.what}
    assert libraries_of == {kernels}
