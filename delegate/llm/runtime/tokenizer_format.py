"""The format of a tokenizer, with a range for each of its numbers and texts: a table of all parts that it may have.

The file of a tokenizer is JSON, which the package tokenizers describes at
https://huggingface.co/docs/tokenizers/components. That package ends the process, or panics, if some values are out of
range. So it gets the checked values alone, as JSON that is written here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from delegate.field_checks import fault
from delegate.json_types import (
    FLAG,
    Entries,
    Fields,
    Items,
    JsonType,
    Nullable,
    choice_type,
    integer_type,
    number_type,
    text_type,
    wrong,
)
from delegate.llm.runtime.tokenizer_charsmap import check_charsmap
from delegate.llm.runtime.tokenizer_patterns import check_pattern

MOST_BYTES = 2**28
_MOST_STEPS = 64  # of a pipeline, such as the normalizer
_MOST_GROWTH = 64  # the length of a text after a pipeline over that before it
_MOST_TOKENS = 2**22

_ID = integer_type(0, 2**32 - 1)
_SHORT = text_type(256)
_TOKEN = text_type(1024)
_COUNT = integer_type(0, 2**31 - 1)
_CHARACTER = text_type(1, least=1)
_SPECIAL = Items(_ID, 64)
_BEHAVIOR = choice_type("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")


@dataclass(frozen=True)
class _Pair:
    """A list of two values."""

    first: JsonType
    second: JsonType

    def check(self, value: Any, place: str) -> list[Any]:
        if type(value) is not list or len(value) != 2:
            raise wrong(place, "a list of 2 items", value)
        return [self.first.check(value[0], f"{place}[0]"), self.second.check(value[1], f"{place}[1]")]


@dataclass(frozen=True)
class _Variant:
    """An object with one field, whose name says what it is."""

    kinds: Mapping[str, JsonType]

    def check(self, value: Any, place: str) -> dict[str, Any]:
        if type(value) is not dict or len(value) != 1 or (name := next(iter(value))) not in self.kinds:
            raise wrong(place, f"an object with one of {', '.join(self.kinds)}", value)
        return {name: self.kinds[name].check(value[name], f"{place}.{name}")}


@dataclass(frozen=True)
class _Pattern:
    """A text that is searched for, or a regular expression."""

    def check(self, value: Any, place: str) -> dict[str, Any]:
        checked: dict[str, Any] = _Variant({"String": _TOKEN, "Regex": text_type(sys.maxsize)}).check(value, place)
        if "Regex" in checked:
            check_pattern(checked["Regex"], place)
        return checked


@dataclass(frozen=True)
class _Charsmap:
    """A normalization of SentencePiece in base64."""

    def check(self, value: Any, place: str) -> str:
        text: str = text_type(2**22).check(value, place)
        return check_charsmap(text, place)


@dataclass(frozen=True)
class _Template:
    """The parts around one or two texts, each of which occurs at most once, and the tokens of the parts."""

    _PIECE = _Variant(
        {
            "Sequence": Fields({"id": choice_type("A", "B"), "type_id": _ID}),
            "SpecialToken": Fields({"id": _TOKEN, "type_id": _ID}),
        }
    )
    _TOKENS = Entries(Fields({"id": _TOKEN, "ids": _SPECIAL, "tokens": Items(_TOKEN, 64)}), 1024, _TOKEN)
    _FIELDS = Fields({"single": Items(_PIECE, 64), "pair": Items(_PIECE, 64), "special_tokens": _TOKENS})

    def check(self, value: Any, place: str) -> dict[str, Any]:
        template: dict[str, Any] = self._FIELDS.check(value, place)
        tokens = template["special_tokens"]
        if unequal := [name for name, token in tokens.items() if len(token["ids"]) != len(token["tokens"])]:
            raise ValueError(f"{place}.special_tokens.{unequal[0]} has more ids than tokens, or fewer")
        for name, allowed in (("single", ["A"]), ("pair", ["A", "B"])):
            texts = [piece["Sequence"]["id"] for piece in template[name] if "Sequence" in piece]
            if sorted(texts) != sorted({*texts} & {*allowed}):
                raise ValueError(f"{place}.{name} should have each of {' and '.join(allowed)} at most once")
            used = [piece["SpecialToken"]["id"] for piece in template[name] if "SpecialToken" in piece]
            if unknown := [token for token in used if token not in tokens]:
                raise ValueError(f"{place}.{name} has {unknown[0]!r}, which is not one of its special tokens")
        return template


@dataclass(frozen=True)
class _Pipeline:
    """A part of a kind in `kinds`, or a sequence of them, in the field `sequence`."""

    kinds: Mapping[str, JsonType]
    sequence: str
    whole: Callable[[list[dict[str, Any]], str], None] = field(default=lambda steps, place: None)

    def check(self, value: Any, place: str) -> dict[str, Any]:
        checked = self._part(value, place, 0)
        steps = [*self._steps(checked)]
        if len(steps) > _MOST_STEPS:
            raise ValueError(f"{place} has more than {_MOST_STEPS} steps")
        if _growth(steps) > _MOST_GROWTH:
            raise ValueError(f"{place} can make a text more than {_MOST_GROWTH} times longer")
        self.whole(steps, place)
        return checked

    def _part(self, value: Any, place: str, depth: int) -> dict[str, Any]:
        name = Fields({"type": choice_type(*self.kinds, "Sequence")}).check(value, place)["type"]
        if name != "Sequence":
            return {"type": name, **self.kinds[name].check(value, place)}
        parts = value.get(self.sequence)
        if type(parts) is not list or len(parts) > _MOST_STEPS or depth > _MOST_STEPS:
            raise wrong(f"{place}.{self.sequence}", f"a list of 0 to {_MOST_STEPS} items", parts)
        checked = [self._part(part, f"{place}.{self.sequence}[{i}]", depth + 1) for i, part in enumerate(parts)]
        return {"type": name, self.sequence: checked}

    def _steps(self, part: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if part["type"] != "Sequence":
            yield part
        for inner in part.get(self.sequence, ()):
            yield from self._steps(inner)


def _growth(steps: list[dict[str, Any]]) -> float:
    """Return a bound on the length of a text after these steps over its length before them.

    Replacements do not multiply if one does not replace what another has written.
    """
    single, product = 1.0, 1.0
    written: set[str] | None = set()  # None: any character
    for step in steps:
        if step["type"] != "Replace":
            product *= {"ByteLevel": 3, "Metaspace": 2, "Prepend": len(step.get("prepend", "")) + 1}.get(
                step["type"], 1
            )
            written = None
            continue
        pattern, content = step["pattern"].get("String", ""), step["content"]
        factor = max(1.0, len(content) / len(pattern) if pattern else len(content) + 1)
        if pattern and written is not None and not written & {*pattern}:
            single = max(single, factor)
        else:
            product *= factor
        written = None if written is None else written | {*content}
    return single * product


def _one_template(steps: list[dict[str, Any]], place: str) -> None:
    """Raise ValueError if there is a second template, which would get parts in place of texts."""
    if sum(step["type"] == "TemplateProcessing" for step in steps) > 1:
        raise ValueError(f"{place} has more than one template")


@dataclass(frozen=True)
class _Vocabulary:
    """The tokens with their numbers."""

    def check(self, value: Any, place: str) -> dict[str, Any]:
        if type(value) is not dict or len(value) > _MOST_TOKENS:
            raise wrong(place, f"an object of up to {_MOST_TOKENS:,} entries", value)
        for token, number in value.items():  # a loop for each token: a call would take longer than all else here
            if type(number) is not int or not 0 <= number < 2**32 or len(token) > 1024:
                _TOKEN.check(token, f"a token of {place}")
                _ID.check(number, f"{place}.{token}")
        return value


@dataclass(frozen=True)
class _Merges:
    """Pairs of tokens; each is a list, or a text with a space between the two."""

    def check(self, value: Any, place: str) -> list[list[str]]:
        if type(value) is not list or len(value) > _MOST_TOKENS:
            raise wrong(place, f"a list of 0 to {_MOST_TOKENS:,} items", value)
        merges = []
        for number, merge in enumerate(value):
            if type(merge) is str and merge.startswith("#version"):
                continue  # the first line of the file that some of these lists come from
            pair = merge.split(" ") if type(merge) is str else merge
            if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) is not str:
                raise wrong(f"{place}[{number}]", "two tokens", merge)
            merges.append(pair)
        return merges


@dataclass(frozen=True)
class _Bpe:
    """Byte pair encoding: merges of tokens that give tokens."""

    _FIELDS = Fields(
        {"vocab": _Vocabulary(), "merges": _Merges()},
        {
            "dropout": Nullable(number_type(0, 1)),
            "unk_token": Nullable(_TOKEN),
            "continuing_subword_prefix": Nullable(_SHORT),
            "end_of_word_suffix": Nullable(_SHORT),
            "fuse_unk": Nullable(FLAG),
            "byte_fallback": Nullable(FLAG),
            "ignore_merges": Nullable(FLAG),
        },
    )

    def check(self, value: Any, place: str) -> dict[str, Any]:
        model: dict[str, Any] = self._FIELDS.check(value, place)
        tokens, prefix = model["vocab"], model.get("continuing_subword_prefix") or ""
        for number, (first, second) in enumerate(model["merges"]):
            if not (
                first in tokens
                and second in tokens
                and second.startswith(prefix)
                and first + second[len(prefix) :] in tokens
            ):
                where = f"{place}.merges[{number}]"
                raise wrong(where, "two tokens of the vocabulary, which give a third one", [first, second])
        return model


@dataclass(frozen=True)
class _Unigram:
    """Tokens with the logarithm of their probability."""

    _FIELDS = Fields(
        {"vocab": Items(_Pair(_TOKEN, number_type()), _MOST_TOKENS)},
        {"unk_id": Nullable(_COUNT), "byte_fallback": FLAG},
    )

    def check(self, value: Any, place: str) -> dict[str, Any]:
        model: dict[str, Any] = self._FIELDS.check(value, place)
        unknown, count = model.get("unk_id"), len(model["vocab"])
        if unknown is not None and unknown >= count:
            raise wrong(f"{place}.unk_id", f"a whole number less than {count}", unknown)
        return model


_MODELS: Mapping[str, JsonType] = {
    "BPE": _Bpe(),
    "Unigram": _Unigram(),
    "WordPiece": Fields(
        {
            "vocab": _Vocabulary(),
            "unk_token": _TOKEN,
            "continuing_subword_prefix": _SHORT,
            "max_input_chars_per_word": integer_type(0, 1000),
        }
    ),
    "WordLevel": Fields({"vocab": _Vocabulary(), "unk_token": _TOKEN}),
}


_KEYS = {"merges": "BPE", "max_input_chars_per_word": "WordPiece"}  # by which a model without a type is recognized


@dataclass(frozen=True)
class _Model:
    """One of the models; early versions of the format have no type."""

    def check(self, value: Any, place: str) -> dict[str, Any]:
        given: dict[str, Any] = Fields({}, {"type": choice_type(*_MODELS)}).check(value, place)
        rest = "Unigram" if isinstance(value.get("vocab"), list) else "WordLevel"
        name = given.get("type") or next((kind for key, kind in _KEYS.items() if key in value), rest)
        return {"type": name, **_MODELS[name].check(value, place)}


_EMPTY = Fields({})
_BYTE_LEVEL = Fields({"add_prefix_space": FLAG, "trim_offsets": FLAG}, {"use_regex": FLAG})
_METASPACE = Fields(
    {"replacement": _CHARACTER},
    {
        "add_prefix_space": Nullable(FLAG),
        "prepend_scheme": choice_type("first", "never", "always"),
        "split": Nullable(FLAG),
    },
)
_REPLACE = Fields({"pattern": _Pattern(), "content": _SHORT})
_AROUND = {"sep": _Pair(_TOKEN, _ID), "cls": _Pair(_TOKEN, _ID)}

_NORMALIZER = _Pipeline(
    {
        **dict.fromkeys(("StripAccents", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Nmt", "ByteLevel"), _EMPTY),
        "BertNormalizer": Fields(
            {"clean_text": FLAG, "handle_chinese_chars": FLAG, "lowercase": FLAG}, {"strip_accents": Nullable(FLAG)}
        ),
        "Strip": Fields({"strip_left": FLAG, "strip_right": FLAG}),
        "Precompiled": Fields({"precompiled_charsmap": _Charsmap()}),
        "Replace": _REPLACE,
        "Prepend": Fields({"prepend": _SHORT}),
    },
    "normalizers",
)
_PRE_TOKENIZER = _Pipeline(
    {
        **dict.fromkeys(("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"), _EMPTY),
        "ByteLevel": _BYTE_LEVEL,
        "CharDelimiterSplit": Fields({"delimiter": _CHARACTER}),
        "Metaspace": _METASPACE,
        "Split": Fields({"pattern": _Pattern(), "behavior": _BEHAVIOR, "invert": FLAG}),
        "Punctuation": Fields({}, {"behavior": _BEHAVIOR}),
        "Digits": Fields({"individual_digits": FLAG}),
        "FixedLength": Fields({}, {"length": integer_type(1, 2**20)}),
    },
    "pretokenizers",
)
_POST_PROCESSOR = _Pipeline(
    {
        "BertProcessing": Fields(_AROUND),
        "RobertaProcessing": Fields({**_AROUND, "trim_offsets": FLAG, "add_prefix_space": FLAG}),
        "ByteLevel": _BYTE_LEVEL,
        "TemplateProcessing": _Template(),
    },
    "processors",
    _one_template,
)
_DECODER = _Pipeline(
    {
        "BPEDecoder": Fields({"suffix": _SHORT}),
        "ByteLevel": _BYTE_LEVEL,
        "WordPiece": Fields({"prefix": _SHORT, "cleanup": FLAG}),
        "Metaspace": _METASPACE,
        "CTC": Fields({"pad_token": _TOKEN, "word_delimiter_token": _TOKEN, "cleanup": FLAG}),
        "Replace": _REPLACE,
        "Strip": Fields({"content": _CHARACTER, "start": integer_type(0, 1024), "stop": integer_type(0, 1024)}),
        **dict.fromkeys(("Fuse", "ByteFallback"), _EMPTY),
    },
    "decoders",
)
_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), FLAG)
_TOKENIZER = Fields(
    {"model": _Model()},
    {
        "version": choice_type("1.0"),
        "added_tokens": Items(Fields({"id": _ID, "content": _TOKEN, **_FLAGS}), _MOST_TOKENS),
        "normalizer": Nullable(_NORMALIZER),
        "pre_tokenizer": Nullable(_PRE_TOKENIZER),
        "post_processor": Nullable(_POST_PROCESSOR),
        "decoder": Nullable(_DECODER),
    },
)


def check_tokenizer(data: bytes, vocabulary: int) -> bytes:
    """Return the JSON of a tokenizer for its library, without the fields for batches, which prompts do not need.

    Args:
        data: the text of a tokenizer.json.
        vocabulary: the model's number of tokens. Added tokens may be beyond, such as Gemma's image tokens.

    Raises:
        ValueError: it is not the JSON of a tokenizer, a value is out of range, or the model lacks a token.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        tokenizer = _TOKENIZER.check(json.loads(data), "")
        checked = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(fault(error)) from error
    tokens = tokenizer["model"]["vocab"]
    last = max(tokens.values(), default=0) if isinstance(tokens, dict) else len(tokens) - 1
    if last >= vocabulary:
        raise ValueError(f"it has tokens up to {last}, but the model has {vocabulary} tokens")
    return checked
