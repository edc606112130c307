"""Tokenizers of transformers and of the trainers pass the check unchanged, and what is out of range does not."""

from __future__ import annotations

import base64
import copy
import importlib
import json
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
from delegate_llm.runtime.tokenizer import Tokenizer, _errors
from delegate_llm.runtime.tokenizer_format import _growth, check_charsmap, check_pattern, check_tokenizer

from delegate.errors import DelegateError, InputError, ProgramError
from tests.support.zoo import libraries

with libraries():
    import tokenizers
    import transformers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCABULARY = 1000
TEXTS = ["", "Hello  world, it's 12345!", "Grüße, 世界! 🙂\n\n\t x", "aaa <s>abc</s>  abc", "\uff21\uff22 ﬁ ①"]


def specification(tokenizer: tokenizers.Tokenizer) -> dict[str, Any]:
    return dict(json.loads(tokenizer.to_str()))


# -- what passes -------------------------------------------------------------------------------------------------------


def test_the_tokenizers_of_transformers() -> None:
    """Each class that needs no file passes, and the library gets all that it wrote."""
    root = Path(transformers.__file__).parent
    names = [f"transformers.{'.'.join(f.relative_to(root).with_suffix('').parts)}"
             for f in sorted(root.glob("models/*/tokenization_*.py"))]  # fmt: skip
    checked = set()
    with libraries():
        backend = importlib.import_module("transformers.tokenization_utils_tokenizers").TokenizersBackend
        for name in names:
            try:
                module = importlib.import_module(name)
            except (ImportError, NameError):  # of a package that is not installed
                continue
            for kind in vars(module).values():
                if isinstance(kind, type) and issubclass(kind, backend) and kind.__module__ == name:
                    try:
                        written = specification(kind().backend_tokenizer)
                    except (ValueError, TypeError, ImportError):  # it needs a file, arguments or a package
                        continue
                    assert json.loads(check_tokenizer(json.dumps(written).encode(), 10**6)) == without_batches(written)
                    checked.add(kind.__name__)
    assert len(checked) > 50
    assert checked >= {"LlamaTokenizer", "GemmaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer", "BertTokenizer"}


def without_batches(written: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in written.items() if name not in ("truncation", "padding")}


REGEX = tokenizers.Regex(r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+")
SPLIT = pre_tokenizers.Sequence([pre_tokenizers.Split(REGEX, "isolated"), pre_tokenizers.ByteLevel(False, False)])
TRAINED = {  # name -> model, trainer, and the parts of the pipeline
    "byte-level BPE": (
        models.BPE(), trainers.BpeTrainer, {}, normalizers.NFC(), SPLIT, processors.ByteLevel(), decoders.ByteLevel(),
    ),
    "BPE of words": (
        models.BPE(unk_token="<unk>"), trainers.BpeTrainer, {"end_of_word_suffix": "</w>"},
        normalizers.BertNormalizer(),
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.WhitespaceSplit()]),
        processors.RobertaProcessing(("</s>", 2), ("<s>", 1)), decoders.BPEDecoder(),
    ),
    "BPE with bytes": (
        models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"), trainers.BpeTrainer, {},
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None,
        processors.TemplateProcessing("<s> $A", "<s> $A $B:1", [("<s>", 1)]),
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1)]
        ),
    ),
    "BPE of continued words": (
        models.BPE(continuing_subword_prefix="##"), trainers.BpeTrainer, {"continuing_subword_prefix": "##"},
        normalizers.Strip(), pre_tokenizers.Whitespace(), None, decoders.WordPiece(),
    ),
    "Unigram": (
        models.Unigram(), trainers.UnigramTrainer, {"unk_token": "<unk>"},
        normalizers.Sequence(
            [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        ),
        pre_tokenizers.Metaspace(prepend_scheme="first"), None, decoders.Metaspace(),
    ),
    "WordPiece": (
        models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer, {},
        normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
        pre_tokenizers.BertPreTokenizer(), processors.BertProcessing(("</s>", 2), ("<s>", 1)), decoders.WordPiece(),
    ),
    "WordLevel": (
        models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer, {}, normalizers.NFKD(),
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.CharDelimiterSplit(" ")]), None,
        decoders.CTC(),
    ),
    "letters": (
        models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer, {}, normalizers.ByteLevel(),
        pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.Split("", "isolated")]), None,
        decoders.Fuse(),
    ),
}  # fmt: skip


