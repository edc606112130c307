"""Language models of transformers, exported by `delegate llm`: the tokens of eager, without torch; and bad input."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from delegate_llm.runtime.batch import Batch
from delegate_llm.runtime.model import Model
from delegate_llm.runtime.sampling import Sampler
from delegate_llm.runtime.speculative import Speculation
from delegate_llm.runtime.tokenizer import Text
from typer.testing import CliRunner

import delegate
from delegate.cli.app import app
from delegate.errors import ConfigError, ExecutionError, ExportError, InputError, ProgramError
from delegate.program.instructions import refs
from delegate.program.model import KernelCall, StorageKind
from delegate.testing import assert_same
from tests.support.availability import require
from tests.support.language_models import (
    FAMILIES,
    PROMPT,
    SHAPE,
    TOKENS,
    configuration,
    eager,
    made,
    reference,
    save_model,
    tokenizer,
)
from tests.support.processes import AHEAD_OF_TIME, run
from tests.support.sampling import every
from tests.support.silence import silence  # noqa: F401 - for every test here
from tests.support.zoo import libraries

with libraries():
    import tokenizers
    from delegate_llm import Options, export
    from delegate_llm.aot.export import Data
    from delegate_llm.aot.source import Source, read

ROOT = Path(__file__).parents[2]
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


def answer(model: Model, prompt: list[int] = PROMPT, count: int = TOKENS, **options: object) -> list[int]:
    return list(model.conversation().generate(prompt, count, Sampler(), **options))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory) -> tuple[Source, Model]:
    return made(tmp_path_factory.mktemp("qwen"), "qwen3", conversations=3)


QUICK = ("qwen3",)


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        *(pytest.param(f, ["xnnpack"], marks=[] if f in QUICK else pytest.mark.slow) for f in FAMILIES),
        ("qwen3", []),
        ("llama with parts of heads", []),
        pytest.param("gemma3_text", [], marks=pytest.mark.slow),
    ],
)
def test_the_tokens_of_eager(family, backend, tmp_path):
    source, model = made(tmp_path, family, backends=backend)
    with torch.no_grad():
        logits = reference(source)(torch.tensor([PROMPT]), use_cache=False).logits[0, -1]
    assert_same(model.conversation().feed(PROMPT), logits.numpy(), 2e-5, at_least=1.0)
    expected = eager(source, PROMPT)
    assert len(set(expected)) > 5  # it does not only repeat itself
    assert answer(model) == expected
    model.program.close()


@pytest.mark.parametrize("backends", every(2, [["dsp", "xnnpack"], ["webgpu"]]), ids=",".join)
def test_on_a_dsp_and_a_gpu(backends, tmp_path):
    require(backends[0])
    source, model = made(tmp_path, "qwen3", backends=backends)
    assert {d.backend for d in model.program.program.delegates} == {*backends}
    assert answer(model, count=6) == eager(source, PROMPT, 6)
    model.program.close()


def test_caches_and_attention_are_where_they_lie(qwen):
    """Each cache is written once, in place, and the one kernel that reads it is given the state itself."""
    program = qwen[1].program.program
    methods = {m.name: m for m in program.methods}
    for method in (methods["prefill"], methods["decode"]):
        calls = [c for c in method.instructions if isinstance(c, KernelCall)]
        states = {i for i, v in enumerate(method.values) if v.storage.kind is StorageKind.STATE}
        readers = [program.operators[c.operator] for c in calls if states & set(refs(c.args))]
        assert sorted(set(readers)) == ["delegate.cached_attention.default", "delegate.update_cache.default"]
        assert readers.count("delegate.cached_attention.default") == SHAPE["num_hidden_layers"]
        assert sum(o in states for c in method.instructions for o in c.outputs) == 2 * SHAPE["num_hidden_layers"]


def sqnr(expected: np.ndarray, got: np.ndarray) -> float:
    return float(10 * np.log10((expected**2).mean() / ((expected - got) ** 2).mean()))


@pytest.mark.parametrize(
    ("family", "options", "least"),
    [
        pytest.param("qwen3", {"cache": "float16"}, 50, marks=pytest.mark.slow),
        pytest.param("gemma3_text", {"cache": "int8"}, 30, marks=pytest.mark.slow),
        pytest.param("gemma", {"weights": "int8"}, 20, marks=pytest.mark.slow),
        pytest.param("qwen3", {"weights": "int4"}, 8, marks=pytest.mark.slow),
        ("qwen3", {"weights": "int8", "head_weights": "int4", "block": 64, "rounding": "hqq"}, 12),
        ("llama", {"weights": "int4", "prefill_weights": "int8", "cache": "int8"}, 8),
        pytest.param("llama", {"cache": "bfloat16"}, 30, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_logits_in_few_bits(family, options, least, tmp_path):
    source, model = made(tmp_path, family, **options)
    with torch.no_grad():
        expected = reference(source)(torch.tensor([[*PROMPT, 7]]), use_cache=False).logits[0, -2:].numpy()
    conversation = model.conversation()
    got = np.stack([conversation.feed(PROMPT), conversation.feed([7])])
    assert sqnr(expected, got) > least


def test_several_conversations(qwen):
    source, model = qwen
    prompts = [PROMPT, PROMPT[::-1], [9]]
    expected = [eager(source, prompt) for prompt in prompts]
    talks = [model.conversation().generate(p, TOKENS, Sampler()) for p in prompts]
    found = list(zip(*talks, strict=True))  # one token of each in turn
    assert [list(line) for line in zip(*found, strict=True)] == expected


def answer_in_batch(model: Model, prompts: list[list[int]], count: int) -> list[list[int]]:
    """The answers of a batch."""
    found = {i: [] for i in range(len(prompts))}
    for i, token in Batch(model).generate(prompts, count, [Sampler() for _ in prompts]):
        found[i].append(token)
    return [*found.values()]


def test_several_conversations_in_one_call(qwen):
    source, model = qwen
    prompts = [PROMPT, PROMPT[::-1], [9]]
    assert answer_in_batch(model, prompts, TOKENS) == [eager(source, prompt) for prompt in prompts]


@pytest.mark.parametrize(
    ("family", "cache"), [("gemma2", "float32"), pytest.param("mistral", "int8", marks=pytest.mark.slow)]
)
def test_a_batch_with_sliding_windows(family, cache, tmp_path):
    """Four prompts of different lengths, of which two are longer than a call and all but one longer than the window."""
    source, model = made(tmp_path, family, conversations=4, cache=cache)
    prompts = [PROMPT, [9], PROMPT[::-1] * 2, PROMPT[:7]]
    expected = [answer(model, prompt, 12) for prompt in prompts]
    assert answer_in_batch(model, prompts, 12) == expected
    if cache == "float32":
        assert expected[2] == eager(source, prompts[2], 12)


def test_a_conversation_that_ends_leaves_its_row_to_a_waiting_prompt(qwen):
    _, model = qwen
    prompts = [[*range(i + 1, 4 * i + 3)] for i in range(8)]
    assert answer_in_batch(model, prompts, 5) == [answer(model, prompt, 5) for prompt in prompts]
    assert answer_in_batch(model, prompts, 0) == [[]] * 8


def test_parts_of_several_conversations_in_one_call(qwen):
    """Answers go on while a longer prompt is computed in parts: the short ones are complete after the first call."""
    _, model = qwen
    batch = Batch(model)
    parts = {0: PROMPT, 2: [9], 1: PROMPT[:3]}
    logits = batch.feed(parts)
    assert [*batch.feed({2: [5], 0: [7]})] == [2, 0]
    for row, part in parts.items():
        assert_same(logits[row], model.conversation().feed(part), 1e-5, at_least=1.0)
    with pytest.raises(InputError, match="300 is not a token"):
        batch.feed({0: [1], 1: [300]})
    assert [len(c.tokens) for c in batch.conversations] == [len(PROMPT) + 1, 3, 2]


def test_a_batch_goes_on_where_some_have_ended(qwen):
    """One conversation's context is full before the others'."""
    source, model = qwen
    prompts = [[*range(1, 61)], PROMPT, [9]]
    found = answer_in_batch(model, prompts, 12)
    assert found[0] == eager(source, prompts[0], 5)
    assert found[1:] == [eager(source, p, 12) for p in prompts[1:]]


def test_a_prefix_is_taken_in_once(qwen):
    source, model = qwen
    first = model.conversation()
    first.feed(PROMPT)
    kept = first.snapshot()
    assert {state.shape[:3] for state in kept.states.values()} == {(1, SHAPE["num_key_value_heads"], len(PROMPT))}
    for rest in ([1, 2, 3], [50], PROMPT):
        found = list(model.conversation(kept).generate(rest, TOKENS, Sampler()))
        assert found == eager(source, [*PROMPT, *rest])


def test_a_context_that_is_full(qwen):
    source, model = qwen
    prompt = list(range(1, 61))
    assert answer(model, prompt) == eager(source, prompt, 5)  # 4 fit, and one more follows the last
    slid = answer(model, prompt, when_full="slide")
    assert len(slid) == TOKENS
    assert slid[:5] == eager(source, prompt, 5)
    held = [*prompt, *slid][:64]
    assert slid[5:10] == eager(source, [*held[32:], slid[4]], 5)


@pytest.fixture(scope="module")
def guessing(tmp_path_factory) -> tuple[Source, Model]:
    return made(tmp_path_factory.mktemp("guessing"), "qwen3", guesses=3)


def test_guesses_of_the_same_model_are_right(guessing):
    source, large = guessing
    both = Speculation(large, large)
    assert list(both.generate(PROMPT, TOKENS)) == eager(source, PROMPT)
    assert both.calls == -(-(TOKENS - 1) // 4)  # 4 tokens a call


@pytest.mark.parametrize("weights", every(2, ["int8", "int4"]))
def test_a_batch_and_guesses_have_the_tokens_of_a_conversation(weights, tmp_path):
    _, model = made(tmp_path, "qwen3", weights=weights, conversations=2, guesses=3)
    prompts = [PROMPT, PROMPT[::-1]]
    expected = [answer(model, prompt) for prompt in prompts]
    assert answer_in_batch(model, prompts, TOKENS) == expected
    assert [list(Speculation(model, model).generate(prompt, TOKENS)) for prompt in prompts] == expected


@pytest.mark.slow
def test_guesses_of_another_model(guessing, tmp_path):
    """Most are wrong: the tokens equal the large one's all the same."""
    source, large = guessing
    small = made(tmp_path, "llama")[1]
    both = Speculation(large, small)
    assert list(both.generate(PROMPT, TOKENS)) == eager(source, PROMPT)
    assert both.calls > TOKENS / 2


