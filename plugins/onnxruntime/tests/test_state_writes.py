"""Writes to a part of a state: a kernel runs them in place if the state is large; the library would copy all of it."""

from __future__ import annotations

import pytest
import torch

import delegate
from delegate.testing import assert_same
from tests.support.lowering import assert_runs

PUT = "aten.index_put.default"


class Cache(torch.nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(rows, 64))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.rows[at] = torch.relu(x)
        return torch.exp(self.rows[at]) + x


@pytest.mark.parametrize(
    ("rows", "pins", "refused"),
    [
        (4096, {}, {PUT: 1}),
        (64, {}, {}),
        (4096, {"index_put*": "onnxruntime"}, {}),
    ],
    ids=["large", "small", "pinned"],
)
def test_a_write_to_a_part_of_a_state(rows: int, pins: dict[str, str], refused: dict[str, int]) -> None:
    module = Cache(rows).eval()
    inputs = torch.randn(2, 64), torch.tensor([3, 1])
    exported = torch.export.export(module, inputs)
    program = delegate.to_backend(
        exported, config={"backends": ["onnxruntime"], "partitioning": {"min_partition_size": 0, "node_pins": pins}}
    )
    assert_runs(program, "onnxruntime", refused)
    if refused:
        assert "it writes a part of state 'rows': a kernel does this in place" in str(program.report)
    with torch.no_grad():
        for x in inputs[0], inputs[0] * 2:
            assert_same(program(x, inputs[1]), module(x, inputs[1]), 1e-6)