def train(name: str) -> tokenizers.Tokenizer:
    model, trainer, options, normalizer, pre_tokenizer, processor, decoder = TRAINED[name]
    tokenizer = tokenizers.Tokenizer(copy.copy(model))
    tokenizer.normalizer, tokenizer.decoder = normalizer, decoder
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    special = ["<unk>", "<s>", "</s>"]
    training = trainer(vocab_size=80, special_tokens=special, show_progress=False, **options)
    tokenizer.train_from_iterator(TEXTS * 5, training)
    if processor is not None:
        tokenizer.post_processor = processor
    tokenizer.add_tokens([tokenizers.AddedToken("abc", single_word=True), tokenizers.AddedToken("!", lstrip=True)])
    return tokenizer


@pytest.mark.parametrize("name", TRAINED)
def test_trained_tokenizers(name: str) -> None:
    expected = train(name)
    written = specification(expected)
    assert json.loads(check_tokenizer(json.dumps(written).encode(), VOCABULARY)) == without_batches(written)
    tokenizer = Tokenizer(expected.to_str(pretty=True).encode(), VOCABULARY)
    for text in TEXTS:
        tokens = expected.encode(text).ids
        assert tokenizer.encode(text) == tokens
        assert tokenizer.encode(text, add_special_tokens=False) == expected.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokens) == expected.decode(tokens)


def test_early_versions_of_the_format() -> None:
    """Merges were texts, models had no type, ByteLevel had no use_regex and Metaspace had add_prefix_space."""
    for name in ("byte-level BPE", "Unigram", "WordPiece", "WordLevel"):
        expected = train(name)
        early = specification(expected)
        del early["model"]["type"]
        if name == "byte-level BPE":
            early["model"]["merges"] = ["#version: 0.2", *map(" ".join, early["model"]["merges"])]
            early["post_processor"].pop("use_regex")
        if name == "Unigram":
            early["decoder"] = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "str_rep": "▁"}
        tokenizer = Tokenizer(json.dumps(early).encode(), VOCABULARY)
        assert [tokenizer.encode(text) for text in TEXTS] == [expected.encode(text).ids for text in TEXTS]
        assert tokenizer.decode(tokenizer.encode(TEXTS[1])) == expected.decode(expected.encode(TEXTS[1]).ids)


def test_a_prompt_is_neither_cut_nor_padded() -> None:
    """As in transformers, which sets both for each batch."""
    limited = train("WordPiece")
    expected = limited.encode(TEXTS[1]).ids
    limited.enable_truncation(4)
    limited.enable_padding(length=64)
    assert len(limited.encode(TEXTS[1]).ids) == 64
    assert Tokenizer(limited.to_str().encode(), VOCABULARY).encode(TEXTS[1]) == expected


# -- what does not -----------------------------------------------------------------------------------------------------


def replace_all(count: int, pattern: str = "a", content: str = "b") -> dict[str, Any]:
    step = {"type": "Replace", "pattern": {"String": pattern}, "content": content}
    return {"type": "Sequence", "normalizers": [step] * count}