@pytest.mark.slow
def test_guesses_up_to_a_full_context(guessing, tmp_path):
    """Guesses at some tokens are right, at others wrong: the head of the small model is changed a little."""
    source, large = guessing
    prompt = list(range(1, 50))
    with libraries(), torch.no_grad():
        other = read(configuration(tmp_path, "qwen3"))
        weight = other.load().get_input_embeddings().weight
        weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        export(other, tmp_path / "small.dlg", Options(context=64, chunk=8, weights="float32"))
    both = Speculation(large, Model(tmp_path / "small.dlg"))
    assert list(both.generate(prompt, 100)) == eager(source, prompt, 16)
    assert 4 < both.calls < 15


def test_models_that_do_not_go_together(guessing, qwen, tmp_path):
    with pytest.raises(InputError, match=r"one token at a time.*--guesses"):
        Speculation(qwen[1], guessing[1])
    with libraries():
        export(read(configuration(tmp_path, "qwen3", vocab_size=301)), tmp_path / "m.dlg", Options(64, 8, 1, "float32"))
    with pytest.raises(InputError, match=r"different vocabularies.*300 and 301"):
        Speculation(guessing[1], Model(tmp_path / "m.dlg"))


def test_an_end_token_ends(qwen):
    source, model = qwen
    expected = eager(source, PROMPT)
    model.about = {**model.about, "ends": [expected[4]]}
    try:
        assert answer(model) == expected[: expected.index(expected[4])]
    finally:
        model.about = {**model.about, "ends": source.ends}


