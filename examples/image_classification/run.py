"""Classify images with a program of `compile.py`. Needs no torch.

    python examples/image_classification/run.py photos.dlg [IMAGE ...]

Without images it classifies some crops of the two photographs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from photos import LABELS, crops, read

import delegate
from delegate.errors import DelegateError


def main() -> None:
    """Print the label and the probability of each image."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the file that compile.py wrote")
    parser.add_argument("images", nargs="*", type=Path, help="image files; default: crops of the photographs")
    options = parser.parse_args()
    with delegate.load(options.program) as program:
        named = [(str(path), read(path)) for path in options.images]
        if not named:
            images, labels = crops(3, seed=2)
            named = [(f"crop of the {LABELS[label]}", image) for image, label in zip(images, labels, strict=True)]
        for name, image in named:
            logits = program(image[None])[0]
            probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
            best = int(logits.argmax())
            print(f"{name}: {LABELS[best]} ({probabilities[best]:.0%})")


if __name__ == "__main__":
    try:
        main()
    except (DelegateError, OSError) as error:
        sys.exit(f"error: {error}")