PIECES = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
TEMPLATE = {
    "type": "TemplateProcessing", "single": PIECES[:1], "pair": PIECES,
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}  # fmt: skip
NEVER_USED = {"SpecialToken": {"id": "<never>", "type_id": 0}}  # of a template for pairs of texts
ADDED = {"id": 0, "content": "<x>", **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), True)}
WRONG = [  # place in the specification, value, and words of the error; the library reads all of them or rejects them
    ("version", "2.0", "version should be one of 1.0"),
    ("model.type", "Bpe", "model.type should be one of BPE, Unigram"),
    ("model.unk_token", 1, "model.unk_token should be a text"),
    ("model.unk_token", "x" * 1025, "model.unk_token should be a text of 0 to 1,024 characters"),
    ("model.dropout", 2, "model.dropout should be a finite number from 0 to 1"),
    ("model.dropout", True, "model.dropout should be a finite number from 0 to 1"),
    ("model.fuse_unk", 1, "model.fuse_unk should be true or false"),
    ("model.end_of_word_suffix", "x" * 257, "model.end_of_word_suffix should be a text"),
    ("model.vocab", [], "model.vocab should be an object"),
    ("model.vocab.a", -1, "model.vocab.a should be a whole number"),
    ("model.vocab.a", 2**32, "model.vocab.a should be a whole number"),
    ("model.vocab.a", 1.0, "model.vocab.a should be a whole number"),
    ("model.vocab.a", VOCABULARY, "it has tokens up to 1000, but the model has 1000 tokens"),
    ("model.vocab." + "x" * 1025, 1, "a token of model.vocab should be a text"),
    ("model.merges", {}, "model.merges should be a list"),
    ("model.merges", [["a", "<none>"]], r"model.merges\[0\] should be two tokens of the vocabulary"),
    ("model.merges", [["a", "a", "a"]], r"model.merges\[0\] should be two tokens"),
    ("model.merges", ["a"], r"model.merges\[0\] should be two tokens"),
    ("model.merges", [["!", "!"]], r"model.merges\[0\] should be two tokens of the vocabulary, which give"),
    ("model", {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 1}, "unk_id should be a whole number less than 1"),
    ("model", {"type": "Unigram", "vocab": [["a"]], "unk_id": 0}, r"model.vocab\[0\] should be a list of 2 items"),
    ("model", {"type": "Unigram", "vocab": [["a", "0"]]}, r"model.vocab\[0\]\[1\] should be a finite number"),
    ("model", {"type": "WordLevel", "vocab": {}}, "model lacks unk_token"),
    ("model", {"type": "WordPiece", "vocab": {}, "unk_token": "", "continuing_subword_prefix": "",
               "max_input_chars_per_word": 1001}, "max_input_chars_per_word should be a whole number from 0 to 1,000"),
    ("model", None, "model should be an object"),
    ("added_tokens", [ADDED | {"content": "x" * 1025}], r"added_tokens\[0\].content should be a text"),
    ("added_tokens", [ADDED | {"id": -1}], r"added_tokens\[0\].id should be a whole number"),
    ("added_tokens", [ADDED | {"lstrip": None}], r"added_tokens\[0\].lstrip should be true or false"),
    ("added_tokens", [{"id": 1}], r"added_tokens\[0\] lacks content, lstrip"),
    ("normalizer", {"type": "Upper"}, "normalizer.type should be one of StripAccents"),
    ("normalizer", {"type": "Strip", "strip_left": 1, "strip_right": True}, "normalizer.strip_left should be true"),
    ("normalizer", {"type": "Prepend", "prepend": "x" * 257}, "normalizer.prepend should be a text"),
    ("normalizer", {"type": "Prepend", "prepend": "x" * 65}, "normalizer can make a text more than 64 times longer"),
    ("normalizer", replace_all(65), r"normalizer.normalizers should be a list of 0 to 64 items"),
    ("normalizer", {"type": "Sequence", "normalizers": [replace_all(33)] * 2}, "normalizer has more than 64 steps"),
    ("normalizer", replace_all(1, content="x" * 65), "normalizer can make a text more than 64 times longer"),
    ("normalizer", replace_all(7, "a", "ab"), "normalizer can make a text more than 64 times longer"),
    ("normalizer", {"type": "Replace", "pattern": {"Regex": "a", "String": "a"}, "content": ""}, "object with one of"),
    ("normalizer", {"type": "Replace", "pattern": {"Regex": "a{1001}"}, "content": ""}, "a part more than 1,000"),
    ("pre_tokenizer", {"type": "FixedLength", "length": 2**20 + 1}, "pre_tokenizer.length should be a whole number"),
    ("pre_tokenizer", {"type": "CharDelimiterSplit", "delimiter": "ab"}, "delimiter should be a text of 1 to 1"),
    ("pre_tokenizer", {"type": "Punctuation", "behavior": "Odd"}, "behavior should be one of Removed"),
    ("pre_tokenizer", {"type": "Metaspace", "replacement": "_", "prepend_scheme": "odd"}, "should be one of first"),
    ("pre_tokenizer", {"type": "Sequence"}, "pre_tokenizer.pretokenizers should be a list"),
    ("post_processor", {"type": "BertProcessing", "sep": ["a", -1], "cls": ["a", 1]}, r"sep\[1\] should be a whole"),
    ("post_processor", TEMPLATE | {"pair": [NEVER_USED]}, "post_processor.pair has '<never>', which is not one of its"),
    ("post_processor", TEMPLATE | {"pair": PIECES * 2}, "post_processor.pair should have each of A and B at most once"),
    ("post_processor", TEMPLATE | {"special_tokens": {"<s>": {"id": "<s>", "ids": [1, 2], "tokens": ["<s>"]}}},
     "special_tokens.<s> has more ids than tokens"),
    ("post_processor", {"type": "Sequence", "processors": [TEMPLATE, TEMPLATE]}, "has more than one template"),
    ("decoder", {"type": "Strip", "content": " ", "start": 1025, "stop": 0}, "decoder.start should be a whole number"),
    ("decoder", {"type": "Replace", "pattern": "a", "content": "b"}, "decoder.pattern should be an object with one of"),
    ("decoder", {"type": "BPEDecoder"}, "decoder lacks suffix"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "value", "match"), WRONG)
