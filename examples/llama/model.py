"""A small decoder as Llama's: RMS norms, rotary positions, grouped heads, gated MLP, and a static cache of keys."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, GROUPS, LAYERS, LENGTH = 97, 64, 4, 2, 2, 80
HEAD = WIDTH // HEADS


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (..., positions, HEAD) turned by the angles of its positions (positions, HEAD)."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, GROUPS * HEAD, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("keys", torch.zeros(1, GROUPS, LENGTH, HEAD))
        self.register_buffer("values", torch.zeros(1, GROUPS, LENGTH, HEAD))

    def forward(
        self, x: torch.Tensor, positions: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        self.keys.index_copy_(2, positions, rotated(k, cos, sin))
        self.values.index_copy_(2, positions, v)
        keys, values = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (self.keys, self.values))
        found = F.scaled_dot_product_attention(rotated(q, cos, sin), keys, values, attn_mask=mask)
        return self.o(found.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.mlp_norm = Norm(), Attention(), Norm()
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, *where: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x), *where)
        inner = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(inner)) * self.up(inner))


class Llama(nn.Module):
    """tokens (1, n), positions (n) -> logits of the last position (1, VOCABULARY)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        angles = torch.outer(torch.arange(LENGTH), 10000 ** (-torch.arange(0, HEAD, 2) / HEAD)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        mask = torch.arange(LENGTH) <= positions[:, None]
        for layer in self.layers:
            x = layer(x, positions, self.cos[positions], self.sin[positions], mask)
        return self.head(self.norm(x[:, -1]))
