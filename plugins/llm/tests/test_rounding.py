"""Rounding of int4 weights of language models: less noise than rounding to the nearest, and bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from delegate_llm.runtime.sampling import Sampler

from delegate.errors import ConfigError, InputError
from tests.support.language_models import PROMPT, configuration, made
from tests.support.placing import decibels
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

with libraries():
    from delegate_llm import Options
    from delegate_llm.aot.export import methods
    from delegate_llm.aot.source import Source, read
    from delegate_llm.aot.weights import calibration_rows, quantize_weights


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    with libraries():
        return read(configuration(tmp_path_factory.mktemp("qwen"), "qwen3"))


def drawn(count: int, seed: int) -> list[int]:
    """Return tokens, of which some are much more frequent than others, as in texts."""
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(seed)).abs() * 40
    return [int(number) % 300 for number in numbers]


def noise_db(source: Source, rounding: str) -> float:
    """Return the SQNR of logits with int4 weights, on tokens that were not calibrated on."""
    rows = calibration_rows(drawn(2048, 0), 300, "") if rounding == "gptq" else None
    quantized = source.load()
    quantize_weights(quantized, "int4", rounding=rounding, rows=rows)
    tokens = torch.tensor([drawn(128, 1)])
    results = []
    for model in (quantized, source.load()):
        own, model.config._attn_implementation = model.config._attn_implementation, "eager"
        with torch.no_grad():
            results.append(model(tokens, use_cache=False).logits)
        model.config._attn_implementation = own
    return decibels(*results)


def test_weights_that_are_fitted_to_data_have_less_noise(source: Source) -> None:
    assert noise_db(source, "gptq") > noise_db(source, "nearest") + 1


def test_inputs_that_are_always_zero(source: Source) -> None:
    """The inverse of their squares would be infinite."""
    with torch.no_grad():
        source.load().base_model.layers[1].input_layernorm.weight[3] = 0.0
    assert noise_db(source, "gptq") > 5


def test_a_program_of_fitted_weights_answers(tmp_path: Path) -> None:
    text = tmp_path / "tokens.txt"
    text.write_text(",".join(map(str, drawn(1100, 0))))
    _, model = made(tmp_path, "qwen3", weights="int4", rounding="gptq", calibration=text)
    assert len(list(model.conversation().generate(PROMPT, 4, Sampler()))) == 4


@pytest.mark.parametrize(
    ("options", "text", "error", "match"),
    [
        ({"rounding": "up"}, None, ConfigError, "unknown rounding 'up'"),
        ({"rounding": "hqq", "weights": "int8"}, None, ConfigError, "'hqq' is for int4 weights"),
        ({"rounding": "gptq"}, None, ConfigError, "'gptq' needs a text"),
        ({"rounding": "hqq"}, "5,17", ConfigError, "only rounding 'gptq' reads a text"),
        ({"rounding": "gptq"}, "5,17,3", ConfigError, "has 3 tokens.*tokens.txt.*1024 tokens or more"),
        ({"rounding": "gptq"}, "300," * 1024, ConfigError, "has token 300.*tokens 0 to 299"),
        ({"rounding": "gptq"}, "words", InputError, "not a list of token numbers"),
        ({"rounding": "gptq"}, "five " * 900, InputError, r"\((five ){8}\.\.\.\): write them"),
        ({"rounding": "gptq"}, b"\xff\xfe", ConfigError, "the calibration text cannot be read"),
    ],
)
def test_bad_roundings(
    options: dict[str, str],
    text: str | bytes | None,
    error: type[Exception],
    match: str,
    source: Source,
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens.txt"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    requested = Options(**{"context": 64, "chunk": 8, "weights": "int4", **options}, calibration=text and path)
    with pytest.raises(error, match=match):
        methods(source, requested)