def test_values_out_of_range(place: str, value: Any, match: str) -> None:
    data = specification(train("byte-level BPE"))
    *parents, name = place.split(".")
    part = data
    for parent in parents:
        part = part[parent]
    part[name] = value
    with pytest.raises(ProgramError, match=f"its tokenizer cannot be used, .*{match}"):
        Tokenizer(json.dumps(data).encode(), VOCABULARY)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "not valid JSON"),
        (b"[]", "it should be an object"),
        (b"{}", "it lacks model"),
        (b"\xff", "not valid UTF-8"),
        (b'{"model": {"type": "WordLevel", "vocab": {"\\ud800": 1}, "unk_token": ""}}', "not valid UTF-8"),
        (b'{"model":' * 100_000, "too deeply nested"),
        (b'{"model": {"type": "Unigram", "vocab": [["a", NaN]]}}', "should be a finite number"),
        (b'{"model": {"type": "Unigram", "vocab": [["a", 1' + b"0" * 400 + b"]]}}", "should be a finite number"),
        (b'{"model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 1' + b"0" * 5000 + b"}}", "digits"),
    ],
)
def test_texts_that_are_none(data: bytes, match: str) -> None:
    with pytest.raises(ProgramError, match=match):
        Tokenizer(data, VOCABULARY)


def test_an_empty_pattern_is_replaced_between_all_characters() -> None:
    """The library panics on texts that such a step makes longer, so this is the bound alone."""
    step = {"type": "Replace", "pattern": {"String": ""}, "content": "xy"}
    assert _growth([step]) == 3
    assert _growth([step, step]) == 9


def test_transliterations_are_many_short_replacements() -> None:
    """Replacements of other characters do not multiply, so there may be as many as steps."""
    data = specification(train("WordLevel"))
    steps = [replace_all(1, chr(0x430 + i), "zh"[: i % 2 + 1])["normalizers"][0] for i in range(64)]
    data["normalizer"] = {"type": "Sequence", "normalizers": steps}
    Tokenizer(json.dumps(data).encode(), VOCABULARY)


