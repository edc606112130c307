"""Values of small and large ranges that one operator joins keep their bits in static int8, or a warning names them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from delegate.edge.node import op_name
from tests.support.cases.joined_ranges import CASES, noise_of_small_values, quantized

DOUBLED = nn.Parameter(torch.full((8, 8, 1, 1), 2.0))


@pytest.mark.parametrize("name", CASES)
def test_small_values_keep_their_bits(name: str) -> None:
    assert noise_of_small_values(name, "xnnpack") > 30


def scales(program: torch.export.ExportedProgram, node: str) -> list[float]:
    """Return the scales of what a node reads and of its result, where these are integers."""
    (joined,) = (n for n in program.graph.nodes if op_name(n) == node)
    steps = [n for n in (*joined.all_input_nodes, *joined.users) if "quantize_per_tensor" in n.name]
    return [n.args[1] for n in steps]


@pytest.mark.parametrize("largest", [0.1, 1.0, 12.0])
def test_similar_ranges_stay_in_integers(largest: float) -> None:
    _, program, warned = quantized(CASES["cat"], "xnnpack", largest)
    assert not warned
    found = scales(program, "aten.cat.default")
    assert len(found) == 3
    assert len(set(found)) == 1


def test_a_chain_is_compared_as_a_whole() -> None:
    """Each of two joins has similar ranges, but not the first operand and the last one."""
    _, program, _ = quantized(lambda big, small: torch.cat([torch.cat([small, big], 1), big * 10], 1), "xnnpack", 10.0)
    inner, outer = (n for n in program.graph.nodes if op_name(n) == "aten.cat.default")
    assert any("quantize_per_tensor" in n.name for n in inner.users)
    assert not any("quantize_per_tensor" in n.name for n in outer.users)


READERS = {
    "activation": lambda joined: joined.relu(),
    "convolution": lambda joined: nn.functional.conv2d(joined, DOUBLED),
    "moved before": lambda joined: joined.permute(0, 1, 3, 2).relu(),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_in_integers_is_warned_of(name: str) -> None:
    def join(big: Tensor, small: Tensor) -> Tensor:
        return READERS[name](torch.cat([big, small], 1))

    _, _, warned = quantized(join, "xnnpack")
    (message,) = warned
    assert "conv2d_1 of scores in cat" in message
    assert "off" in message
