"""Fit the last layer of a timm network to crops of two photographs, and compile the network to one file.

    python examples/image_classification/compile.py -o photos.dlg --backend xnnpack

The photographs come with scikit-learn. All other weights of the network are random, since no weights are downloaded.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from networks import timm
from photos import LABELS, crops
from torch import nn

import delegate
from delegate.errors import DelegateError, did_you_mean

TRAINING, TEST = 40, 20  # crops of each photograph


def fit(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Set the statistics of the normalisation layers, and solve for the last layer by ridge regression."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()
            module.momentum = None  # the average of all batches
    model.train()
    with torch.no_grad():
        for batch in images.split(16):
            model(batch)
        model.eval()
        features = model.forward_head(model.forward_features(images), pre_logits=True)
        features = torch.cat([features, torch.ones(len(features), 1)], 1)
        targets = 20 * (nn.functional.one_hot(labels).float() - 0.5)
        gram = features.T @ features
        gram += gram.diagonal().mean() * 1e-2 * torch.eye(len(gram))
        solution = torch.linalg.solve(gram, features.T @ targets)
        classifier = model.get_classifier()
        classifier.weight.copy_(solution[:-1].T)
        classifier.bias.copy_(solution[-1])


def main() -> None:
    """Fit, compile, compare with torch, and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("photos.dlg"), help="file to write")
    parser.add_argument("--model", default="resnet10t", help="a convolutional network of timm")
    parser.add_argument("--backend", action="append", help="backend; several in order of preference; default: all")
    options = parser.parse_args()
    if not timm.is_model(options.model):
        parser.error(f"timm has no model {options.model!r}: {did_you_mean(options.model, timm.list_models())}")

    torch.manual_seed(0)
    model = timm.create_model(options.model, num_classes=len(LABELS))
    images, labels = crops(TRAINING, seed=0)
    fit(model, torch.from_numpy(images), torch.from_numpy(labels))

    program = delegate.to_backend(torch.export.export(model, (torch.from_numpy(images[:1]),)), options.backend)
    print(program.report.summary)
    images, labels = crops(TEST, seed=1)
    with torch.no_grad():
        expected = model(torch.from_numpy(images)).numpy()
    results = np.concatenate([program(torch.from_numpy(image[None])).numpy() for image in images])
    print(f"{(results.argmax(1) == labels).mean():.0%} of {len(images)} other crops are classified correctly")
    print(f"largest difference from torch: {np.abs(results - expected).max():.2g}")
    program.save(options.output)
    print(f"saved {options.output}")


if __name__ == "__main__":
    try:
        main()
    except DelegateError as error:
        sys.exit(f"error: {error}")