# -- sampling and text -------------------------------------------------------------------------------------------------


LOGITS = np.array([0.0, 3.0, 1.0, 2.9, -5.0], np.float32)


@pytest.mark.parametrize(
    ("options", "possible"),
    [
        ({}, {1}),
        ({"temperature": 1.0, "top_k": 1}, {1}),
        ({"temperature": 1.0, "top_k": 2}, {1, 3}),
        ({"temperature": 1.0, "top_p": 0.3}, {1}),
        ({"temperature": 1.0, "top_p": 0.8}, {1, 3}),
        ({"temperature": 1e-3}, {1}),
        ({"temperature": 1e-320}, {1}),
        ({"temperature": 50.0}, {0, 1, 2, 3, 4}),
    ],
    ids=str,
)
def test_sampling(options, possible):
    sampler = Sampler(**options, seed=0)
    assert {sampler.pick(LOGITS) for _ in range(300)} == possible


def test_sampling_follows_the_probabilities():
    sampler = Sampler(temperature=2.0, seed=1)
    counts = np.bincount([sampler.pick(LOGITS) for _ in range(4000)], minlength=5) / 4000
    chances = np.exp(LOGITS / 2) / np.exp(LOGITS / 2).sum()
    assert_same(counts, chances.astype(np.float64), 0.02, at_least=1.0)  # 4000 draws: a deviation of 0.008


