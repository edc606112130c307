"""The format of a tokenizer, with a range for each of its numbers and texts: a table of all parts that it may have.

The file of a tokenizer is JSON, which the package tokenizers describes at
https://huggingface.co/docs/tokenizers/components. That package ends the process, or panics, if some values are out of
range. So it gets the checked values alone, as JSON that is written here.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from delegate.common.field_checks import fault
from delegate_llm.runtime.json_types import (
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


# -- what the table consists of ----------------------------------------------------------------------------------------


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


# -- patterns ----------------------------------------------------------------------------------------------------------


_MOST_CHARACTERS = 4096
_MOST_DEPTH = 32  # of groups and of sets
_MOST_REPEATS = 1000  # of one repetition with a count
_MOST_PRODUCT = 10_000  # of nested repetitions with counts
_FEW = 8  # repetitions with a count of an unbounded repetition
_GROUP = re.compile(r"\((?:(?![*?])|\?(?:[:=!>]|<[=!]|<\w+>|[imsadu-]+[:)]))")
_QUANTIFIER = re.compile(r"(?P<simple>[*+?])[?+]?|\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\}\??")
_ESCAPE = re.compile(r"\\(?:[pP]\{\^?[\w ]+\}|x\{[0-9a-fA-F ]+\}|[^kg])", re.DOTALL)
_SET_NAME = re.compile(r"\[:\^?\w+:\]")


@dataclass
class _Group:
    """What a group has so far, or an atom: whether a part repeats without bound, and its largest product of counts."""

    is_unbounded: bool = False
    product: int = 1

    def add(self, atom: _Group) -> None:
        self.is_unbounded |= atom.is_unbounded
        self.product = max(self.product, atom.product)


def check_pattern(pattern: str, place: str) -> None:
    """Raise ValueError for a pattern that can take much memory, or time that is exponential in the text.

    Sets, groups, choices, lookaround and repetitions are supported, while recursion, conditions and callouts are not,
    nor a repetition of what already repeats without bound.

    Args:
        pattern: a regular expression in the syntax of Oniguruma.
        place: its place in the file, for the message.
    """
    if len(pattern) > _MOST_CHARACTERS:
        raise ValueError(f"{place} has a pattern of more than {_MOST_CHARACTERS:,} characters")
    groups, atom, position = [_Group()], _Group(), 0
    while position < len(pattern):
        match, closed = _QUANTIFIER.match(pattern, position), None
        if match is not None:
            atom = _repeat(atom, match, place)
            groups[-1].add(atom)
        elif pattern[position] == "(":
            match = _GROUP.match(pattern, position)
            if match is None:
                raise ValueError(f"{place} has a pattern with an unsupported group at character {position}")
            if not match.group().endswith(")"):  # else options for the rest of the group
                groups.append(_Group())
                if len(groups) > _MOST_DEPTH:
                    raise ValueError(f"{place} has a pattern with more than {_MOST_DEPTH} nested groups")
            atom = _Group()
        elif pattern[position] == ")":
            if len(groups) == 1:
                raise ValueError(f"{place} has a pattern with an unopened group at character {position}")
            atom = groups.pop()
            groups[-1].add(atom)
        else:
            closed, atom = _skip_character(pattern, position, place), _Group()
        position = closed if closed is not None else match.end() if match else position + 1


def _repeat(atom: _Group, match: re.Match[str], place: str) -> _Group:
    """Return the repetition of an atom."""
    if match["simple"]:
        most = 1 if match["simple"] == "?" else None
    elif not match["comma"]:
        most = int(match["low"] or 0)
    else:
        most = int(match["high"]) if match["high"] else None
    counts = max(int(match["low"] or 0), most or 0)
    if counts > _MOST_REPEATS or atom.product * counts > _MOST_PRODUCT:
        raise ValueError(f"{place} has a pattern that repeats a part more than {_MOST_REPEATS:,} times")
    if atom.is_unbounded and (most is None or most > _FEW):
        raise ValueError(f"{place} has a pattern that repeats a repetition, which can take exponential time")
    return _Group(atom.is_unbounded or most is None, atom.product * max(counts, 1))


def _skip_character(pattern: str, position: int, place: str) -> int:
    """Return the end of a character, an escape or a set."""
    if pattern[position] == "\\":
        match = _ESCAPE.match(pattern, position)
        if match is None:
            raise ValueError(f"{place} has a pattern with an unsupported escape at character {position}")
        return match.end()
    return _skip_set(pattern, position, place) if pattern[position] == "[" else position + 1


def _skip_set(pattern: str, position: int, place: str) -> int:
    """Return the end of a set, which may have others inside."""
    depth = 0
    while position < len(pattern):
        character = pattern[position]
        if depth and (name := _SET_NAME.match(pattern, position)):
            position = name.end()
            continue
        if character == "\\":
            position = _skip_character(pattern, position, place)
            continue
        position += 1
        if character == "[":
            depth += 1
            position += pattern[position : position + 1] == "^"
            if depth > _MOST_DEPTH or pattern[position : position + 1] == "]":
                raise ValueError(f"{place} has a pattern with an unsupported set")
        elif character == "]":
            depth -= 1
            if not depth:
                return position
    raise ValueError(f"{place} has a pattern with an unclosed set")


# -- charsmaps ---------------------------------------------------------------------------------------------------------


_BLOCK = 256  # units; each block is allocated as a whole
_AT_ONCE = 4096  # nodes


def check_charsmap(text: str, place: str) -> str:
    """Return a charsmap in base64 as its decoder expects it; raise ValueError if it names a place outside of itself.

    It is a normalization of SentencePiece: a search tree, and the texts that its leaves name. The tree is a double
    array of Darts-clone, https://github.com/s-yata/darts-clone: a unit for each node, whose children are in a block of
    256 units. Its reader follows the places that the units name without a check.

    Args:
        text: the charsmap in base64: bytes of the tree (32 bits), the tree, the texts in UTF-8, each ended by a zero.
        place: its place in the file, for the message.
    """
    damaged = ValueError(f"{place} is damaged")
    try:
        data = base64.b64decode(text, validate=True)
        size = int.from_bytes(data[:4], "little")
        texts = data[4 + size :]
        texts.decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise damaged from error
    if len(data) < 4 + size or not size or size % (4 * _BLOCK):
        raise damaged
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    # The first byte of each character of the texts, and their end.
    starts = np.append((np.frombuffer(texts, np.uint8) & 0xC0) != 0x80, True)
    offsets, labels = (units >> 10) << ((units & 0x200) >> 6), units & 0x800000FF
    seen, nodes = np.zeros(len(units), bool), np.zeros(1, np.int64)
    while nodes.size:
        nodes, rest = nodes[:_AT_ONCE], nodes[_AT_ONCE:]
        seen[nodes] = True
        bases = nodes ^ offsets[nodes]
        if (bases >= len(units)).any():
            raise damaged
        leaves = units[bases[(units[nodes] & 0x100) != 0]] & 0x7FFFFFFF
        if (leaves >= len(starts)).any() or not starts[leaves].all():
            raise damaged
        letters = np.arange(1, _BLOCK)
        children = bases[:, None] ^ letters
        children = children[labels[children] == letters]
        nodes = np.concatenate([np.unique(children[~seen[children]]), rest])
    return base64.b64encode(data).decode()
