"""LoRA adapters: the logits of PEFT, adapters of several conversations in one call, and adapters that do not fit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from delegate_llm.runtime.adapter import Adapter
from delegate_llm.runtime.batch import Batch
from delegate_llm.runtime.model import Model
from delegate_llm.runtime.sampling import Sampler
from delegate_llm.runtime.speculative import Speculation
from typer.testing import CliRunner

from delegate.cli.app import app
from delegate.errors import InputError
from delegate.testing import assert_same
from tests.support.language_models import PROMPT, configuration, made, reference
from tests.support.pages import DOCS, run_page
from tests.support.processes import AHEAD_OF_TIME, run
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

with libraries():
    import peft
    from delegate_llm import Options, export
    from delegate_llm.aot.decoder import Slots
    from delegate_llm.aot.source import Source, read

RANK = 8
ROOT = Path(__file__).parents[2]


def add_adapter(source: Source, folder: Path, seed: int = 0, **options: Any) -> peft.PeftModel:
    """Return a model with a random adapter, which is saved to a folder."""
    torch.manual_seed(seed)
    options = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", **options}
    with libraries():
        model = peft.get_peft_model(reference(source), peft.LoraConfig(init_lora_weights=False, **options)).eval()
        model.save_pretrained(folder)
    return model


def logits(model: torch.nn.Module, prompt: list[int]) -> np.ndarray:
    """Return the logits after a prompt."""
    with torch.no_grad():
        return model(torch.tensor([prompt]), use_cache=False).logits[0, -1].numpy()


def answer(model: Model, prompt: list[int], adapter: Adapter | None, count: int = 10) -> list[int]:
    return list(model.conversation(adapter=adapter).generate(prompt, count, Sampler()))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> tuple[Source, Model]:
    return made(tmp_path_factory.mktemp("qwen"), "qwen3", conversations=4, guesses=2, lora_rank=RANK)


@pytest.fixture(scope="module")
def adapters(qwen, tmp_path_factory) -> list[Adapter]:
    """Three adapters of different ranks and targets."""
    source, model = qwen
    folder = tmp_path_factory.mktemp("adapters")
    options = ({"r": RANK}, {"r": 3, "target_modules": ["q_proj", "v_proj"]}, {"r": 2, "target_modules": ["down_proj"]})
    for seed, changes in enumerate(options):
        add_adapter(source, folder / str(seed), seed, **changes)
    return [model.load_adapter(folder / str(seed)) for seed in range(3)]


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"r": RANK, "lora_alpha": 3, "use_rslora": True},
        {"r": 2, "rank_pattern": {"o_proj": 5}, "alpha_pattern": {"layers.1.self_attn.o_proj": 20, "up_proj": 1}},
        {"r": 1, "layers_to_transform": [1], "target_modules": ["gate_proj"], "lora_dropout": 0.5},
    ],
    ids=str,
)
def test_the_logits_of_peft(options, qwen, tmp_path):
    source, model = qwen
    expected = logits(add_adapter(source, tmp_path, **options), PROMPT)
    base = model.conversation().feed(PROMPT)
    assert [*expected.argsort()] != [*base.argsort()]
    adapter = model.load_adapter(tmp_path)
    conversation = model.conversation(adapter=adapter)
    assert_same(conversation.feed(PROMPT), expected, 2e-5, at_least=1.0)  # prefill
    conversation.restart(adapter)
    assert_same([conversation.feed([token]) for token in PROMPT][-1], expected, 2e-5, at_least=1.0)  # decode
    conversation.restart()
    assert_same(conversation.feed(PROMPT), base)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matrices_of_16_bits(dtype, qwen, tmp_path):
    source, model = qwen
    peft_model = add_adapter(source, tmp_path)
    for name, parameter in peft_model.named_parameters():
        if "lora" in name:
            parameter.data = parameter.data.to(dtype)
    peft_model.save_pretrained(tmp_path)
    expected = logits(peft_model.float(), PROMPT)
    found = model.conversation(adapter=model.load_adapter(tmp_path)).feed(PROMPT)
    assert_same(found, expected, 2e-5, at_least=1.0)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        pytest.param("phi3", {"conversations": 2}, marks=pytest.mark.slow),
        pytest.param("gemma2", {}, marks=pytest.mark.slow),
        pytest.param("phi", {}, marks=pytest.mark.slow),
        pytest.param("llama", {"backends": []}, marks=pytest.mark.slow),
    ],
)
def test_families(family, options, tmp_path):
    source, model = made(tmp_path, family, lora_rank=4, **options)
    expected = logits(add_adapter(source, tmp_path / "adapter"), PROMPT)
    found = model.conversation(adapter=model.load_adapter(tmp_path / "adapter")).feed(PROMPT)
    assert_same(found, expected, 2e-5, at_least=1.0)


@pytest.mark.slow
def test_quantized_weights(tmp_path):
    """The adapter changes the quantized model as much as it changes the model in float32."""
    source, model = made(tmp_path, "llama", weights="int4", prefill_weights="int8", lora_rank=4)
    change = logits(add_adapter(source, tmp_path / "adapter"), PROMPT) - logits(reference(source), PROMPT)
    adapter = model.load_adapter(tmp_path / "adapter")
    found = model.conversation(adapter=adapter).feed(PROMPT) - model.conversation().feed(PROMPT)
    assert np.corrcoef(change, found)[0, 1] > 0.95


def test_adapters_of_several_conversations_in_one_call(qwen, adapters):
    """More prompts than rows: rows are used again, with other adapters and without one."""
    _, model = qwen
    prompts = [[*range(i + 1, 3 * i + 3)] for i in range(9)]
    chosen = [[*adapters, None][i % 4 if i < 4 else i % 3] for i in range(9)]
    found: dict[int, list[int]] = {i: [] for i in range(9)}
    for i, token in Batch(model).generate(prompts, 6, [Sampler() for _ in prompts], chosen):
        found[i].append(token)
    expected = [answer(model, prompt, adapter, 6) for prompt, adapter in zip(prompts, chosen, strict=True)]
    assert [*found.values()] == expected
    assert expected[4:] != [answer(model, prompt, None, 6) for prompt in prompts[4:]]


def test_a_prefix_with_an_adapter(qwen, adapters):
    _, model = qwen
    first = model.conversation(adapter=adapters[0])
    first.feed(PROMPT)
    prefix = first.snapshot()
    assert all(name.startswith(("keys.", "values.")) for name in prefix.states)
    for adapter in (None, adapters[0]):
        found = list(model.conversation(prefix, adapter).generate([1, 2], 6, Sampler()))
        assert found == answer(model, [*PROMPT, 1, 2], adapters[0], 6)
    with pytest.raises(InputError, match="the prefix was computed with another adapter"):
        model.conversation(prefix, adapters[1])


def test_guesses_without_the_adapter(qwen, adapters):
    _, model = qwen
    both = Speculation(model, model, adapters[1])
    assert list(both.generate(PROMPT, 10)) == answer(model, PROMPT, adapters[1])


# -- adapters that do not fit ------------------------------------------------------------------------------------------


def with_config(**changes: Any) -> Callable[[Path], None]:
    """Return a change of fields of the configuration."""

    def change(folder: Path) -> None:
        file = folder / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def with_tensors(edit: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    """Return a change of the tensors."""

    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "adapter_model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")

    return change


def with_pipe(name: str) -> Callable[[Path], None]:
    """Return a change that puts a pipe without a writer in place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


