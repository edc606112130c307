"""Choose the fastest backend for each part of a model by measuring, and store the choice in a lockfile.

python examples/several_backends/place.py                           measures, and writes place.lock and place.dlg
python examples/several_backends/place.py --locked place.lock       applies the lockfile, and measures nothing
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

import delegate
from delegate.errors import DelegateError
from delegate.plugins import PluginState
from delegate.registry import default_registry


class Net(nn.Module):
    """Convolutions, then attention: backends differ in which of the two they run fast."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 96, 3, 2, 1)
        )
        self.attention = nn.TransformerEncoderLayer(96, 4, 192, batch_first=True, dropout=0.0)
        self.head = nn.Linear(96, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        tokens = self.convolutions(image).flatten(2).transpose(1, 2)
        return self.head(self.attention(tokens).mean(1))


def model() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the network with random weights, and its example inputs; `delegate lower` takes this function too."""
    torch.manual_seed(0)
    return Net().eval(), (torch.rand(1, 3, 128, 128),)


def usable() -> list[str]:
    """Return the backends that run on this machine's CPU."""
    states = [s for s in default_registry().states() if s.state is PluginState.OK and not s.stands_for]
    return [s.name for s in states if s.name in ("xnnpack", "openvino", "onnxruntime")]


def main() -> None:
    """Lower the model with a measured or a stored placement, and compare it with torch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", action="append", help="backend; may be repeated; default: those of this CPU")
    parser.add_argument("--budget", type=float, default=30, help="seconds for measuring")
    parser.add_argument("--lock", type=Path, default=Path("place.lock"), help="lockfile to write")
    parser.add_argument("--locked", type=Path, help="lockfile to apply")
    parser.add_argument("-o", "--output", type=Path, default=Path("place.dlg"), help="program file to write")
    options = parser.parse_args()
    if options.budget <= 0:
        parser.error(f"--budget {options.budget}: it must be more than 0 seconds")

    net, inputs = model()
    exported = torch.export.export(net, inputs)
    if options.locked:
        placement = delegate.Replay(options.locked)
    else:
        placement = delegate.Measured(budget=options.budget, lockfile=options.lock)
    program = delegate.to_backend(exported, options.backend or usable(), placement=placement)
    print(program.report)
    with torch.no_grad():
        difference = (program(*inputs) - net(*inputs)).abs().max().item()
    print(f"largest difference from torch: {difference:.2g}")
    program.save(options.output)
    print(f"saved {options.output}")


if __name__ == "__main__":
    try:
        main()
    except DelegateError as error:
        sys.exit(f"error: {error}")