def test_a_seed_draws_the_same_tokens(qwen):
    _, model = qwen
    drawn = [
        list(model.conversation().generate(PROMPT, TOKENS, Sampler(1.5, top_k=50, seed=seed))) for seed in (3, 3, 4)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}, {"top_p": 0.5}], ids=str
)
@pytest.mark.parametrize(
    ("logits", "words"),
    [
        ([1.0, NAN, 3.0], "no token can be chosen by the logits of the model: 1 NaN of 3"),
        ([NAN, NAN], "2 NaN of 2"),
        ([1.0, INF, NAN, -INF], "1 NaN and 1 infinite of 4"),
        ([INF, 1.0], "1 infinite of 2"),
        ([-INF, -INF], "none finite of 2"),
    ],
)
def test_logits_that_are_not_finite_choose_no_token(logits, words, options):
    for dtype in (np.float32, np.float16, np.float64):
        with pytest.raises(ExecutionError, match=words):
            Sampler(**options, seed=0).pick(np.array(logits, dtype))


def test_tokens_that_cannot_follow_are_not_chosen():
    for options in ({}, {"temperature": 9.0}, {"temperature": 9.0, "top_k": 2}):
        assert {Sampler(**options, seed=0).pick(np.array([-INF, 1.0, -INF], np.float32)) for _ in range(9)} == {1}


def test_a_model_with_a_broken_token(tmp_path):
    """Its weights are NaN, so each answer to a prompt with it is an error, and the others are right."""
    folder = save_model(tmp_path)
    weights = safetensors.numpy.load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][PROMPT[2]] = NAN
    safetensors.numpy.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    source = read(folder)
    export(source, tmp_path / "m.dlg", Options(64, 8, 2, "float32", guesses=2), [])
    model = Model(tmp_path / "m.dlg")
    good, bad = [t for t in PROMPT if t != PROMPT[2]], PROMPT
    expected = answer(model, good, 6)
    assert expected == eager(source, good, 6)
    with pytest.raises(ExecutionError, match="logits of the model: 300 NaN of 300"):
        answer(model, bad)
    batch = Batch(model).generate([good, bad], 6, [Sampler(), Sampler()])
    with pytest.raises(ExecutionError, match=r"300 NaN of 300 \(prompt 1\)"):
        list(batch)
    assert list(Speculation(model, model).generate(good, 6)) == expected
    with pytest.raises(ExecutionError, match="300 NaN of 300"):
        list(Speculation(model, model).generate(bad, 6))
    done = CliRunner().invoke(app, ["llm", "run", str(tmp_path / "m.dlg"), "--numbers", "-p", ",".join(map(str, bad))])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no token can be chosen by the logits of the model: 300 NaN of 300: export")


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0}, {"seed": -1}]
)
def test_sampling_out_of_range(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Sampler(**options)


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("Grüße, 世界! 🙂", (), "Grüße, 世界! 🙂"),
        ("one two three", ("two",), "one "),
        ("one two three", ("two th", "three"), "one "),
        ("one two", ("twofold",), "one two"),  # what was held back is given in the end
        ("aab", ("ab",), "a"),
        ("für", ("ü",), "f"),
    ],
)
def test_text_and_stop_words(text, stops, expected):
    coder = tokenizer()
    written = Text(coder, stops)
    pieces = [written.add(token) for token in coder.encode(text).ids]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert "".join(pieces) + written.finish() == expected
    assert written.stopped == (expected != text)


# -- the command line --------------------------------------------------------------------------------------------------


def command(*args: str | Path) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, "-m", "delegate", "llm", *map(str, args)]
    return subprocess.run(given, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("saved"))


