"""A module with buffers that it writes."""

import torch
from torch import nn


class Counter(nn.Module):
    """A count of calls, a history, and a buffer that is only read."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("history", torch.zeros(4, 2))
        self.register_buffer("still", torch.ones(2))

    def forward(self, x):
        self.count.add_(1)
        self.history[1:3, 0] = x
        self.history.t()[1].mul_(2).add_(1)
        return self.history.sum(0) + self.count + self.still
