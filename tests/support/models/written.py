"""Models written out, small: graph networks, recommenders, scans, routing, codebooks, detectors, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.zoo import Inputs

Build = Callable[[], nn.Module]
Entry = tuple[Build, Callable[[], Inputs]]
WIDTH, HEADS = 32, 4


class Encoder(nn.Module):
    """torch's own encoder, with padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.layers(x, src_key_padding_mask=padding)


class Decoder(nn.Module):
    """torch's own decoder, over a memory with padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 2)

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        causal = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)
        return self.layers(x, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padding)


class ByHand(nn.Module):
    """Attention as tutorials write it: masked_fill before a softmax."""

    def __init__(self, layers: int = 12) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(32, 96) for _ in range(layers))
        self.outer = nn.ModuleList(nn.Linear(32, 32) for _ in range(layers))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        for inner, outer in zip(self.inner, self.outer, strict=True):
            q, k, v = (p.unflatten(-1, (4, 8)).transpose(1, 2) for p in inner(x).chunk(3, -1))
            scores = (q @ k.mT / 8**0.5).masked_fill(padding[:, None, None], -1e4)
            x = F.layer_norm(x + outer((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), (32,))
        return x


def _padded() -> Inputs:
    padding = torch.zeros(2, 20, dtype=torch.bool)
    padding[1, 12:] = True
    return torch.randn(2, 20, 32), padding


class Graph(nn.Module):
    """Messages along edges, gathered and summed up by index; `kind` is how.

    Args:
        kind: gcn, gat, gin or sage.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList(nn.Linear(32 if kind == "sage" else 16, 16) for _ in range(3))
        self.score = nn.Linear(32, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        ones = torch.ones(source.shape[0])
        degree = torch.zeros(x.shape[0]).index_add(0, target, ones).clamp(min=1)
        for layer in self.layers:
            messages = x[source]
            if self.kind == "gat":
                score = F.leaky_relu(self.score(torch.cat([messages, x[target]], -1)).squeeze(-1), 0.2).exp()
                total = torch.zeros(x.shape[0]).index_add(0, target, score)
                messages = messages * (score / (total[target] + 1e-9))[:, None]
            elif self.kind == "gcn":
                messages = messages * (degree[source] * degree[target]).rsqrt()[:, None]
            summed = torch.zeros_like(x).index_add(0, target, messages)
            if self.kind == "sage":
                x = layer(torch.cat([x, summed / degree[:, None]], -1)).relu()
            else:
                x = layer(x + summed if self.kind == "gin" else summed).relu()
        return x


def _edges() -> Inputs:
    return torch.randn(50, 16), torch.randint(0, 50, (2, 200))


class Recommender(nn.Module):
    """Embeddings of categories, their products and a tower; `kind` is dlrm, deepfm, wide or towers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.tables = nn.ModuleList(nn.Embedding(100, 16) for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16))
        self.top = nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 1))
        self.wide = nn.Linear(13, 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        found = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        vectors = torch.stack([self.bottom(numbers), *found], 1)
        if self.kind == "towers":
            users, items = vectors[:, :5].mean(1), vectors[:, 5:].mean(1)
            return F.cosine_similarity(self.top(users).tanh() * users, items)
        if self.kind == "dlrm":
            row, column = torch.triu_indices(9, 9, 1)
            products = (vectors @ vectors.mT)[:, row, column]
            return self.top(torch.cat([vectors[:, 0], products], -1)).sigmoid()
        deep = self.top(vectors.flatten(1))
        if self.kind == "deepfm":
            deep = deep + 0.5 * (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(-1, keepdim=True)
        return (deep + self.wide(numbers)).sigmoid()


def _categories() -> Inputs:
    return torch.randn(32, 13), torch.randint(0, 100, (32, 8))


def _recommender(kind: str) -> Build:
    def build() -> nn.Module:
        module = Recommender(kind)
        module(*_categories())  # makes what is lazy
        return module

    return build


class Radiance(nn.Module):
    """A radiance field along rays: sines of positions, a tower, colours summed up by what light is left."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(39, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, points: Tensor, steps: Tensor) -> Tensor:
        waves = points[..., None] * 2.0 ** torch.arange(6)
        found = self.tower(torch.cat([points, waves.sin().flatten(-2), waves.cos().flatten(-2)], -1))
        opaque = 1 - torch.exp(-F.softplus(found[..., 3]) * steps)
        left = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque[:, :-1] + 1e-10], -1), -1)
        return ((opaque * left)[..., None] * found[..., :3].sigmoid()).sum(1)


