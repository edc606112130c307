"""The events of lowering: passes, support checks, plans, compilations and cache hits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import nn

import delegate
from delegate.edge.passes.pipeline import PROGRAM_PASSES
from delegate.events.kinds import Compiled, Event, PassRun, Planned, StageRun, SupportChecked

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cumsum(self.first(a).view(3, 8), 0))


def lowered(backends: list[str], **options: Any) -> list[Event]:
    events = list[Event]()
    torch.manual_seed(0)
    with delegate.listen(events.append):
        delegate.to_backend(delegate.export(Net().eval(), (X,)), backends, **options)
    return events


def of_kind(events: list[Event], kind: type) -> list[Any]:
    return [e for e in events if isinstance(e, kind)]


def test_the_events_of_lowering():
    events = lowered(["xnnpack"], verify=(X,), cache=False)
    passes = of_kind(events, PassRun)
    assert [e.name for e in passes] == [p.__name__ for p in PROGRAM_PASSES]
    assert {e.method for e in passes} == {"forward"}
    (cleaned,) = (e for e in passes if e.before > e.after)
    assert cleaned.name == "remove_no_ops"
    assert all(first.after == second.before for first, second in pairwise(passes))
    (check,) = of_kind(events, SupportChecked)
    assert (check.backend, check.nodes, check.supported) == ("xnnpack", 3, 2)
    (placed,) = of_kind(events, Planned)
    assert (placed.nodes, placed.partitions) == ({"xnnpack": 2, "portable": 1}, {"xnnpack": 2})
    compiled = of_kind(events, Compiled)
    assert [(e.partition, e.nodes, e.is_cached, e.refusal) for e in compiled] == [
        ("xnnpack_0", 1, False, ""),
        ("xnnpack_1", 1, False, ""),
    ]
    assert all(e.bytes > 100 for e in compiled)
    assert [e.name for e in of_kind(events, StageRun)] == ["export to edge", "emit", "verify", "lower"]
    whole = events[-1]
    assert all(whole.start <= e.start and e.start + e.duration <= whole.start + whole.duration for e in events)


def test_cache_hits(tmp_path, monkeypatch):
    monkeypatch.setenv("DELEGATE_CACHE", str(tmp_path))
    first, second = lowered(["xnnpack"], verify=(X,)), lowered(["xnnpack"], verify=(X,))
    assert {e.is_cached for e in of_kind(first, Compiled)} == {False}
    assert {e.is_cached for e in of_kind(second, Compiled)} == {True}
    lowered(["xnnpack"])
    assert [e.name for e in of_kind(lowered(["xnnpack"]), StageRun)] == ["program from the cache", "lower"]
