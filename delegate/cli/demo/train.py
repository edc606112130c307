"""Train the network of the demo and write its weights, in about ten seconds: python -m delegate.cli.demo.train"""

from __future__ import annotations

from importlib import resources

import torch
from torch import nn

from delegate.cli.demo.network import CHECKPOINT, Network, digits

EPOCHS, BATCH = 20, 64


def main() -> None:
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
    main()