class Halved(nn.Module):
    """A module in a half type, between float32."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.module, self.dtype = module.to(dtype), dtype

    def forward(self, *inputs: Tensor) -> Tensor:
        found = self.module(*(x.to(self.dtype) if x.is_floating_point() else x for x in inputs))
        return found.float()


def _halve(build: Build, dtype: torch.dtype) -> Build:
    return lambda: Halved(build(), dtype)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU6(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.SiLU(),
        nn.Conv2d(16, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


_IMAGE = lambda: (torch.randn(1, 3, 64, 64),)  # noqa: E731
_WRITTEN: Mapping[str, Entry] = {
    "encoder_padded": (Encoder, _padded),
    "decoder_padded": (Decoder, lambda: (torch.randn(2, 7, 32), *_padded())),
    "attention_by_hand": (ByHand, _padded),
    **{kind: (lambda kind=kind: Graph(kind), _edges) for kind in ("gcn", "gat", "gin", "sage")},  # type: ignore[misc]
    **{kind: (_recommender(kind), _categories) for kind in ("dlrm", "deepfm", "wide", "towers")},
    "radiance_field": (Radiance, lambda: (torch.randn(64, 16, 3), torch.rand(64, 16))),
}
HALVES: Mapping[str, tuple[Build, Callable[[], Inputs], torch.dtype]] = {
    f"{name}_{str(dtype).removeprefix('torch.')}": (_halve(build, dtype), inputs, dtype)
    for name, build, inputs in (("convolutions", _convolutions, _IMAGE), ("by_hand", lambda: ByHand(3), _padded))
    for dtype in (torch.float16, torch.bfloat16)
}


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Conformer(nn.Module):
    """Half a feed-forward layer, attention, a gated depthwise convolution, half a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64), nn.SiLU(), nn.Linear(64, WIDTH)) for _ in range(2)
        )
        self.attention, self.norm = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), nn.LayerNorm(WIDTH)
        self.convolution = nn.Sequential(
            nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.GLU(1), nn.Conv1d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH),
            nn.BatchNorm1d(WIDTH), nn.SiLU(), nn.Conv1d(WIDTH, WIDTH, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.halves[0](x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.convolution(x.mT).mT
        return x + 0.5 * self.halves[1](x)


class SelectiveScan(nn.Module):
    """A state-space layer whose step, input and output weights depend on the input (Mamba)."""

    def __init__(self, states: int = 8) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Conv1d(WIDTH, WIDTH, 4, padding=3, groups=WIDTH)
        self.chosen, self.step = nn.Linear(WIDTH, 2 * states), nn.Linear(WIDTH, WIDTH)
        self.rates = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, gate = self.inner(x).chunk(2, -1)
        x = F.silu(self.mix(x.mT)[..., : x.shape[1]].mT)
        step, (b, c) = F.softplus(self.step(x)), self.chosen(x).chunk(2, -1)
        decay = torch.exp(-step[..., None] * self.rates.exp())
        given = (step * x)[..., None] * b[:, :, None]
        state, found = torch.zeros_like(given[:, 0]), []
        for i in range(x.shape[1]):
            state = decay[:, i] * state + given[:, i]
            found.append((state * c[:, i, None]).sum(-1))
        return self.outer(torch.stack(found, 1) * F.silu(gate))


class Attended(nn.Module):
    """Attention of another kind: `kind` is retention, linear (a running sum) or window (near places, by distance)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner, self.outer = kind, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.GroupNorm(HEADS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(_heads, self.inner(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        far = place[:, None] - place
        slope = 2.0 ** -torch.arange(1.0, HEADS + 1)[:, None, None]
        if self.kind == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            sums = torch.cumsum(k[..., None] * v[..., None, :], 2)
            y = torch.einsum("bhld,bhlde->bhle", q, sums) / (q * k.cumsum(2)).sum(-1, keepdim=True)
        elif self.kind == "retention":
            decay = torch.where(far >= 0, (1 - slope / 8) ** far.clamp(min=0), 0.0)
            y = (q @ k.mT * decay) @ v / WIDTH**0.5
        else:
            seen = (far >= 0) & (far < 4)
            scores = (q @ k.mT / 8**0.5 - slope * far.abs()).masked_fill(~seen, -torch.inf)
            y = scores.softmax(-1) @ v
        return x + self.outer(self.norm(y.transpose(1, 2).flatten(2).mT).mT)


class Modulated(nn.Module):
    """A convolution whose weights each image scales by a style of its own (StyleGAN2)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.style = nn.Parameter(torch.randn(12, 8, 3, 3) * 0.1), nn.Linear(16, 8)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        weight = self.weight * (self.style(style) + 1)[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        y = F.conv2d(x.reshape(1, -1, height, width), weight.flatten(0, 1), padding=1, groups=batch)
        y = F.leaky_relu(y.reshape(batch, -1, height, width), 0.2)
        return F.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)


class Sparsemax(nn.Module):
    """Features picked by projections onto the simplex, step by step (TabNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.picks = nn.ModuleList(nn.Linear(16, 20) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(20, 32) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        prior, state, total = torch.ones_like(x), x[:, :16], 0
        for pick, layer in zip(self.picks, self.layers, strict=True):
            mask = self.projected(pick(state) * prior)
            prior = prior * (1.3 - mask)
            shown, state = F.glu(layer(mask * x), -1).relu(), F.glu(layer(x), -1)
            total = total + shown
        return total

    @staticmethod
    def projected(scores: Tensor) -> Tensor:
        ordered = scores.sort(-1, descending=True)[0]
        sums, ranks = ordered.cumsum(-1) - 1, torch.arange(1, scores.shape[-1] + 1)
        count = (ranks * ordered > sums).sum(-1, keepdim=True)
        return (scores - sums.gather(-1, count - 1) / count).relu()


class Capsules(nn.Module):
    """Votes of capsules, weighted by how well they agree."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.votes = nn.Conv2d(1, 32, 5, 2), nn.Parameter(torch.randn(5, 144, 8, 8) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        u = self.squashed(self.first(x).unflatten(1, (4, 8)).permute(0, 1, 3, 4, 2).flatten(1, 3))
        votes = torch.einsum("bni,onij->bonj", u, self.votes)
        logits = torch.zeros_like(votes[..., :1])
        for _ in range(3):
            found = self.squashed((logits.softmax(1) * votes).sum(2, keepdim=True))
            logits = logits + (votes * found).sum(-1, keepdim=True)
        return found.squeeze(2).norm(dim=-1)

    @staticmethod
    def squashed(x: Tensor) -> Tensor:
        size = x.square().sum(-1, keepdim=True)
        return size / (1 + size) * x / (size + 1e-8).sqrt()


class Deformable(nn.Module):
    """Attention to a few places that each query chooses, between pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.weights = nn.Linear(WIDTH, HEADS * 4 * 2), nn.Linear(WIDTH, HEADS * 4)
        self.values, self.outer = nn.Conv2d(WIDTH, WIDTH, 1), nn.Linear(WIDTH, WIDTH)

    def forward(self, queries: Tensor, image: Tensor) -> Tensor:
        batch, count, _ = queries.shape
        places = self.offsets(queries).tanh().view(batch, count, HEADS, 4, 2).transpose(1, 2).flatten(0, 1)
        values = self.values(image).unflatten(1, (HEADS, -1)).flatten(0, 1)
        seen = F.grid_sample(values, places, align_corners=False)
        weights = self.weights(queries).view(batch, count, HEADS, 4).softmax(-1).transpose(1, 2).flatten(0, 1)
        found = (seen * weights[:, None]).sum(-1)
        return self.outer(found.unflatten(0, (batch, HEADS)).flatten(1, 2).mT)


class Codebook(nn.Module):
    """An image by the nearest vectors of a codebook (VQ-VAE)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 8, 4, 2, 1))
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Sigmoid()
        )
        self.codes = nn.Embedding(32, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x).permute(0, 2, 3, 1)
        codes = self.codes.weight
        far = z.square().sum(-1, keepdim=True) - 2 * z @ codes.T + codes.square().sum(-1)
        picked = far.argmin(-1)
        return self.decoder(self.codes(picked).permute(0, 3, 1, 2)), picked


