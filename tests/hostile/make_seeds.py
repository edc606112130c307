"""Makes the seed programs of the fuzzer, which lie in `seeds/`: small, and between them of every kind.

python -m tests.hostile.make_seeds
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.export import Dim, export

import delegate
from delegate.program import file

SEEDS = Path(__file__).parent / "seeds"


class Block(nn.Module):
    """A module out of a function, with some parameters and buffers."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args):
        return self.function(self, *args)


def _views(m, x):
    y = x.permute(2, 0, 1)[:, 1:, ::2].unsqueeze(0).expand(2, -1, -1, -1)
    parts = x.unfold(2, 2, 1), x.diagonal(0, 0, 1), torch.as_strided(x, (2, 3), (1, 2), 1), *x.chunk(2, 1), *x.unbind(0)
    return y.flatten(1) + 1, *(p * 2 for p in parts), x.reshape(-1)[3:9].view(2, 3).T.contiguous()


def _columns(m, x):
    y = torch.nn.functional.unfold(x, 2, dilation=1, padding=1, stride=2)
    z = torch.nn.functional.pad(x, (1, 2, 1, 1), mode="reflect")
    return y, torch.nn.functional.interpolate(z, scale_factor=1.5, mode="bilinear"), x.repeat_interleave(2, 1)


def _lookup(m, i, x):
    y = m.table(i)
    top = torch.topk(y, 2, -1)
    return (
        top.values,
        y.gather(-1, top.indices),
        torch.scatter_add(x, 0, i, x),
        x.index_put((i,), x[:1], accumulate=True),
    )


def _attention(m, x):
    q, k, v = (x @ m.w).chunk(3, -1)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.nn.functional.layer_norm(x + y, (4,)).softmax(-1)


def _cached(m, x, at):
    m.cache.index_copy_(0, at, x)
    return m.cache.sum(0) + x


def _numbers(m, x, n):
    k = n.item()
    torch._check(k >= 1)
    torch._check(k <= 4)
    return x.new_ones(k) * 2, torch.nonzero(x), x[x > 0]


def _loop(m, x):
    return torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2 + 1), (torch.tensor(0), x))


def _scan(m, x):
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, e: (c + e, c * e), x[0] * 0, x)


def _signal(m, x):
    return torch.fft.rfft(x).abs(), torch.linalg.inv(x @ x.T + torch.eye(3)), x.cumsum(1), x.to(torch.bfloat16) * 2


def _written(m, x):
    x.mul_(2)
    return x + 1


X = torch.linspace(-1, 1, 24)
S = Dim.AUTO
CONV = {
    "conv": nn.Conv2d(2, 4, 3, padding=1),
    "deep": nn.Conv2d(4, 4, 3, groups=4),
    "up": nn.ConvTranspose2d(4, 2, 2, 2),
}


def _conv(m, x):
    return m.up(torch.max_pool2d(m.deep(m.conv(x)).relu(), 2, 1, ceil_mode=True)), torch.nn.functional.avg_pool2d(x, 2)


def programs():
    """Name -> what is lowered: an exported program."""
    cases = {
        "mlp": (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)), (X[:8].view(2, 4),), None),
        "conv": (Block(_conv, **CONV), (X[:32].repeat(4)[:72].view(1, 2, 6, 6),), None),
        "views": (Block(_views), (X.view(2, 4, 3),), None),
        "columns": (Block(_columns), (X.view(1, 2, 3, 4),), None),
        "lookup": (Block(_lookup, table=nn.Embedding(6, 5)), (torch.tensor([1, 0, 5]), X[:6]), None),
        "attention": (Block(_attention, w=X[:12].repeat(4).view(4, 12)), (X.view(2, 3, 4),), None),
        "dynamic": (Block(lambda m, x: (x[: x.shape[0] // 2] * x.shape[0], x.flatten())), (X.view(4, 6),), ({0: S},)),
        "resized": (
            Block(lambda m, x: torch.nn.functional.interpolate(x, scale_factor=2)), (X.view(1, 2, 3, 4),), ({2: S},)
        ),
        "numbers": (Block(_numbers), (X[:5], torch.tensor(3)), None),
        "branch": (
            Block(lambda m, x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a.sin() * 2, (x,))), (X[:4],), None
        ),
        "loop": (Block(_loop), (X[:4],), None),
        "scan": (Block(_scan), (X.view(4, 6),), None),
        "cached": (Block(_cached, cache=torch.zeros(3, 4)), (X[:4].view(1, 4), torch.tensor([1])), None),
        "signal": (Block(_signal), (X.view(3, 8),), None),
        "written": (Block(_written), (X[:4].clone(),), None),
    }  # fmt: skip
    for name, (module, inputs, shapes) in cases.items():
        yield name, export(module.eval(), inputs, dynamic_shapes=None if shapes is None else {"args": shapes})


def _kept(exported):
    """A program whose partitions all run on their fallbacks: their blobs go to no vendor's parser."""
    config = {"version": 1, "backends": ["xnnpack"], "fallback": {"keep": True, "policy": "allow"}}
    kept = delegate.to_backend(exported, config=config).program
    return kept._replace(delegates=tuple(spec._replace(backend="absent") for spec in kept.delegates))


def main() -> None:
    """Write them."""
    SEEDS.mkdir(exist_ok=True)
    torch.manual_seed(0)
    for name, exported in programs():
        delegate.to_backend(exported, []).save(SEEDS / f"{name}.dlg")
    given = (X[:8].view(2, 4),)
    file.save(_kept(export(nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval(), given)), SEEDS / "fallback.dlg")


if __name__ == "__main__":
    main()
