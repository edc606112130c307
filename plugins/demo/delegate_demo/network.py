"""The network and the data of the demo.

The data are the 1,797 handwritten digits of 8 x 8 pixels that scikit-learn has. They are a copy of the test set of
"Optical Recognition of Handwritten Digits", a UCI collection. A fixed half of them is held out from training.

The light on each image differs by up to a factor of 50, as in photos by day and by night. An integer range that is
fixed for all images has few steps for the dark ones, so int8 has a cost that the table shows.

`python -m delegate_demo.network` trains the network and writes its weights, in about ten seconds.
"""

from __future__ import annotations

from importlib import resources
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

CHECKPOINT = resources.files("delegate_demo") / "weights.pt"
_DARKEST = np.float32(0.02)  # of the full light


class Digits(NamedTuple):
    """Images of digits, float32 of shape [N, 1, 8, 8], and their classes, int64 of shape [N]."""

    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]


class Network(nn.Module):
    """A small convolutional network: images [N, 1, 8, 8] -> logits [N, 10].

    It has no biases, so the light of an image scales all logits and does not change their order.
    """

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
        self.classifier = nn.Linear(64, 10, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits of images."""
        return cast(torch.Tensor, self.classifier(self.features(images).flatten(1)))


def _block(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False), nn.ReLU()


def digits() -> tuple[Digits, Digits]:
    """Return the training data in full light and the held-out data in changing light."""
    data = load_digits()
    images = (data.images[:, None] / 16).astype(np.float32)
    labels = data.target.astype(np.int64)
    split = train_test_split(images, labels, test_size=0.5, random_state=0, stratify=labels)
    training, held_out, training_labels, held_out_labels = split
    return Digits(training, training_labels), Digits(in_changing_light(held_out, 0), held_out_labels)


def in_changing_light(images: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """Return images with a light of their own, between 0.02 and 1 on a logarithmic scale."""
    exponents = np.random.default_rng(seed).random((len(images), 1, 1, 1), dtype=np.float32)
    result: np.ndarray[Any, Any] = images * _DARKEST**exponents
    return result


def load_trained() -> Network:
    """Return the network with its trained weights, in eval mode."""
    network = Network()
    with resources.as_file(CHECKPOINT) as file:
        network.load_state_dict(torch.load(file, weights_only=True))
    return network.eval()


EPOCHS, BATCH = 20, 64


def train() -> None:
    """Train, print the accuracy on the held-out images, and write the weights."""
    torch.manual_seed(0)
    training, held_out = digits()
    images, labels = map(torch.from_numpy, training)
    network = Network().train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-2)
    batches = -(-len(labels) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, epochs=EPOCHS, steps_per_epoch=batches)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(labels)).split(BATCH):  # type: ignore[no-untyped-call]
            loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        classes = network(torch.from_numpy(held_out.images)).argmax(1).numpy()
    print(f"accuracy on held-out images: {(classes == held_out.labels).mean():.2%}")
    with resources.as_file(CHECKPOINT) as file:
        torch.save(network.state_dict(), file)


if __name__ == "__main__":
    train()