class Viterbi(nn.Module):
    """The best path of labels through scores and transitions (a CRF's decoder)."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.transitions = nn.Linear(16, 5), nn.Parameter(torch.randn(5, 5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, origins = self.scores(x), []
        best = scores[:, 0]
        for i in range(1, x.shape[1]):
            best, origin = (best[:, :, None] + self.transitions).max(1)
            best = best + scores[:, i]
            origins.append(origin)
        value, label = best.max(-1)
        path = [label]
        for origin in reversed(origins):
            path.append(origin.gather(1, path[-1][:, None]).squeeze(1))
        return value, torch.stack(path[::-1], 1)


class Points(nn.Module):
    """Attention of points to those next to them."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.inner, self.last = nn.Linear(3, 16), nn.Linear(8, 48), nn.Linear(16, 4)

    def forward(self, places: Tensor, x: Tensor) -> Tensor:
        near = torch.cdist(places, places).topk(4, largest=False)[1]
        q, k, v = self.inner(x).chunk(3, -1)
        rows = torch.arange(x.shape[0])[:, None, None]
        far = self.place(places[:, :, None] - places[rows, near])
        weights = (q[:, :, None] - k[rows, near] + far).softmax(2)
        return self.last((weights * (v[rows, near] + far)).sum(2)).amax(1)


