"""Train a small detector on drawn shapes, and compile it with its suppression of overlapping boxes.

python examples/detection/compile.py -o shapes.dlg --backend xnnpack
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from shapes import LABELS, SIZE, draw
from suppression import nms
from torch import nn

import delegate
from delegate.errors import DelegateError

STRIDE, BEST, THRESHOLD, OVERLAP = 4, 24, 0.5, 0.3


class Features(nn.Module):
    """images (batch, 3, SIZE, SIZE) -> for each cell: logits of the labels, then four distances to a box's sides."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 48, 48)
        strides = (2, 2, 1, 1)
        blocks = [
            nn.Sequential(nn.Conv2d(a, b, 3, stride, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b, stride in zip(widths, widths[1:], strides, strict=False)
        ]
        self.layers = nn.Sequential(*blocks, nn.Conv2d(48, len(LABELS) + 4, 3, padding=1))
        nn.init.constant_(self.layers[-1].bias[: len(LABELS)], -3.0)  # few cells have a shape
        side = torch.arange(SIZE // STRIDE) * STRIDE + STRIDE / 2
        self.register_buffer("centers", torch.stack(torch.meshgrid(side, side, indexing="xy"), -1).reshape(-1, 2))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cells = self.layers(images).flatten(2).transpose(1, 2)
        logits, sides = cells[..., : len(LABELS)], cells[..., len(LABELS) :].exp() * STRIDE
        return logits, torch.cat([self.centers - sides[..., :2], self.centers + sides[..., 2:]], -1)


class Detector(nn.Module):
    """image (3, SIZE, SIZE) -> boxes (count, 4), scores (count), labels (count); the count depends on the image."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.features = features

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, boxes = self.features(image[None])
        scores, labels = logits[0].sigmoid().max(1)
        scores, best = scores.topk(BEST)
        boxes, labels = boxes[0][best], labels[best]
        kept = nms(boxes, scores, OVERLAP)
        boxes, scores, labels = boxes[kept], scores[kept], labels[kept]
        sure = torch.nonzero(scores > THRESHOLD)[:, 0]
        return boxes[sure], scores[sure], labels[sure]


def train(model: Features, steps: int, random: np.random.Generator) -> None:
    """Fit the network to drawn images, 16 in each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        drawn = [draw(random) for _ in range(16)]
        logits, boxes = model(torch.from_numpy(np.stack([image for image, _, _ in drawn])))
        target, loss = torch.zeros_like(logits), torch.zeros(())
        for i, (_, expected, labels) in enumerate(drawn):
            for box, label in zip(torch.from_numpy(expected), labels, strict=True):
                near = ((model.centers - (box[:2] + box[2:]) / 2).abs().amax(1) < STRIDE).nonzero()[:, 0]
                target[i, near, label] = 1
                loss = loss + (boxes[i, near] - box).abs().mean() / 50
        loss = loss + nn.functional.binary_cross_entropy_with_logits(logits, target, pos_weight=torch.tensor(4.0)) * 10
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss.item():.3f}")


def main() -> None:
    """Train, compile, compare with torch, and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("shapes.dlg"), help="file to write")
    parser.add_argument("--steps", type=int, default=200, help="training steps; 0: random weights")
    parser.add_argument("--backend", action="append", help="backend; several in order of preference; default: all")
    options = parser.parse_args()
    if options.steps < 0:
        parser.error(f"--steps {options.steps}: it must be 0 or more")

    torch.manual_seed(0)
    random = np.random.default_rng(0)
    features = Features()
    train(features, options.steps, random)
    model = Detector(features).eval()
    drawn = [draw(random) for _ in range(20)]
    with torch.no_grad():
        exported = torch.export.export(model, (torch.from_numpy(drawn[0][0]),))
        program = delegate.to_backend(exported, options.backend)
        print(program.report.summary)
        correct = total = 0
        error = 0.0
        for image, _, labels in drawn:
            boxes, scores, found = program(torch.from_numpy(image))
            expected = model(torch.from_numpy(image))
            if len(boxes) != len(expected[0]):
                sys.exit(f"error: {len(boxes)} boxes, but torch has {len(expected[0])}")
            error = max([error, *(abs(scores - expected[1])).tolist()])
            total += len(labels)
            correct += len(labels) if sorted(found.tolist()) == sorted(labels.tolist()) else 0
    print(f"{correct} of {total} shapes are in images whose shapes are all found")
    print(f"largest difference of a score from torch: {error:.2g}")
    program.save(options.output)
    print(f"saved {options.output}")


if __name__ == "__main__":
    try:
        main()
    except DelegateError as error:
        sys.exit(f"error: {error}")
