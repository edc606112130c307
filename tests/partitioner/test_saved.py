"""Saved plans as data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delegate.errors import PartitionError
from delegate.partitioner.saved import SavedPartition, SavedPlan

PARTITIONS = tuple(SavedPartition("forward", f"p_{name}", "xnnpack", (name,)) for name in "ab")
PLAN = SavedPlan(PARTITIONS, ("aten.linear.default",), ({"forward": ("c",)},))


def test_a_plan_is_read_as_it_was_written() -> None:
    assert SavedPlan.from_json(PLAN.to_json()) == PLAN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "its format is 3, but only format 4 is supported"),
        ({"whole": "aten.linear.default"}, "whole should be a list"),
        ({"partitions": [{"graph": "forward", "name": "p", "backend": "xnnpack"}]}, "it has no 'nodes'"),
        ({"decompositions": [{"forward": []}]}, "decompositions should have nodes for each graph"),
    ],
    ids=str,
)
def test_what_is_no_plan_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        SavedPlan.from_json(json.dumps({**json.loads(PLAN.to_json()), **change}))
