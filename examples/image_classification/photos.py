"""The images of this example: two photographs of scikit-learn, and files of your own. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

LABELS = ("temple", "flower")
SIZE = 128  # height and width of an image that the network gets, in pixels
Array = np.ndarray[Any, np.dtype[Any]]


def crops(count: int, seed: int) -> tuple[Array, Array]:
    """Return random square crops of each photograph, (2 * count, 3, SIZE, SIZE), and their labels."""
    random = np.random.default_rng(seed)
    images, labels = [], []
    for label, photo in enumerate(load_sample_images().images):
        for _ in range(count):
            side = int(random.integers(150, 400))
            top, left = (int(random.integers(0, extent - side)) for extent in photo.shape[:2])
            images.append(normalise(Image.fromarray(photo[top : top + side, left : left + side])))
            labels.append(label)
    return np.stack(images), np.array(labels)


def read(path: Path) -> Array:
    """Return the centre of an image file, (3, SIZE, SIZE); raises OSError for a file that is no image."""
    with Image.open(path) as image:
        side = min(image.size)
        left, top = ((extent - side) // 2 for extent in image.size)
        return normalise(image.convert("RGB").crop((left, top, left + side, top + side)))


def normalise(image: Image.Image) -> Array:
    """Return an image as float32 (3, SIZE, SIZE) with values in [-1, 1]."""
    pixels = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR), np.float32)
    return np.ascontiguousarray((pixels / 127.5 - 1).transpose(2, 0, 1))
