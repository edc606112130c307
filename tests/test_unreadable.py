"""Plans, locks and reports that cannot be read: errors in plain words, without Python's own."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from delegate.errors import DelegateError
from delegate.partitioner.saved import SavedPlan
from delegate.placement.lock import Lock
from delegate.report import Report

DEEP = 100_000
READERS: dict[str, Callable[[str], object]] = {
    "plan": SavedPlan.from_json, "lock": Lock.from_yaml, "report": Report.from_json,
}  # fmt: skip
TEXTS = {  # text -> the words of the error
    "nothing": (
        "",
        "not valid JSON, expecting value .line 1, column 1.|a lock should be a mapping|the program has no debug info",
    ),
    "an open list": ("[", "not valid JSON, expecting value|not valid YAML"),
    "a deep list": ("[" * DEEP + "]" * DEEP, "too deeply nested"),
    "a deep mapping": ('{"a":' * DEEP + "1" + "}" * DEEP, "too deeply nested"),
    "a deep format": ('{"format":' + "[" * DEEP + "]" * DEEP + "}", "too deeply nested"),
    "a list": ("[1]", "wrong type|a lock should be a mapping"),
    "a number": ("1", "wrong type|a lock should be a mapping"),
    "no format": ("{}", "it has no 'format'"),
    "another format": ('{"format": 99}', "its format is 99"),
}
PYTHON = re.compile(r"Error|Exception|recursion|object|subscriptable|indices")


@pytest.mark.parametrize(("text", "words"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_errors_are_in_plain_words(reader: Callable[[str], object], text: str, words: str) -> None:
    with pytest.raises(DelegateError, match=words) as caught:
        reader(text)
    assert not PYTHON.search(str(caught.value)), caught.value
