"""Saved plans as data: the differences between two plans."""

from __future__ import annotations

import itertools
import re
import sys
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from delegate.partitioner import saved
from delegate.partitioner.saved import SavedPartition, SavedPlan

Group = Sequence[Sequence[str]]
LINE = re.compile(r"(.*?) (now|no longer) runs? at the same time as (.*)")


def plan(*groups: Group, names: Sequence[str] = ()) -> SavedPlan:
    """Return a plan of partitions of one node each, some of which run at the same time."""
    found = dict.fromkeys([*names, *(name for group in groups for branch in group for name in branch)])
    partitions = tuple(SavedPartition("forward", f"p_{name}", "xnnpack", (name,)) for name in found)
    together = tuple(tuple(tuple(f"p_{name}" for name in branch) for branch in group) for group in groups)
    return SavedPlan(partitions, together=together)


def pairs(*groups: Group) -> set[frozenset[str]]:
    """Return the pairs of partitions that run at the same time."""
    branches = (pair for group in groups for pair in itertools.combinations(group, 2))
    return {frozenset(pair) for two in branches for pair in itertools.product(*two)}


def size(text: str) -> int:
    """Return the number of partitions that a list in a line stands for."""
    named, _, more = text.partition(" and ")
    return len(named.split(", ")) + int((more or "0 more").split()[0])


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ([], [["a"], ["b"]], ["forward: a now runs at the same time as forward: b"]),
        ([["b"], ["a"]], [["a"], ["b"]], []),
        ([["a"], ["b"]], [["a"], ["b"], ["c"]], [
            "forward: a now runs at the same time as forward: c",
            "forward: b now runs at the same time as forward: c",
        ]),
        ([["a", "b"], ["c"]], [["a"], ["b"], ["c"]], ["forward: a now runs at the same time as forward: b"]),
        ([["c"], ["a"], ["b"]], [["a"], ["b", "c"]], ["forward: b no longer runs at the same time as forward: c"]),
        ([], [["a"], list("bcdefg")], [
            "forward: a now runs at the same time as forward: b, forward: c, forward: d and 3 more",
        ]),
        ([], [list("abcde"), ["f"]], [
            "forward: a, forward: b, forward: c and 2 more now run at the same time as forward: f",
        ]),
    ],
)  # fmt: skip
def test_lines_name_what_runs_at_the_same_time(before: Group, after: Group, lines: list[str]) -> None:
    names = "abcdefg"
    first, second = (plan(*([group] if group else []), names=names) for group in (before, after))
    assert first.differences(second) == tuple(lines)
    swap = {"now": "no longer", "no longer": "now"}
    assert second.differences(first) == tuple(re.sub("now|no longer", lambda m: swap[m[0]], line) for line in lines)


@st.composite
def groupings(draw: st.DrawFn) -> list[list[list[str]]]:
    """Return groups of branches over some of eight partitions, each in one branch."""
    places = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=8, max_size=8))
    left = draw(st.sets(st.sampled_from("abcdefgh")))
    found: dict[int, dict[int, list[str]]] = {}
    for name, (group, branch) in zip("abcdefgh", places, strict=True):
        if name not in left:
            found.setdefault(group, {}).setdefault(branch, []).append(name)
    return [list(branches.values()) for branches in found.values() if len(branches) > 1]


@given(groupings(), groupings())
def test_each_pair_that_differs_is_counted_once_and_no_other_is_named(
    before: list[list[list[str]]], after: list[list[list[str]]]
) -> None:
    lines = plan(*before, names="abcdefgh").differences(plan(*after, names="abcdefgh"))
    new, old = pairs(*after) - pairs(*before), pairs(*before) - pairs(*after)
    counted: Counter[str] = Counter()
    for line in lines:
        match = LINE.fullmatch(line)
        assert match
        subjects, word, partners = match.groups()
        counted[word] += size(subjects) * size(partners)
        known = new if word == "now" else old
        for pair in itertools.product(*(re.findall(r"forward: (\w)", text) for text in (subjects, partners))):
            assert frozenset(pair) in known
    assert counted == Counter({"now": len(new), "no longer": len(old)})


def executed(function: Any, *args: Any) -> int:
    """Return how many lines of the module run during a call, iterations of comprehensions included."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != saved.__file__:
            return None
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(None)
    return count


@pytest.mark.parametrize("shape", ["new", "grown", "cut in two", "joined", "moved"])
def test_the_differences_are_linear_in_branches(shape: str) -> None:
    def plans(count: int) -> tuple[SavedPlan, SavedPlan]:
        names = [f"n{i:05}" for i in range(count)]
        single = [[name] for name in names]
        twos = [names[i : i + 2] for i in range(0, count, 2)]
        before, after = {
            "new": ([], [single]),
            "grown": ([single[:-1]], [single]),
            "cut in two": ([twos], [single]),
            "joined": ([single[: count // 2], single[count // 2 :]], [single]),
            "moved": ([single], [single[::2], single[1::2]]),
        }[shape]
        return plan(*before, names=names), plan(*after, names=names)

    costs, texts = [], []
    for count in (100, 200, 400):
        first, second = plans(count)
        assert first.differences(second)
        for a, b in ((first, second), (second, first)):
            assert len(a.differences(b)) <= 2 * count
            texts.append(sum(map(len, a.differences(b))))
        costs.append(executed(first.differences, second))
    assert costs[0] > 100
    assert costs[2] < 2.2 * costs[1] < 2.2 * 2.2 * costs[0]
    assert max(texts[4:]) < 2.2 * max(texts[2:4])
