"""Detect shapes with a program of `compile.py`. Needs no torch.

python examples/detection/run.py shapes.dlg --images 3
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from shapes import LABELS, draw

import delegate
from delegate.errors import DelegateError


def main() -> None:
    """Print the shapes of some drawn images, and what the program detects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the file that compile.py wrote")
    parser.add_argument("--images", type=int, default=3, help="number of images to draw")
    options = parser.parse_args()
    if options.images < 1:
        parser.error(f"--images {options.images}: it must be 1 or more")
    random = np.random.default_rng(7)
    with delegate.load(options.program) as program:
        for i in range(options.images):
            image, _, labels = draw(random)
            boxes, scores, found = program(image)
            print(f"image {i}: drawn {', '.join(LABELS[label] for label in labels)}")
            for box, score, label in zip(boxes, scores, found, strict=True):
                print(f"  {LABELS[label]:6} {score:4.0%}  from {box[:2].round(1)} to {box[2:].round(1)}")


if __name__ == "__main__":
    try:
        main()
    except DelegateError as error:
        sys.exit(f"error: {error}")
