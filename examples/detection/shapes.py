"""Images with squares and discs on a noisy background, and their boxes. Needs no torch."""

from __future__ import annotations

from typing import Any

import numpy as np

LABELS = ("square", "disc")
SIZE = 64  # height and width of an image in pixels
Array = np.ndarray[Any, np.dtype[Any]]


def draw(random: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return an image (3, SIZE, SIZE) with one to four shapes, their boxes (count, 4), and their labels (count).

    A box is left, top, right, bottom in pixels.
    """
    image = random.uniform(0, 0.4, (3, 1, 1)) + random.normal(0, 0.05, (3, SIZE, SIZE))
    rows, columns = np.mgrid[:SIZE, :SIZE] + 0.5
    boxes: list[tuple[float, ...]] = []
    labels = []
    for _ in range(random.integers(1, 5)):
        radius = random.uniform(6, 12)
        x, y = random.uniform(radius, SIZE - radius, 2)
        if any(abs(x - (b[0] + b[2]) / 2) < 24 and abs(y - (b[1] + b[3]) / 2) < 24 for b in boxes):
            continue  # shapes do not overlap
        label = int(random.integers(2))
        distance = np.maximum(abs(columns - x), abs(rows - y)) if label == 0 else np.hypot(columns - x, rows - y)
        image[:, distance < radius] = random.uniform(0.6, 1, (3, 1))
        boxes.append((x - radius, y - radius, x + radius, y + radius))
        labels.append(label)
    return image.astype(np.float32), np.array(boxes, np.float32), np.array(labels)
