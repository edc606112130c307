"""Constants as models hold them: expanded, transposed, sliced, empty, without dimensions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import delegate
from delegate.edge.build import raw_bytes
from tests.support.availability import require
from tests.support.lowering import assert_runs, assert_same

CONSTANTS = {
    "one element, expanded": lambda: torch.tensor(2.0).expand(1),
    "one element, expanded twice": lambda: torch.tensor(2.0).expand(1, 1),
    "a row, expanded": lambda: torch.tensor([3.0]).expand(4),
    "expanded over rows": lambda: torch.arange(4.0).expand(3, 4),
    "transposed": lambda: torch.arange(12.0).view(4, 3).T,
    "every second": lambda: torch.arange(8.0)[::2],
    "a column": lambda: torch.arange(12.0).view(3, 4)[:, 1:2],
    "without dimensions": lambda: torch.tensor(5.0),
    "channels last": lambda: torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)[0, 0],
}


class Held(nn.Module):
    def __init__(self, constant: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("held", constant)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * self.held).neg(), self.held


@pytest.mark.parametrize("backend", ["portable", "xnnpack", "cuda"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_as_eager(name: str, backend: str) -> None:
    require(backend)
    module = Held(CONSTANTS[name]()).eval()
    x = torch.randn(1, 1)
    config = {"backends": [{"name": "cuda", "options": {"arch": "llvm"}}]} if backend == "cuda" else None
    wanted = None if config else ([] if backend == "portable" else backend)
    program = delegate.to_backend(torch.export.export(module, (x,)), wanted, config=config)
    if backend != "portable":
        assert_runs(program, backend)
    assert_same(program(x), module(x), 1e-6)


@pytest.mark.parametrize(
    "value",
    [
        *(make() for make in CONSTANTS.values()),
        *(torch.tensor([1 + 2j, 3 - 1j]).conj(), torch.tensor([1 + 2j]).conj().imag, torch.empty(0, 3)),
        *(torch.tensor([1.5]).bfloat16().expand(3), torch.tensor(True).expand(1, 1)),
        torch._efficientzerotensor(2, 3),
    ],
)
def test_raw_bytes(value: torch.Tensor) -> None:
    rebuilt = torch.empty(value.shape, dtype=value.dtype)
    if value.numel():
        rebuilt.view(-1).view(torch.uint8)[:] = torch.from_numpy(raw_bytes(value).copy())
    assert torch.equal(rebuilt, value)
    assert len(raw_bytes(value)) == value.numel() * value.element_size()


class Small(nn.Module):
    """A weight of 4 bits in int8, which is decoded, and given as it is."""

    def __init__(self, rows: int, low: int = -8, high: int = 7) -> None:
        super().__init__()
        self.register_buffer("held", torch.randint(low, high + 1, (rows, 65), dtype=torch.int8))
        self.held[0, 0], self.held[0, 1] = low, high

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ (self.held.float() * 0.1), self.held


@pytest.mark.parametrize(
    ("rows", "ends", "packed"),
    [(64, (-8, 7), True), (64, (-9, 7), False), (64, (-8, 8), False), (63, (-8, 7), False), (62, (-8, 7), False)],
    ids=["two to a byte", "below", "above", "an odd number", "few"],
)
def test_integers_of_4_bits(rows: int, ends: tuple[int, int], packed: bool, tmp_path: Path) -> None:
    module = Small(rows, *ends).eval()
    ways = {name: torch.export.export(module, (torch.randn(n, rows),)) for name, n in (("one", 1), ("many", 3))}
    program = delegate.to_backend(ways, [])
    held = [c for c in program.program.constants if c.dtype.name in ("int8", "uint8")]
    assert [(c.dtype.name, c.shape) for c in held] == (
        [("uint8", (rows * 65 // 2,))] if packed else [("int8", (rows, 65))]
    )
    program.save(tmp_path / "program")
    loaded = delegate.load(tmp_path / "program")
    for name, count in (("one", 1), ("many", 3), ("one", 1)):
        x = torch.randn(count, rows)
        assert_same(program.method(name)(x), module(x), 1e-6)
        assert_same([torch.from_numpy(r.copy()) for r in loaded.method(name)(x.numpy())], list(module(x)), 1e-6)
