"""The backend of each method of a language model: measured on a shortened model, and used in that method alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from delegate_llm.runtime.model import Model
from delegate_llm.runtime.sampling import Sampler

import delegate
from delegate.errors import DelegateError
from tests.support.language_models import PROMPT, TOKENS, configuration, eager
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

with libraries():
    from delegate_llm import Options, export, measure_engines
    from delegate_llm.aot import engines
    from delegate_llm.aot.engines import MethodEngine, engine_table, shorten
    from delegate_llm.aot.source import read

TWO = ("xnnpack", "xnnpack:second")
OPTIONS = Options(context=64, chunk=8, weights="float32", conversations=2)


def test_each_method_runs_on_its_backend(tmp_path):
    source = read(configuration(tmp_path, "qwen3"))
    texts: list[str] = []
    measured = measure_engines(source, OPTIONS, texts.append, TWO)
    assert [e.method for e in measured] == ["decode", "prefill", "head", "heads"]
    assert all(set(e.seconds) == set(TWO) and min(e.seconds.values()) > 0 for e in measured)
    assert texts[:2] == [f"compiling {engines.LAYERS} layers for {name}" for name in TWO]
    assert all(e.method in str(engine_table(measured)) for e in measured)

    chosen = {"decode": TWO[0], "prefill": TWO[1], "head": TWO[1], "heads": TWO[0]}
    program = export(source, tmp_path / "m.dlg", OPTIONS, [MethodEngine(m, b, {}) for m, b in chosen.items()])
    assert {(p.method, p.backend) for p in program.report.partitions} == set(chosen.items())
    model = Model(tmp_path / "m.dlg")
    tokens = list(model.conversation().generate(PROMPT, TOKENS, Sampler()))
    assert tokens == eager(source, PROMPT)
    model.program.close()


def test_one_backend_is_not_measured(tmp_path):
    source = read(configuration(tmp_path, "qwen3"))
    assert measure_engines(source, Options(), pytest.fail, ["xnnpack"]) == []


@pytest.mark.slow
def test_a_candidate_that_fails_is_left_out(tmp_path, monkeypatch):
    source = read(configuration(tmp_path, "qwen3"))

    def lower(methods, backend):
        if backend in failing:
            raise DelegateError(f"{backend} fails")
        return delegate.to_backend(methods, backend)

    monkeypatch.setattr(engines, "to_backend", lower)
    failing = {"xnnpack:second"}
    assert {e.backend for e in measure_engines(source, OPTIONS, str, TWO)} == {"xnnpack"}
    failing = set(TWO)
    with pytest.raises(DelegateError, match="xnnpack:second fails"):
        measure_engines(source, OPTIONS, str, TWO)


@pytest.mark.parametrize(
    ("seconds", "first", "chosen", "why"),
    [
        ({"a": 1.0, "b": 2.0}, "", "a", ""),
        ({"a": 1.0, "b": 0.8}, "", "b", ""),
        ({"a": 1.0, "b": 0.95}, "", "a", "b takes 5% less, which may be noise"),
        ({"a": 1.0, "b": 2.0}, "b", "a", ""),
        ({"a": 1.0, "b": 1.1}, "b", "b", "a would store the weights a second time, for 9% of the time"),
        ({"a": 1.0}, "b", "a", ""),
    ],
)
def test_weights_are_stored_twice_only_for_much_time(seconds, first, chosen, why):
    assert engines._choose({"prefill": seconds}, first) == [MethodEngine("prefill", chosen, seconds, why)]


KEEPS = "but one backend for decode, verify keeps tokens equal"


@pytest.mark.parametrize(
    ("decode", "verify", "chosen", "why"),
    [
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 0.8}, "a", ["", f"b takes 20% less, {KEEPS}"]),
        ({"a": 1.0, "b": 0.8}, {"a": 1.0, "b": 0.5}, "b", ["", ""]),
        ({"a": 1.0, "b": 0.99}, {"a": 1.0, "b": 0.99}, "a", ["b takes 1% less, which may be noise"] * 2),
        ({"a": 1.0, "b": 9.0}, {"b": 1.0}, "b", [f"a takes 89% less, {KEEPS}", ""]),
    ],
)
def test_methods_of_equal_tokens_have_one_backend(decode, verify, chosen, why):
    measured = {"decode": decode, "verify": verify}
    found = engines._choose(measured, "")
    assert found == [MethodEngine(m, chosen, measured[m], text) for m, text in zip(measured, why, strict=True)]


def test_no_backend_for_all_methods_of_equal_tokens():
    with pytest.raises(DelegateError, match=r"no backend runs all of decode, verify.*--backend"):
        engines._choose({"decode": {"a": 1.0}, "verify": {"b": 1.0}}, "")


@pytest.mark.parametrize(
    ("changes", "sets"),
    [
        ({"conversations": 1}, [["decode", "verify"], ["prefill"]]),
        ({"conversations": 2}, [["decode", "verify", "prefill"]]),
        ({"conversations": 2, "weights": "int8", "prefill_weights": "float32"}, [["decode", "verify"], ["prefill"]]),
    ],
    ids=str,
)
def test_which_methods_have_equal_tokens(tmp_path, monkeypatch, changes, sets):
    """Answers of a batch, and checks of guesses, have the tokens of decode."""
    source = read(configuration(tmp_path, "qwen3"))
    monkeypatch.setattr("delegate_llm.aot.export.choose_engines", lambda methods, sharing, *rest: sharing)
    monkeypatch.setattr("delegate_llm.aot.export.methods", lambda source, options: {})
    groups = measure_engines(source, replace(OPTIONS, guesses=3, **changes), str, TWO)
    assert [list(equal) for group in groups for equal in group] == [*sets, ["head", "heads"]]


@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "phi"])
def test_a_shortened_model_shares_its_weights(tmp_path, family, monkeypatch):
    monkeypatch.setattr(engines, "WORDS", 100)  # the padding token is not among them
    model = read(configuration(tmp_path, family)).load()
    small = shorten(model)
    assert len(small.base_model.layers) <= engines.LAYERS
    whole, part = model.get_output_embeddings().weight, small.get_output_embeddings().weight
    assert part.data_ptr() == whole.data_ptr()
    table, last = model.get_input_embeddings(), torch.tensor([99])
    assert torch.equal(small.get_input_embeddings()(last), table(last))
    assert (part is small.get_input_embeddings().weight) == (whole is model.get_input_embeddings().weight)
