"""A custom operator in a model: its rule for torch.export, its kernel without torch, and a program with it.

python examples/custom_operator/sharpen.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from kernels import TABLE
from torch import nn

import delegate
from delegate.errors import DelegateError

HERE = Path(__file__).parent


@torch.library.custom_op("examples::sharpen", mutates_args=())
def sharpen(x: torch.Tensor, amount: float) -> torch.Tensor:
    """Add the difference from the mean of the neighbours, (batch, channels, height, width)."""
    mean = nn.functional.avg_pool2d(nn.functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    return x + amount * (x - mean)


@sharpen.register_fake
def _(x: torch.Tensor, amount: float) -> torch.Tensor:
    return torch.empty_like(x)


class Net(nn.Module):
    """A network with the operator between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(sharpen(torch.relu(self.first(x)), 0.5))


def main() -> None:
    """Compile with the kernel, save, and run the file in a process without torch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("."), help="folder to write to")
    parser.add_argument("--backend", action="append", help="backend; several in order of preference; default: all")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    torch.manual_seed(0)
    model, x = Net().eval(), torch.rand(1, 3, 16, 16)
    program = delegate.to_backend(torch.export.export(model, (x,)), options.backend, kernels=[TABLE, "portable"])
    print(program.report)
    file, image, result = (options.folder / name for name in ("sharpen.dlg", "image.npy", "result.npy"))
    program.save(file)
    np.save(image, x.numpy())
    subprocess.run([sys.executable, HERE / "run.py", file, image, result], check=True)
    with torch.no_grad():
        print(f"largest difference from torch: {np.abs(np.load(result) - model(x).numpy()).max():.2g}")


if __name__ == "__main__":
    try:
        main()
    except DelegateError as error:
        sys.exit(f"error: {error}")