class Detector(nn.Module):
    """Boxes as distances to four sides, the best by score, and which of them no better one covers (FCOS)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.ReLU())
        self.scores, self.sides = nn.Conv2d(16, 1, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.body(x)
        scores, best = self.scores(found).flatten().topk(8)
        sides = F.softplus(self.sides(found)).flatten(2)[0].T[best] * 4
        row, column = best // found.shape[-1], best % found.shape[-1]
        middle = torch.stack([column, row], -1) * 4.0 + 2
        boxes = torch.cat([middle - sides[:, :2], middle + sides[:, 2:]], -1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
        shared = (torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:]) - low).clamp(min=0).prod(-1)
        covers = shared / (area[:, None] + area - shared) > 0.3
        keep = torch.ones(8, dtype=torch.bool)
        for i in range(8):
            keep = keep & ~(covers[i] & keep[i] & (torch.arange(8) > i))
        return boxes, scores.sigmoid(), keep


class Hashed(nn.Module):
    """Embeddings of hashes of pairs of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(64, 16), nn.Linear(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        pairs = tokens * 2654435761 ^ tokens.roll(1, -1) * 40503
        pairs = (pairs ^ (pairs >> 15)) & 0x7FFFFFFF
        return self.last(self.table(pairs % 64).mean(1))


def _sequence() -> Inputs:
    return (torch.randn(2, 12, WIDTH),)


UNCOMMON: Mapping[str, Entry] = {
    "conformer": (Conformer, _sequence),
    "selective_scan": (SelectiveScan, _sequence),
    **{f"{k}_attention": (lambda k=k: Attended(k), _sequence) for k in ("retention", "linear", "window")},  # type: ignore[misc]
    "modulated": (Modulated, lambda: (torch.randn(2, 8, 9, 7), torch.randn(2, 16))),
    "sparsemax": (Sparsemax, lambda: (torch.randn(8, 20),)),
    "capsules": (Capsules, lambda: (torch.randn(1, 1, 16, 16),)),
    "deformable": (Deformable, lambda: (torch.randn(1, 10, WIDTH), torch.randn(1, WIDTH, 9, 7))),
    "codebook": (Codebook, lambda: (torch.randn(1, 3, 24, 20),)),
    "viterbi": (Viterbi, lambda: (torch.randn(16, 9, 16),)),
    "points": (Points, lambda: (torch.randn(2, 24, 3), torch.randn(2, 24, 8))),
    "detector": (Detector, lambda: (torch.randn(1, 3, 36, 28),)),
    "hashed": (Hashed, lambda: (torch.randint(0, 10**6, (4, 9)),)),
}


def _steps() -> Inputs:
    return (torch.randn(1, 12, 16),)


def _recurrent(cls: type[nn.RNNBase], **options: Any) -> Entry:
    return lambda: cls(16, 32, num_layers=3, batch_first=True, **options), _steps


RECURRENT: Mapping[str, Entry] = {
    "lstm": _recurrent(nn.LSTM),
    "lstm_bidirectional": _recurrent(nn.LSTM, bidirectional=True),
    "lstm_projected": _recurrent(nn.LSTM, proj_size=16),
    "gru": _recurrent(nn.GRU),
    "gru_bidirectional": _recurrent(nn.GRU, bidirectional=True),
}

WRITTEN: Mapping[str, Entry] = {
    **_WRITTEN,
    **{name: (build, inputs) for name, (build, inputs, _) in HALVES.items()},
    **UNCOMMON,
    **RECURRENT,
}