PATTERNS = [
    "", "a", r"\s+", " {2,}", r"\s{2,}|[\n\r\t]", r"^▁+$", r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}]+(?i:'s|'t)?|[\p{Han}]+",
    " ?[^(\\s|[.,!?…。\uff0c、।\u06d4،])]+", "[一-龥\u0800-一가-퟿]+", r"([!\"#\$%\\\]^_`{|}~])\1*",
    r"(?=(\d{3})+(?!\d))",
    r"[[:alpha:]]+[^[:space:]]", r"(?<=\S)\s(?<!a)", "(?:a|b){2,1000}", r"(?<word>\w+)", "(?i)abc", r"\x{1F600}\x41",
]  # fmt: skip
UNSUPPORTED = [
    ("x" * 4097, "more than 4,096 characters"), ("(?:a+b)+", "repeats a repetition"), ("(?:a{2,}b)*", "repeats a rep"),
    ("(a*b){1,9}", "repeats a repetition"), ("a{1001}", "more than 1,000 times"), ("a{,1001}", "more than 1,000"),
    ("(?:a{100}b){101}", "more than 1,000 times"), ("(" * 40 + ")" * 40, "more than 32 nested groups"),
    (r"(?<n>a|b\g<n>c)", "unsupported escape"), (r"(?<n>a)\k<n>", "unsupported escape"), ("(?~a)", "unsupported group"),
    ("(a)?(?(1)b|c)", "unsupported group"), ("(?#a)b", "unsupported group"), ("(?x) a", "unsupported group"),
    ("(*FAIL)", "unsupported group"), ("a)", "unopened group"), ("[]a]", "unsupported set"), ("[^]a]", "unsupported s"),
    ("[a", "unclosed set"), ("\\", "unsupported escape"), ("[\\", "unsupported escape"), ("[" * 40, "unsupported set"),
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_of_real_tokenizers(pattern: str) -> None:
    check_pattern(pattern, "x")
    tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")


@pytest.mark.parametrize(("pattern", "match"), UNSUPPORTED)
def test_patterns_without_limits(pattern: str, match: str) -> None:
    with pytest.raises(ValueError, match=f"x has a pattern .*{match}"):
        check_pattern(pattern, "x")


def charsmap(texts: bytes = b"ab\0\xc3\xa9\0", leaf: int = 3, units: int = 512) -> str:
    """A tree of one letter, 0xFF, which no UTF-8 has, with the text at `leaf`."""
    tree = np.zeros(units, np.uint32)
    tree[0xFF] = 0xFF | 1 << 8 | 256 << 10  # its leaf is at 0xFF ^ 256
    tree[0xFF ^ 256] = 1 << 31 | leaf
    data = tree.astype("<u4").tobytes()
    return base64.b64encode(len(data).to_bytes(4, "little") + data + texts).decode()


def test_charsmaps() -> None:
    assert check_charsmap(charsmap(), "x") == charsmap()
    data = specification(train("WordLevel"))
    data["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap()}
    tokenizer = Tokenizer(json.dumps(data).encode(), VOCABULARY)
    assert tokenizer.encode("abc") == train("WordLevel").encode("abc").ids
    for damaged in (charsmap(leaf=4), charsmap(leaf=7), charsmap(units=768 - 4)):
        with pytest.raises(ValueError, match="x is damaged"):
            check_charsmap(damaged, "x")


@pytest.mark.parametrize("name", TRAINED)
def test_long_texts_let_other_threads_run(name: str) -> None:
    """The library holds the interpreter's lock for a whole text, but not for a batch; the tokens are the same."""
    library = train(name)
    tokenizer = Tokenizer(json.dumps(specification(library)).encode(), VOCABULARY)
    text = "Hello  world, it's 12345! abc <s> " * 6000
    for size in (4095, 4096, 4097):
        for special in (True, False):
            assert tokenizer.encode(text[:size], special) == library.encode(text[:size], add_special_tokens=special).ids
    seen, is_done = 0, Event()

    def count() -> None:
        nonlocal seen
        while not is_done.is_set():
            seen += 1
            sleep(0.0001)

    thread = Thread(target=count)
    thread.start()
    before = seen
    tokenizer.encode(text)
    after = seen
    is_done.set()
    thread.join()
    assert after > before + 10


def test_panics_become_errors() -> None:
    """Rust's panics have a class of this name, and are not `Exception`s; others that are none pass."""
    panic = type("PanicException", (BaseException,), {})
    for kind, expected in ((panic, InputError), (ValueError, InputError), (KeyboardInterrupt, KeyboardInterrupt)):
        with pytest.raises(expected), _errors(InputError, "it fails", ""):
            raise kind("index out of range")


def test_errors_of_the_library() -> None:
    data = specification(train("WordLevel"))
    data["model"]["unk_token"] = "<none>"
    tokenizer = Tokenizer(json.dumps(data).encode(), VOCABULARY)
    with pytest.raises(DelegateError, match=r"the tokenizer fails on this text: .*UNK"):
        tokenizer.encode("unknown")