def test_from_a_folder_to_text_without_torch(folder, tmp_path):
    with libraries():
        source = read(folder)
        export(source, tmp_path / "model.dlg", Options(context=64, chunk=8, weights="float32", conversations=2))
    coder = tokenizer()
    expected = [coder.decode(eager(source, coder.encode(prompt).ids, 12)) for prompt in ("Hello", "you")]
    main = "from delegate.cli.main import main; main()"
    absent = {*AHEAD_OF_TIME, "transformers", "safetensors", "torchao"} - {"rich", "typer", "pydantic"}  # of typer
    for prompts, given in ((["Hello"], []), (["Hello", "you"], []), (["lo"], ["--prefix", "Hel"])):
        asked = [word for prompt in prompts for word in ("--prompt", prompt)]
        command = ("llm", "run", tmp_path / "model.dlg", *asked, "--count", "12", *given)
        done = run(main, *command, absent=absent, path=str(ROOT))
        assert done.stdout == "".join(f"{text}\n" for text in expected[: len(prompts)]), done.stderr


def test_the_command_exports(folder, tmp_path):
    done = command(
        "export", folder, "-o", tmp_path / "model.dlg", "--context", "32", "--chunk", "8", "--weights", "int8"
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert re.search(r"decode: \d+ partitions? on ", done.stdout), done.stdout
    assert f"saved {tmp_path / 'model.dlg'}, {(tmp_path / 'model.dlg').stat().st_size:,} bytes" in done.stdout
    said = command("run", tmp_path / "model.dlg", "--prompt", "Hi", "--count", "3", "--seed", "0", "--temperature", "1")
    assert said.returncode == 0, said.stderr
    both = ("--draft", tmp_path / "model.dlg", "--when-full", "slide")
    refused = command("run", tmp_path / "model.dlg", "--prompt", "Hi", *both)
    assert refused.returncode == 1
    assert "remove --when-full or --draft" in refused.stderr


# -- bad input ---------------------------------------------------------------------------------------------------------


def words(count: int) -> str:
    """A tokenizer of so many words."""
    return str(tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(count)}, "w0")).to_str())


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda f: (f / "tokenizer.json").unlink(), ExportError, r"no tokenizer\.json .*--no-tokenizer"),
        (lambda f: (f / "config.json").unlink(), ExportError, r"no config\.json"),
        (lambda f: (f / "model.safetensors").unlink(), ExportError, r"no \*\.safetensors"),
        (lambda f: (f / "config.json").write_text("{"), ExportError, "not a configuration"),
        (lambda f: (f / "config.json").write_text("[]"), ExportError, "not a configuration"),
        (lambda f: configuration(f, "mamba"), ExportError, "unknown family 'mamba'.*supported are llama, mistral"),
        (lambda f: configuration(f, "llama", hidden_size=128), ExportError, "weights"),
        (lambda f: configuration(f, "llama", hidden_size="x"), ExportError, "rejects the configuration .*hidden_size"),
        (lambda f: configuration(f, "llama", num_attention_heads=6), ExportError, "configuration .*not a multiple"),
        (lambda f: (f / "model.safetensors").write_bytes(b"no"), ExportError, "weights cannot be read"),
        (lambda f: (f / "tokenizer.json").write_text("no"), ExportError, "tokenizer"),
        (lambda f: configuration(f, "llama", rope_parameters=DYNAMIC), ExportError, "rope 'dynamic' depends"),
        (lambda f: configuration(f, "llama", rope_parameters={"rope_type": "x"}), ExportError, "unknown rope 'x'"),
        (lambda f: (f / "generation_config.json").write_text("{"), ExportError, "not a generation configuration"),
        (lambda f: (f / "generation_config.json").write_text('{"eos_token_id": "end"}'), ExportError, "is 'end'"),
        (lambda f: (f / "tokenizer.json").write_text(words(301)), ExportError, "up to 300, but the model has 300"),
    ],
)  # fmt: skip
def test_folders_that_are_none(change, error, match, folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    change(tmp_path)
    with pytest.raises(error, match=match), libraries():
        read(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "options", "match"),
    [
        ("llama", {"intermediate_size": 100}, {}, r"100 weights of a row are not .* blocks of 32 .*down_proj.*int8"),
        (
            "llama",
            {"num_key_value_heads": 3},
            {"weights": "float32"},
            "cannot export the model: .*4 heads .* by the 3 groups",
        ),
        ("llama", {}, {"context": 4096}, "128 positions, not 4096"),
        ("phi3", {}, {"context": 100}, "other angles for texts of more than 64 tokens.*--context 64"),
        ("llama", {}, {"chunk": 1}, "a chunk of 1"),
        ("llama", {}, {"conversations": 0}, "0 conversations"),
        ("llama", {}, {"cache": "int2"}, "unknown cache 'int2'.*float16"),
        ("llama", {}, {"weights": "int3"}, "unknown weights 'int3'"),
        ("llama", {}, {"block": 48}, "unknown block 48.*32, 64, 128, 256"),
        ("llama", {}, {"head_weights": "float32"}, "unknown head_weights 'float32'.*int8, int4"),
        ("llama", {}, {"weights": "float32", "head_weights": "int4"}, "a head in int4 for layers in float32"),
        (
            "llama",
            {"hidden_size": 56},
            {"weights": "int8", "head_weights": "int4"},
            r"56 weights of a row are not divisible into blocks of 32 .layer lm_head\): use int8 for --weights",
        ),
        ("llama", {}, {"lora_rank": -1}, "adapters of rank -1"),
        ("llama", {}, {"lora_targets": "q_proj"}, "adapters of rank 0.*--lora-rank"),
        (
            "phi3",
            {},
            {"lora_rank": 4, "lora_targets": "qkv_proj,q_proj", "weights": "int8"},
            "no linear layer 'q_proj'.*choose from down_proj, gate_up_proj, o_proj, qkv_proj",
        ),
    ],
)
def test_options_that_do_not_fit(family, changes, options, match, tmp_path):
    target = tmp_path / "model.dlg"
    target.write_bytes(b"old")
    with libraries():
        source = read(configuration(tmp_path, family, **changes))
        with pytest.raises((ConfigError, ExportError), match=match):
            export(source, target, Options(**{"context": 64, "chunk": 8, **options}))
    assert target.read_bytes() == b"old"
    assert sorted(f.name for f in tmp_path.iterdir()) == ["config.json", "model.dlg"]


