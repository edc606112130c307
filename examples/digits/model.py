"""The network and the data of the digits example.

The data are the 1,797 handwritten digits of 8 x 8 pixels that scikit-learn carries (a copy of the test set of the UCI
collection "Optical Recognition of Handwritten Digits"). A fixed fifth of them is held out from training.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

CHECKPOINT = Path(__file__).parent / "digits.pt"


class DigitsNet(nn.Module):
    """A small convolutional network: images [N, 1, 8, 8] in [0, 1] -> logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_block(1, 32),
            *_block(32, 32),
            nn.MaxPool2d(2),
            *_block(32, 64),
            *_block(64, 64),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


def _block(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    return conv, nn.BatchNorm2d(channels_out), nn.ReLU()


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images, held-out images (float32 [N, 1, 8, 8]), training labels, held-out labels (int64 [N])."""
    data = load_digits()
    images = (data.images[:, None] / 16).astype(np.float32)
    labels = data.target.astype(np.int64)
    train, held_out, train_labels, held_out_labels = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return train, held_out, train_labels, held_out_labels


def trained() -> DigitsNet:
    """The network with the weights of the checkpoint, in eval mode."""
    net = DigitsNet()
    net.load_state_dict(torch.load(CHECKPOINT, weights_only=True))
    return net.eval()