LAYER = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "there is no adapter_config.json"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "there is no adapter_model.safetensors"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "no adapter configuration .*not valid JSON"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "no adapter configuration"),
        (lambda f: (f / "adapter_config.json").write_text("{}"), "peft_type = null are not supported"),
        (lambda f: (f / "adapter_model.safetensors").write_bytes(b"no"), "its matrices cannot be read"),
        (with_config(peft_type="IA3"), 'peft_type = "IA3" are not supported'),
        (with_config(bias="all"), 'bias = "all"'),
        (with_config(use_dora=True), "use_dora = true"),
        (with_config(modules_to_save=["lm_head"]), r"modules_to_save = \[\"lm_head\"\]"),
        (with_config(init_lora_weights="pissa"), 'init_lora_weights = "pissa"'),
        (with_config(lora_alpha="8"), 'lora_alpha is "8"'),
        (with_config(lora_alpha=None), "lora_alpha is null"),
        (with_config(lora_alpha=10**400), r"lora_alpha is 10000000.*\.\.\..*a finite number"),
        (with_config(lora_alpha=1e300), "lora_alpha is 1e.300.*a finite number from -1e.30"),
        (with_config(lora_alpha=-(2**2000)), "lora_alpha is -114813.*a finite number"),
        (with_config(lora_alpha=True), "lora_alpha is true"),
        (with_config(lora_alpha=float("nan")), "lora_alpha is NaN"),
        (with_config(alpha_pattern={"q_proj": [8]}), r"lora_alpha is \[8\]"),
        (with_config(alpha_pattern=[8]), "alpha_pattern has other keys"),
        (with_config(alpha_pattern={"(a|b)": 3}), "alpha_pattern has other keys"),
        (with_config(base_model_name_or_path="org/Other"), "an adapter of 'Other', not of 'Base'.*base_model_name_or"),
        (with_tensors(lambda t: t.pop(f"{LAYER}B.weight")), "lora_B.weight' is missing"),
        (with_tensors(lambda t: t.pop(f"{LAYER}A.weight")), "lora_A.weight' is missing"),
        (with_tensors(lambda t: t.clear()), "the adapter has no matrices"),
        (with_tensors(lambda t: t.update({f"{LAYER}magnitude": torch.ones(3)})), "magnitude' is not supported"),
        (with_tensors(lambda t: t.update({f"{LAYER}A.weight": torch.ones(4, 63)})), "63 inputs and 64 outputs, not 64"),
        (with_tensors(lambda t: t.update({f"{LAYER}A.weight": torch.ones(3, 64)})), r"shapes \[3, 64\] and \[64, 4\]"),
        (with_tensors(lambda t: t.update({f"{LAYER}A.weight": torch.ones(64)})), "have the shapes"),
        (
            with_tensors(lambda t: t.update({f"{LAYER}{k}.weight": torch.ones(s) for k, s in EMPTY})),
            r"shapes \[0, 64\] and \[64, 0\]",
        ),
        (with_tensors(lambda t: t[f"{LAYER}A.weight"].fill_(torch.nan)), "not finite"),
        (with_tensors(lambda t: t[f"{LAYER}B.weight"].fill_(3e38)), "not finite after the scaling by lora_alpha"),
        (with_tensors(lambda t: t.update({f"{LAYER}B.weight": torch.ones(())})), r"shapes \[4, 64\] and \[\]"),
        (with_tensors(lambda t: t.update({f"{LAYER}A.weight": torch.ones(4, 64, 1)})), r"shapes \[4, 64, 1\] and"),
        (with_pipe("adapter_config.json"), "this is no adapter configuration .*this is a pipe"),
        (with_pipe("adapter_model.safetensors"), "its matrices cannot be read .*this is a pipe"),
        (with_tensors(lambda t: t.update({f"{LAYER}A.weight": torch.ones(4, 64, dtype=torch.int8)})), "the type I8"),
        (
            with_tensors(lambda t: t.update({f"{LAYER}{k}.weight": torch.ones(9, 64).reshape(s) for k, s in SIZES})),
            "rank 9, and the program supports 8.*--lora-rank 9",
        ),
        (
            with_tensors(lambda t: t.update({f"{OTHER}{k}.weight": t[f"{LAYER}{k}.weight"].clone() for k in "AB"})),
            "no place for an adapter of layer 'model.layers.7.self_attn.q_proj'.*down_proj, gate_proj, k_proj",
        ),
    ],
)  # fmt: skip
def test_adapters_that_do_not_fit(change, match, qwen, tmp_path, monkeypatch):
    source, model = qwen
    if not SAVED:
        SAVED.append(tmp_path.parent / "saved adapter")
        add_adapter(source, SAVED[0], target_modules=["q_proj", "v_proj"])
    shutil.copytree(SAVED[0], tmp_path / "adapter")
    monkeypatch.setattr(model, "about", {**model.about, "base": "Base"})
    model.load_adapter(tmp_path / "adapter")
    change(tmp_path / "adapter")
    with pytest.raises(InputError, match=match):
        model.load_adapter(tmp_path / "adapter")