@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        ([], "the prompt is empty"),
        ([300], "300 is not a token"),
        ([-1], "-1 is not a token"),
        ([1] * 65, "65 tokens after 0 earlier tokens do not fit into a context of 64"),
    ],
)
def test_prompts_that_do_not_fit(prompt, match, qwen):
    conversation = qwen[1].conversation()
    with pytest.raises(InputError, match=match):
        conversation.feed(prompt)
    assert conversation.tokens == []


def test_text_for_a_program_without_tokenizer(qwen):
    with pytest.raises(InputError, match="no tokenizer"):
        qwen[1].tokens("Hello")


def test_a_program_that_is_no_language_model(tmp_path):
    delegate.to_backend(delegate.export(torch.nn.ReLU(), (torch.ones(2),)), []).save(tmp_path / "relu.dlg")
    with pytest.raises(ProgramError, match="no method about, decode, head, prefill"):
        Model(tmp_path / "relu.dlg")


@pytest.mark.parametrize(
    ("said", "match"),
    [(b"{", "does not describe"), (b"[]", "does not describe"), (b'{"context": 4}', "lacks chunk, conversations")],
)
def test_a_program_that_says_something_else_of_itself(said, match, tmp_path):
    data = torch.export.export(Data(said), ())
    delegate.to_backend(dict.fromkeys(("prefill", "decode", "head", "about"), data), []).save(tmp_path / "m.dlg")
    with pytest.raises(ProgramError, match=match):
        Model(tmp_path / "m.dlg")


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["export", "nowhere", "-o", "x.dlg"], "nowhere"),
        (["run", "nowhere.dlg", "--prompt", "Hi"], "nowhere.dlg"),
        (["run", "nowhere.dlg", "--prompt", "Hi", "--temperature", "-1"], "temperature"),
    ],
)
def test_the_command_says_what_is_wrong(args, match):
    with libraries():
        done = CliRunner().invoke(app, ["llm", *args])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert match in done.stderr
    assert "Traceback" not in done.stderr


TORCHVISION = """
import importlib.util
from delegate_llm.aot.hugging_face import transformers
from transformers.utils.import_utils import is_torchvision_available
transformers.LlamaForCausalLM
assert not is_torchvision_available()
assert "torchvision" not in sys.modules
assert importlib.util.find_spec("torchvision").origin.startswith(sys.argv[1])
"""


def test_a_torchvision_that_does_not_load_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    done = run(f"import warnings; warnings.simplefilter('ignore')\n{TORCHVISION}", tmp_path, path=str(tmp_path))
    assert done.returncode == 0, done.stderr
