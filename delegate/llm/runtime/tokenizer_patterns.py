"""Limits on a tokenizer's patterns, whose library compiles and matches them without any: https://github.com/kkos/oniguruma."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
