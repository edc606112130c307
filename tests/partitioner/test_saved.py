"""Saved plans as data: older files, and the partitions that ran at the same time in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import delegate
from delegate.errors import PartitionError
from delegate.partitioner.saved import SavedPartition, SavedPlan
from delegate.placement.lock import Lock

PARTITIONS = tuple(SavedPartition("forward", f"p_{name}", "xnnpack", (name,)) for name in "ab")
PLAN = SavedPlan(PARTITIONS, ("aten.linear.default",))
GROUPS = [[["p_a"], ["p_b"]]]
LOCK = Lock(model={"forward": "0" * 16}, machine="a machine", versions={}, plan=PLAN, options={})


def with_together(together: Any, data: dict[str, Any]) -> str:
    """Return the JSON of a plan with the key that older files may have."""
    return json.dumps({**data, "together": together})


@pytest.mark.parametrize("file_format", [2, 3, 4])
def test_an_old_plan_without_partitions_at_the_same_time_is_read(file_format: int) -> None:
    data = {**json.loads(PLAN.to_json()), "format": file_format}
    assert SavedPlan.from_json(with_together([], data)) == SavedPlan.from_json(json.dumps(data)) == PLAN


@pytest.mark.parametrize("together", [GROUPS, 3], ids=str)
def test_an_old_plan_with_partitions_at_the_same_time_is_refused(together: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(with_together(together, json.loads(PLAN.to_json())))
    remedy = "remove `together` from it, or save a plan again"
    with pytest.raises(PartitionError, match=rf"at the same time \(`together`\), which is no longer .*: {remedy}"):
        delegate.SavedPlan.load(path)


def test_an_old_lock_with_partitions_at_the_same_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "delegate.lock"
    LOCK.save(path)
    text = path.read_text()
    assert Lock.load(path).plan == PLAN
    path.write_text(text.replace("plan:\n", "plan:\n  together: []\n", 1))
    assert Lock.load(path).plan == PLAN
    path.write_text(text.replace("plan:\n", f"plan:\n  together: {json.dumps(GROUPS)}\n", 1))
    with pytest.raises(PartitionError, match=r"no longer supported .*delegate\.lock.*: measure again"):
        Lock.load(path)