SAVED: list[Path] = []
SIZES = (("A", (9, 64)), ("B", (64, 9)))
EMPTY = (("A", (0, 64)), ("B", (64, 0)))
OTHER = LAYER.replace("layers.0", "layers.7")


def test_places_in_some_layers(qwen):
    source, _ = qwen
    slots = Slots(source.load(), 4, ("q_proj", "down_proj"), 2)
    places = {name: tuple(buffer.shape) for name, buffer in slots.model.named_buffers() if "lora" in name}
    shapes = {"self_attn.q_proj": (64, 64), "mlp.down_proj": (96, 64)}
    assert places == {
        f"model.layers.{i}.{layer}.lora_{name}": shape
        for i in (0, 1)
        for layer, (inputs, outputs) in shapes.items()
        for name, shape in (("first", (2, 4, inputs)), ("second", (2, 4, outputs)), ("ranks", (2,)))
    }
    assert not [name for name, _ in source.load().named_buffers() if "lora" in name]


def test_a_program_without_places(qwen, tmp_path, monkeypatch):
    _, model = qwen
    monkeypatch.setattr(model, "about", {**model.about, "lora_rank": 0})
    with pytest.raises(InputError, match=r"no places for adapters.*--lora-rank"):
        model.load_adapter(tmp_path)


