"""Run a program with a custom operator, without torch: python run.py FILE IMAGE.npy RESULT.npy"""

from __future__ import annotations

import sys

import numpy as np
from kernels import TABLE

import delegate
from delegate.errors import DelegateError


def main(arguments: list[str]) -> None:
    """Run the program, and save its result."""
    if len(arguments) != 3:
        sys.exit(f"error: 3 files are needed, not {len(arguments)}: python run.py FILE IMAGE.npy RESULT.npy")
    file, image, result = arguments
    with delegate.load(file, kernels=[TABLE, "portable"]) as program:
        np.save(result, program(np.load(image)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (DelegateError, OSError) as error:
        sys.exit(f"error: {error}")
