"""The tables that methods share: what is added can be taken back, and nothing else goes with it."""

from __future__ import annotations

import torch

from delegate.backend.aot import PreprocessResult
from delegate.emit.tables import SharedTables


def grown(tables: SharedTables, suffix: str) -> SharedTables:
    tables.operator(f"aten.{suffix}")
    tables.constant(f"c_{suffix}", torch.full((3,), float(len(suffix))))
    tables.constant(f"empty_{suffix}", torch.empty(0))
    tables.state(f"s_{suffix}", torch.zeros(2))
    tables.pack(torch.full((4096,), len(suffix), dtype=torch.int8))
    tables.delegate(f"d_{suffix}", "acme", PreprocessResult(b"blob", {}, space="vram", data=(b"more",)))
    return tables


def test_what_was_added_behind_a_mark_is_forgotten():
    tables = grown(SharedTables(), "kept")
    mark, before = tables.mark(), {name: table.copy() for name, table in vars(tables).items()}
    grown(tables, "gone")
    assert tables.mark() != mark
    tables.rollback(mark)
    assert vars(tables) == before
    assert tables.operator("aten.new") == len(before["operators"])


def test_a_tensor_of_two_methods_is_one_constant_unless_it_is_empty():
    tables, weight = SharedTables(), torch.ones(3)
    assert tables.constant("first", weight) == tables.constant("second", weight)
    assert tables.constant("empty", torch.empty(0)) != tables.constant("another", torch.empty(0))
    assert len(tables.constants) == 3


def test_states_of_zeros_share_a_segment_and_minus_zero_is_none():
    tables, ones = SharedTables(), torch.ones(2)
    starts = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(3), "d": -torch.zeros(2), "e": ones}
    index = {name: tables.states[tables.state(name, value)].segment for name, value in starts.items()}
    assert index["a"] == index["b"]
    assert len(set(index.values())) == 4
    ones.zero_()  # the module changes its tensor after the emission
    assert [bytes(tables.segments[index[name]]) for name in starts] == [
        bytes(8), bytes(8), bytes(12), torch.tensor([-0.0, -0.0]).numpy().tobytes(), torch.ones(2).numpy().tobytes()
    ]  # fmt: skip