# -- the command line --------------------------------------------------------------------------------------------------


def test_from_a_folder_to_answers_without_torch(tmp_path, monkeypatch):
    folder = tmp_path / "Base"
    folder.mkdir()
    with libraries():
        read(configuration(folder, "llama", num_hidden_layers=1)).load().save_pretrained(folder)
        source = read(folder, without_tokenizer=True)
        options = Options(context=64, chunk=8, weights="float32", conversations=2, lora_rank=4)
        export(source, tmp_path / "model.dlg", options)
    model = Model(tmp_path / "model.dlg")
    assert model.about["base"] == "Base"
    for seed, name in enumerate(("polite", "rude")):
        add_adapter(source, tmp_path / name, seed)
    with_config(base_model_name_or_path="somebody/base")(tmp_path / "polite")
    loaded = {name: model.load_adapter(tmp_path / name) for name in ("polite", "rude")}
    main = "from delegate.cli.main import main; main()"
    absent = {*AHEAD_OF_TIME, "transformers", "tokenizers", "torchao", "peft"}
    absent -= {"rich", "typer", "pydantic"}  # of the command line
    for names, prefix in ((["polite", "rude"], []), (["rude"], [7, 8])):
        words = ["--prompt", "5,17", "--prompt", "9", "--prefix", ",".join(map(str, prefix))]
        words += [str(word) for name in names for word in ("--adapter", tmp_path / name)]
        command = ("llm", "run", tmp_path / "model.dlg", "--numbers", "--count", "6", *words)
        done = run(main, *command, absent=absent, path=str(ROOT))
        chosen = [loaded[names[0]], loaded[names[-1]]]
        answers = [answer(model, [*prefix, *prompt], a, 6) for prompt, a in zip(([5, 17], [9]), chosen, strict=True)]
        lines = ("".join(f"{token} " for token in tokens) for tokens in answers)
        assert done.stdout == "".join(f"{line}\n" for line in lines), done.stderr
    numbers = ("llm", "run", str(tmp_path / "model.dlg"), "--numbers", "-p", "1", "-p", "2")
    two = ("--adapter", str(tmp_path / "polite"), "--adapter", str(tmp_path / "rude"))
    for words, match in (
        ((*two, "-p", "3"), "2 adapters for 3 prompts"),
        ((*two, "--prefix", "4"), "a prefix is computed with one adapter"),
        (("--adapter", str(tmp_path)), "there is no adapter_config.json"),
    ):
        done = CliRunner().invoke(app, [*numbers, *words])
        assert (done.exit_code, match in done.stderr) == (1, True), done.stderr
    monkeypatch.chdir(tmp_path)
    run_page(DOCS / "how-to" / "llm-conversations.md")
