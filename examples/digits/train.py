"""Train the digits network and write its checkpoint: python examples/digits/train.py"""

from __future__ import annotations

import torch
from model import CHECKPOINT, DigitsNet, digits
from torch import nn

EPOCHS, BATCH = 30, 64


def main() -> None:
    torch.manual_seed(0)
    images, held_out, labels, held_out_labels = map(torch.from_numpy, digits())
    net = DigitsNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, epochs=EPOCHS, steps_per_epoch=-(-len(images) // BATCH)
    )
    for epoch in range(EPOCHS):
        net.train()
        for chosen in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        net.eval()
        with torch.no_grad():
            accuracy = (net(held_out).argmax(1) == held_out_labels).float().mean().item()
        print(f"epoch {epoch + 1:2}: held-out accuracy {accuracy:.1%}")
    torch.save(net.state_dict(), CHECKPOINT)
    print(f"saved {CHECKPOINT.name}, {CHECKPOINT.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
