"""Small models of users for `benchmarks.placement`, written out, with random weights and a fixed seed.

Each entry of `WRITTEN` builds a module and example inputs. They run in float32 unless the name says otherwise, and
take less than 100 ms in eager mode on two cores.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.engines import Leaves
from tests.support import models, zoo
from tests.support.zoo import Inputs

with zoo.libraries():  # once, for all processes that fork from one that has imported this module
    import timm  # noqa: F401
    import transformers.modeling_utils  # noqa: F401

Entry = tuple[Callable[[], nn.Module], Callable[[], Inputs]]


class Function(nn.Module):
    """A function without weights as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def _function(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Entry:
    """Return the entry of a function of uniform random tensors of these shapes."""
    return lambda: Function(function), lambda: tuple(torch.rand(shape) for shape in shapes)


def _normal(build: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Entry:
    """Return the entry of a module of normally distributed tensors of these shapes."""
    return build, lambda: tuple(torch.randn(shape) for shape in shapes)


def mlp(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers of these widths with activations between them."""
    layers: list[nn.Module] = []
    for first, second in itertools.pairwise(widths):
        layers += [nn.Linear(first, second), activation()]
    return nn.Sequential(*layers[:-1])


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return [batch, heads, length, width of a head] of [batch, length, width]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


# -- attention ---------------------------------------------------------------------------------------------------------


def rotate(x: Tensor) -> Tensor:
    """Apply rotary position embedding to [batch, heads, length, width]."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[2])[:, None] * rates
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class GroupedQueries(nn.Module):
    """Causal self-attention whose heads share keys and values in groups, with rotary positions."""

    def __init__(self, width: int = 256, heads: int = 8, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, width // heads * groups, bias=False)
        self.values = nn.Linear(width, width // heads * groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k = rotate(split_heads(self.query(x), self.heads)), rotate(split_heads(self.keys(x), self.groups))
        v = split_heads(self.values(x), self.groups)
        return self.out(join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)))


class SlidingWindow(nn.Module):
    """Causal self-attention to the last positions."""

    def __init__(self, width: int = 128, heads: int = 4, window: int = 32) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.inner(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        distance = place[:, None] - place
        seen = (distance >= 0) & (distance < self.window)
        return self.outer(join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=seen)))


class RelativePosition(nn.Module):
    """Self-attention with a learned bias for each distance, in buckets as in T5."""

    def __init__(self, width: int = 128, heads: int = 4, buckets: int = 32) -> None:
        super().__init__()
        self.heads, self.buckets = heads, buckets
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Embedding(buckets, heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.inner(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        distance = place - place[:, None]
        half = self.buckets // 2
        near = distance.abs().clamp(max=half // 2)
        far = half // 2 + (distance.abs().clamp(min=1).float() / (half // 2)).log2().clamp(min=0).long() * 2
        bucket = torch.where(distance.abs() < half // 2, near, far.clamp(max=half - 1)) + half * (distance > 0)
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + self.bias(bucket).permute(2, 0, 1)
        return self.outer(join_heads(scores.softmax(-1) @ v))


class CrossAttention(nn.Module):
    """Latent vectors that attend to a long input, as in Perceiver."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, 32, width))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed = mlp(width, 4 * width, width, activation=nn.GELU)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.latents.expand(x.shape[0], -1, -1)
        y = y + self.attention(y, x, x, need_weights=False)[0]
        return y + self.feed(self.second(y))


class LatentKeys(nn.Module):
    """Attention whose keys and values come from one narrow projection, as in DeepSeek."""

    def __init__(self, width: int = 256, heads: int = 8, latent: int = 48) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.down, self.up = nn.Linear(width, width), nn.Linear(width, latent), nn.Linear(latent, 2 * width)
        self.norm, self.out = nn.RMSNorm(latent), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (split_heads(part, self.heads) for part in self.up(self.norm(self.down(x))).chunk(2, -1))
        q = split_heads(self.query(x), self.heads)
        return self.out(join_heads(F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)))


class Axial(nn.Module):
    """Attention along the rows of an image, then along its columns."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.rows = nn.MultiheadAttention(width, 4, batch_first=True)
        self.columns = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        y = x.permute(0, 2, 3, 1).flatten(0, 1)
        y = (y + self.rows(y, y, y, need_weights=False)[0]).unflatten(0, (batch, height))
        y = y.transpose(1, 2).flatten(0, 1)
        y = (y + self.columns(y, y, y, need_weights=False)[0]).unflatten(0, (batch, width))
        return y.permute(0, 3, 2, 1)


class DecodeStep(nn.Module):
    """One token of a decoder with the keys and values of earlier ones as inputs and outputs."""

    def __init__(self, width: int = 256, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.inner, self.outer = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.gate, self.up, self.down = nn.Linear(width, 688), nn.Linear(width, 688), nn.Linear(688, width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (split_heads(part, self.heads) for part in self.inner(self.norms[0](x)).chunk(3, -1))
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        x = x + self.outer(join_heads(F.scaled_dot_product_attention(q, keys, values)))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), keys, values


_ATTENTION: Mapping[str, Entry] = {
    "grouped_queries": _normal(GroupedQueries, (1, 128, 256)),
    "sliding_window": _normal(SlidingWindow, (1, 256, 128)),
    "relative_position": _normal(RelativePosition, (1, 128, 128)),
    "cross_attention": _normal(CrossAttention, (1, 512, 128)),
    "latent_keys": _normal(LatentKeys, (1, 96, 256)),
    "axial_attention": _normal(Axial, (1, 64, 24, 24)),
    "decode_step": _normal(DecodeStep, (1, 1, 256), (1, 8, 200, 32), (1, 8, 200, 32)),
}

# -- samplers ----------------------------------------------------------------------------------------------------------


def top_p(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draw from the smallest set of tokens with a probability of 0.9."""
    ordered, order = (logits * 8).softmax(-1).sort(-1, descending=True)
    cumulative = ordered.cumsum(-1)
    kept = torch.where(cumulative - ordered < 0.9, ordered, 0.0)
    drawn = (kept.cumsum(-1) < uniform * kept.sum(-1, keepdim=True)).sum(-1, keepdim=True)
    return order.gather(-1, drawn.clamp(max=logits.shape[-1] - 1))


def top_k(logits: Tensor, uniform: Tensor) -> Tensor:
    """Draw from the 50 likeliest tokens by the Gumbel trick."""
    best, order = logits.topk(50, -1)
    noise = -torch.log(-torch.log(uniform.clamp(1e-6, 1 - 1e-6)))
    return order.gather(-1, (best / 0.7 + noise).argmax(-1, keepdim=True))


def beam_step(scores: Tensor, logits: Tensor, ended: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Extend four beams by their likeliest tokens."""
    logs = F.log_softmax(logits * 5, -1)
    logs = torch.where(ended[:, None] > 0.8, torch.full_like(logs, -1e9), logs)
    best, place = (scores[:, None] + logs).flatten().topk(4)
    return best, place // logits.shape[-1], place % logits.shape[-1]


def penalised(logits: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
    """Lower the scores of repeated tokens, drop those of little probability, and return the distribution."""
    tokens = (previous * (logits.shape[-1] - 1)).long()
    seen = logits.gather(-1, tokens)
    logits = logits.scatter(-1, tokens, torch.where(seen < 0, seen * 1.2, seen / 1.2))
    probabilities = (logits * 6).softmax(-1)
    limit = 0.05 * probabilities.amax(-1, keepdim=True)
    kept = torch.where(probabilities >= limit, probabilities, 0.0)
    return kept / kept.sum(-1, keepdim=True), kept.argmax(-1)


def speculative(draft: Tensor, target: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Accept drafted tokens while the target model agrees, and return the residual distribution."""
    p, q = (draft * 8).softmax(-1), (target * 8).softmax(-1)
    token = p.argmax(-1, keepdim=True)
    ratio = (q.gather(-1, token) / p.gather(-1, token)).squeeze(-1)
    accepted = (uniform < ratio).float().cumprod(-1).sum(-1)
    residual = (q - p).clamp(min=0)
    return accepted, residual / residual.sum(-1, keepdim=True).clamp(min=1e-9)


_SAMPLERS: Mapping[str, Entry] = {
    "top_p": _function(top_p, (1, 8000), (1, 1)),
    "top_k": _function(top_k, (4, 32000), (4, 50)),
    "beam_step": _function(beam_step, (4,), (4, 8000), (4,)),
    "penalised_sampler": _function(penalised, (2, 16000), (2, 64)),
    "speculative_sampler": _function(speculative, (1, 5, 4000), (1, 5, 4000), (1, 5)),
}

# -- graphs and points -------------------------------------------------------------------------------------------------


def _graph(nodes: int, edges: int, width: int) -> Callable[[], Inputs]:
    return lambda: (torch.randn(nodes, width), torch.randint(0, nodes, (2, edges)))


class GraphConvolution(nn.Module):
    """Two graph convolutions with sums scattered along edges."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, 64), nn.Linear(64, 16)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = torch.ones(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        scale = (degree[source] * degree[target]).rsqrt()[:, None]
        for layer in self.layers:
            y = layer(x)
            x = (y / degree[:, None]).index_add(0, target, y[source] * scale).relu()
        return x.log_softmax(-1)


class GraphAttention(nn.Module):
    """A softmax over the edges of each node, by scattered maxima and sums."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.inner = heads, nn.Linear(width, width)
        self.source, self.target = nn.Linear(width // heads, 1), nn.Linear(width // heads, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        y = self.inner(x).unflatten(-1, (self.heads, -1))
        score = F.leaky_relu(self.source(y)[source] + self.target(y)[target], 0.2).squeeze(-1)
        index = target[:, None].expand_as(score)
        greatest = torch.full((x.shape[0], self.heads), -1e9).scatter_reduce(0, index, score, "amax")
        weight = (score - greatest.gather(0, index)).exp()
        total = torch.zeros(x.shape[0], self.heads).scatter_add(0, index, weight)
        messages = y[source] * (weight / (total.gather(0, index) + 1e-9))[..., None]
        return F.elu(torch.zeros_like(y).index_add(0, target, messages).flatten(1))


class MessagePassing(nn.Module):
    """Messages by a network over pairs of nodes, averaged, then a state update, then a sum over the graph."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.message, self.update = mlp(2 * width, 64, width), nn.GRUCell(width, width)
        self.last = nn.Linear(width, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        count = torch.zeros(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype)).clamp(min=1)
        for _ in range(3):
            messages = self.message(torch.cat([x[source], x[target]], -1))
            x = self.update(torch.zeros_like(x).index_add(0, target, messages) / count[:, None], x)
        return self.last(x.mean(0))


class ContinuousFilter(nn.Module):
    """Convolutions over the distances of atoms (SchNet)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.kinds, self.filters = nn.Embedding(20, width), nn.ModuleList(mlp(32, width, width) for _ in range(2))
        self.dense = nn.ModuleList(mlp(width, width, width, activation=nn.Softplus) for _ in range(2))
        self.last = nn.Linear(width, 1)

    def forward(self, kinds: Tensor, places: Tensor) -> Tensor:
        x = self.kinds(kinds)
        distance = (places[:, None] - places).square().sum(-1).add(1e-6).sqrt()
        basis = torch.exp(-4 * (distance[..., None] - torch.linspace(0, 5, 32)).square())
        for filters, dense in zip(self.filters, self.dense, strict=True):
            x = x + dense((filters(basis) * x).sum(1))
        return self.last(x).sum()


class PointNet(nn.Module):
    """A network on each point, then the maxima over all points."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128), nn.ReLU(),
            nn.Conv1d(128, 512, 1),
        )  # fmt: skip
        self.last = mlp(512, 128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.points(x).amax(-1))


class EdgeConvolution(nn.Module):
    """A network on each point and its nearest ones (DGCNN)."""

    def __init__(self, neighbours: int = 8) -> None:
        super().__init__()
        self.neighbours, self.edges, self.last = neighbours, mlp(6, 64, 64), mlp(64, 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x, x).topk(self.neighbours, largest=False).indices
        beside = x[torch.arange(x.shape[0])[:, None, None], near]
        middle = x[:, :, None].expand_as(beside)
        return self.last(self.edges(torch.cat([middle, beside - middle], -1)).amax(2).mean(1))


def nearest_neighbours(queries: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """Classify by the labels of the ten nearest vectors."""
    near = torch.cdist(queries, known).topk(10, largest=False).indices
    return F.one_hot((labels * 5).long()[near], 5).sum(1).argmax(-1)


def k_means(points: Tensor, centres: Tensor) -> Tensor:
    """Move centres to the mean of their points, three times."""
    for _ in range(3):
        closest = (points.square().sum(-1, keepdim=True) - 2 * points @ centres.T + centres.square().sum(-1)).argmin(-1)
        members = F.one_hot(closest, centres.shape[0]).to(points.dtype)
        centres = (members.T @ points) / members.sum(0).clamp(min=1)[:, None]
    return centres


_GRAPHS: Mapping[str, Entry] = {
    "graph_convolution": (GraphConvolution, _graph(1000, 5000, 64)),
    "graph_attention": (GraphAttention, _graph(500, 3000, 64)),
    "message_passing": (MessagePassing, _graph(300, 1500, 32)),
    "continuous_filter": (ContinuousFilter, lambda: (torch.randint(0, 20, (40,)), torch.rand(40, 3) * 5)),
    "pointnet": _normal(PointNet, (1, 3, 1024)),
    "edge_convolution": _normal(EdgeConvolution, (1, 256, 3)),
    "nearest_neighbours": _function(nearest_neighbours, (32, 64), (2000, 64), (2000,)),
    "k_means": _function(k_means, (2000, 16), (24, 16)),
}

# -- images ------------------------------------------------------------------------------------------------------------


def grey(image: Tensor) -> Tensor:
    red, green, blue = image.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def colour_jitter(image: Tensor, change: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue."""
    brightness, contrast, saturation, hue = change.unbind()
    image = (image * (0.5 + brightness)).clamp(0, 1)
    image = (image.mean((1, 2, 3), keepdim=True) * (1 - contrast) + image * contrast).clamp(0, 1)
    image = (grey(image) * (1 - saturation) + image * saturation).clamp(0, 1)
    luma, i, q = torch.einsum(
        "nchw,dc->dnhw", image, torch.tensor([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
    )
    cos, sin = (hue * math.tau).cos(), (hue * math.tau).sin()
    i, q = i * cos - q * sin, i * sin + q * cos
    back = torch.stack([luma + 0.956 * i + 0.621 * q, luma - 0.272 * i - 0.647 * q, luma - 1.107 * i + 1.704 * q], 1)
    return back.clamp(0, 1)


def gaussian_blur(image: Tensor) -> Tensor:
    taps = torch.exp(-torch.arange(-4.0, 5).square() / 8)
    taps = (taps / taps.sum()).expand(3, 1, 1, 9)
    image = F.pad(image, (4, 4, 4, 4), mode="reflect")
    return F.conv2d(F.conv2d(image, taps, groups=3), taps.mT, groups=3)


def resize_and_normalise(image: Tensor) -> Tensor:
    image = F.interpolate(image, size=(224, 224), mode="bilinear", align_corners=False)
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (image - mean[:, None, None]) / deviation[:, None, None]


def warp(image: Tensor, change: Tensor) -> Tensor:
    """Apply an affine transform."""
    matrix = torch.eye(2, 3)[None] + 0.2 * (change - 0.5)
    return F.grid_sample(image, F.affine_grid(matrix, list(image.shape), align_corners=False), align_corners=False)


def gamma(image: Tensor, exponent: Tensor) -> Tensor:
    linear = torch.where(image <= 0.04045, image / 12.92, ((image + 0.055) / 1.055) ** 2.4)
    linear = linear.clamp(min=1e-6) ** (0.5 + exponent)
    return torch.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)


def edges(image: Tensor) -> Tensor:
    """Return Sobel gradients, their direction, and maxima along it."""
    light = F.pad(grey(image), (1, 1, 1, 1), mode="replicate")
    across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    x, y = F.conv2d(light, torch.stack([across, across.T])[:, None]).unbind(1)
    strength, angle = (x.square() + y.square() + 1e-9).sqrt(), torch.atan2(y, x)
    peak = F.max_pool2d(strength[:, None], 3, 1, 1)[:, 0]
    return torch.stack([torch.where(strength >= peak, strength, 0.0), angle], 1)


def to_hsv(image: Tensor) -> Tensor:
    red, green, blue = image.unbind(1)
    highest, place = image.max(1)
    spread = highest - image.amin(1)
    safe = torch.where(spread == 0, torch.ones_like(spread), spread)
    hue = torch.stack([(green - blue) / safe % 6, (blue - red) / safe + 2, (red - green) / safe + 4], 1)
    hue = hue.gather(1, place[:, None]).squeeze(1) / 6
    return torch.stack([hue, spread / highest.clamp(min=1e-6), highest], 1)


def bilateral_filter(image: Tensor) -> Tensor:
    windows = F.unfold(F.pad(image, (2, 2, 2, 2), mode="reflect"), 5).unflatten(1, (3, 25))
    middle = image.flatten(2)[:, :, None]
    place = torch.arange(-2.0, 3).square()
    weights = torch.exp(-(windows - middle).square().sum(1) / 0.1 - (place[:, None] + place).flatten()[:, None] / 8)
    return ((windows * weights[:, None]).sum(2) / weights.sum(1, keepdim=True)).view_as(image)


def block_cosine(image: Tensor) -> Tensor:
    """Quantize the cosine transform of blocks of 8 x 8 pixels, as JPEG does, and transform back."""
    place = torch.arange(8.0)
    basis = torch.cos((2 * place + 1) * place[:, None] * math.pi / 16) / 2
    basis = torch.cat([basis[:1] / math.sqrt(2), basis[1:]])
    batch, channels, height, width = image.shape
    blocks = image.view(batch, channels, height // 8, 8, width // 8, 8).transpose(3, 4) - 0.5
    step = 0.02 * (1 + place[:, None] + place)
    levels = ((basis @ blocks @ basis.T) / step).round() * step
    return ((basis.T @ levels @ basis).transpose(3, 4).reshape(image.shape) + 0.5).clamp(0, 1)


def morphology(image: Tensor) -> Tensor:
    """Return the opening and the closing of a picture by maxima, and their difference above a threshold."""
    light = grey(image)
    opened = F.max_pool2d(-F.max_pool2d(-light, 5, 1, 2), 5, 1, 2)
    closed = -F.max_pool2d(-F.max_pool2d(light, 5, 1, 2), 5, 1, 2)
    return torch.cat([opened, closed, (closed - opened > 0.5).float()], 1)


def median_blur(image: Tensor) -> Tensor:
    return (
        F.unfold(F.pad(image, (1, 1, 1, 1), mode="reflect"), 3).unflatten(1, (3, 9)).sort(2)[0][:, :, 4].view_as(image)
    )


def similarity(first: Tensor, second: Tensor) -> Tensor:
    """Return the structural similarity (SSIM) of two pictures."""
    mean = lambda x: F.avg_pool2d(x, 7, 1)  # noqa: E731
    a, b = mean(first), mean(second)
    variance, other = mean(first * first) - a * a, mean(second * second) - b * b
    both = mean(first * second) - a * b
    return ((2 * a * b + 1e-4) * (2 * both + 9e-4) / ((a * a + b * b + 1e-4) * (variance + other + 9e-4))).mean(
        (1, 2, 3)
    )


def demosaic(raw: Tensor) -> Tensor:
    """Return colours of a Bayer mosaic, white-balanced and with sharpened edges."""
    planes = F.pixel_unshuffle(raw, 2)
    red, green, blue = planes[:, :1], planes[:, 1:3].mean(1, keepdim=True), planes[:, 3:]
    image = F.interpolate(torch.cat([red * 1.9, green, blue * 1.6], 1), scale_factor=2.0, mode="bicubic")
    return (image + 0.5 * (image - F.avg_pool2d(image, 3, 1, 1))).clamp(0, 1)


_IMAGE = (1, 3, 128, 128)
_IMAGES: Mapping[str, Entry] = {
    "colour_jitter": _function(colour_jitter, _IMAGE, (4,)),
    "gaussian_blur": _function(gaussian_blur, (1, 3, 256, 256)),
    "resize_and_normalise": _function(resize_and_normalise, (1, 3, 360, 480)),
    "warp": _function(warp, _IMAGE, (1, 2, 3)),
    "gamma": _function(gamma, _IMAGE, (1,)),
    "edges": _function(edges, _IMAGE),
    "to_hsv": _function(to_hsv, _IMAGE),
    "bilateral_filter": _function(bilateral_filter, (1, 3, 96, 96)),
    "block_cosine": _function(block_cosine, _IMAGE),
    "morphology": _function(morphology, _IMAGE),
    "median_blur": _function(median_blur, (1, 3, 96, 96)),
    "similarity": _function(similarity, _IMAGE, _IMAGE),
    "demosaic": _function(demosaic, (1, 1, 192, 192)),
}

# -- codecs and audio --------------------------------------------------------------------------------------------------


class ResidualQuantizer(nn.Module):
    """Codebooks that each quantize what the last ones left."""

    def __init__(self, width: int = 64, stages: int = 6, codes: int = 256) -> None:
        super().__init__()
        self.codes = nn.ParameterList(nn.Parameter(torch.randn(codes, width) / (i + 1)) for i in range(stages))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total, picked = torch.zeros_like(x), []
        for codes in self.codes:
            left = x - total
            index = (codes.square().sum(-1) - 2 * left @ codes.T).argmin(-1)
            total = total + F.embedding(index, codes)
            picked.append(index)
        return total, torch.stack(picked)


class WaveCodec(nn.Module):
    """Convolutions down to frames, a recurrent layer, a residual quantizer, and convolutions back (EnCodec)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv1d(1, 16, 7, padding=3), nn.ELU(), nn.Conv1d(16, 32, 8, 4, 2), nn.ELU(), nn.Conv1d(32, 64, 16, 8, 4)
        )
        self.recurrent, self.quantizer = nn.LSTM(64, 64, batch_first=True), ResidualQuantizer(64, 4, 128)
        self.up = nn.Sequential(
            nn.ConvTranspose1d(64, 32, 16, 8, 4), nn.ELU(), nn.ConvTranspose1d(32, 16, 8, 4, 2), nn.ELU(),
            nn.Conv1d(16, 1, 7, padding=3), nn.Tanh(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        frames = self.recurrent(self.down(x).mT)[0]
        decoded, codes = self.quantizer(frames)
        return self.up(decoded.mT), codes


class FiniteScalar(nn.Module):
    """An image encoder whose channels are rounded to few levels."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 32, 4, 4), nn.GELU(), nn.Conv2d(32, 6, 1))
        self.decoder = nn.Sequential(nn.Conv2d(6, 32, 1), nn.GELU(), nn.ConvTranspose2d(32, 3, 4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        levels = (self.encoder(x).tanh() * 3.5).round()
        code = ((levels + 4).long() * torch.tensor([1, 8, 64, 512, 4096, 32768])[:, None, None]).sum(1)
        return self.decoder(levels / 4), code


class Vocoder(nn.Module):
    """Transposed convolutions and dilated residual blocks from a spectrogram to a wave (HiFi-GAN)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(80, 64, 7, padding=3), nn.Conv1d(16, 1, 7, padding=3)
        self.up = nn.ModuleList([nn.ConvTranspose1d(64, 32, 8, 4, 2), nn.ConvTranspose1d(32, 16, 8, 4, 2)])
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv1d(w, w, 3, padding=d, dilation=d) for d in (1, 3, 5)) for w in (32, 16)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, block in zip(self.up, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            for layer in block:
                x = x + layer(F.leaky_relu(x, 0.1))
        return self.last(F.leaky_relu(x)).tanh()


class MelSpectrogram(nn.Module):
    """The logarithm of a mel spectrogram by a convolution with sines and cosines."""

    def __init__(self, window: int = 400, hop: int = 160, bands: int = 80) -> None:
        super().__init__()
        self.hop, bins = hop, window // 2 + 1
        angles = math.tau * torch.arange(window) * torch.arange(bins)[:, None] / window
        hann = torch.hann_window(window)
        self.register_buffer("waves", torch.cat([angles.cos() * hann, angles.sin() * hann])[:, None])
        mel = torch.linspace(0, 2595 * math.log10(1 + 8000 / 700), bands + 2)
        corners = 700 * (10 ** (mel / 2595) - 1) / 8000 * (bins - 1)
        place = torch.arange(bins)[:, None]
        rising = (place - corners[:-2]) / (corners[1:-1] - corners[:-2])
        falling = (corners[2:] - place) / (corners[2:] - corners[1:-1])
        self.register_buffer("bands", torch.minimum(rising, falling).clamp(min=0))

    def forward(self, x: Tensor) -> Tensor:
        real, imaginary = F.conv1d(F.pad(x, (200, 200), mode="reflect"), self.waves, stride=self.hop).chunk(2, 1)
        power = (real.square() + imaginary.square()).mT
        logs = (power @ self.bands).clamp(min=1e-10).log10()
        return (torch.maximum(logs, logs.amax() - 8) + 4) / 4


class Coefficients(nn.Module):
    """Mel-frequency cepstral coefficients with their differences, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.spectrogram = MelSpectrogram(bands=40)
        place = torch.arange(40)
        self.register_buffer("cosines", torch.cos(math.pi / 40 * (place[:, None] + 0.5) * torch.arange(13)))

    def forward(self, x: Tensor) -> Tensor:
        found = self.spectrogram(x) @ self.cosines
        padded = F.pad(found.mT, (1, 1), mode="replicate").mT
        found = torch.cat([found, (padded[:, 2:] - padded[:, :-2]) / 2], -1)
        return (found - found.mean(1, keepdim=True)) / (found.std(1, keepdim=True) + 1e-5)


class Conformer(nn.Module):
    """Two blocks of half-step feed-forward layers, attention, and a gated depthwise convolution."""

    def __init__(self, width: int = 144) -> None:
        super().__init__()
        half = lambda: nn.Sequential(nn.LayerNorm(width), *mlp(width, 4 * width, width, activation=nn.SiLU))  # noqa: E731
        self.subsampling = nn.Sequential(nn.Conv2d(1, 32, 3, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU())
        self.project = nn.Linear(32 * 19, width)
        self.halves = nn.ModuleList(half() for _ in range(4))
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.convolutions = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, 2 * width, 1), nn.GLU(1), nn.Conv1d(width, width, 15, padding=7, groups=width),
                nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1),
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(self.subsampling(x[:, None]).transpose(1, 2).flatten(2))
        for i in range(2):
            x = x + 0.5 * self.halves[2 * i](x)
            y = self.norms[2 * i](x)
            x = x + self.attention[i](y, y, y, need_weights=False)[0]
            x = x + self.convolutions[i](x.mT).mT
            x = self.norms[2 * i + 1](x + 0.5 * self.halves[2 * i + 1](x))
        return x


def greedy_labels(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best label of each frame, with repeats and blanks masked, and the score of the path (CTC)."""
    score, label = F.log_softmax(logits * 4, -1).max(-1)
    changed = torch.cat([torch.ones_like(label[:, :1], dtype=torch.bool), label[:, 1:] != label[:, :-1]], 1)
    return torch.where(changed & (label != 0), label, -1), score.sum(-1)


_AUDIO: Mapping[str, Entry] = {
    "residual_quantizer": _normal(ResidualQuantizer, (1, 150, 64)),
    "wave_codec": _normal(WaveCodec, (1, 1, 3200)),
    "finite_scalar": _normal(FiniteScalar, (1, 3, 128, 128)),
    "vocoder": _normal(Vocoder, (1, 80, 64)),
    "mel_spectrogram": _normal(MelSpectrogram, (1, 1, 16000)),
    "cepstral_coefficients": _normal(Coefficients, (1, 1, 16000)),
    "speech_conformer": _normal(Conformer, (1, 200, 80)),
    "greedy_labels": _function(greedy_labels, (4, 200, 64)),
}

# -- ends of detectors -------------------------------------------------------------------------------------------------


def yolo_boxes(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the boxes, scores and classes of the 100 best places of a grid, without suppression."""
    _, _, height, width = features.shape
    x, y, w, h, present = features[:, :5].sub(0.5).unbind(1)
    column, row = torch.arange(width), torch.arange(height)[:, None]
    centre = torch.stack([(x.sigmoid() * 2 - 0.5 + column) * 8, (y.sigmoid() * 2 - 0.5 + row) * 8], -1)
    size = torch.stack([(w.sigmoid() * 2) ** 2 * 16, (h.sigmoid() * 2) ** 2 * 16], -1)
    boxes = torch.cat([centre - size / 2, centre + size / 2], -1).flatten(1, 2)
    scores, classes = (features[:, 5:].sigmoid() * present.sigmoid()[:, None]).flatten(2).max(1)
    best, place = scores.topk(100)
    return boxes.gather(1, place[..., None].expand(-1, -1, 4)), best, classes.gather(1, place)


def anchor_boxes(offsets: Tensor, anchors: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Decode offsets from anchors to boxes within the image (SSD)."""
    centre, size = anchors[:, :2], anchors[:, 2:] + 0.05
    middle = centre + offsets[..., :2] * 0.1 * size
    half = size * (offsets[..., 2:] * 0.2).exp() / 2
    return torch.cat([middle - half, middle + half], -1).clamp(0, 1), (logits * 5).softmax(-1)


class CentreNet(nn.Module):
    """Peaks of a heat map, their sizes and offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1),
            nn.ReLU(),
        )  # fmt: skip
        self.heat, self.sizes = nn.Conv2d(64, 20, 1), nn.Conv2d(64, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.body(x)
        heat = self.heat(x).sigmoid()
        heat = torch.where(F.max_pool2d(heat, 3, 1, 1) == heat, heat, 0.0)
        scores, place = heat.flatten(1).topk(40)
        cell = place % (heat.shape[2] * heat.shape[3])
        found = self.sizes(x).flatten(2).mT.gather(1, cell[..., None].expand(-1, -1, 4))
        return scores, place // (heat.shape[2] * heat.shape[3]), found


class RegionHead(nn.Module):
    """Regions cut from features by bilinear sampling, then a small network on each."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 32, 3, 2, 1), mlp(32 * 49, 128, 24)

    def forward(self, image: Tensor, boxes: Tensor) -> Tensor:
        features = self.features(image).relu()
        low, high = boxes[:, :2] * 0.5, 0.5 + boxes[:, 2:] * 0.5
        steps = (torch.arange(7) + 0.5) / 7
        x = low[:, :1] + (high - low)[:, :1] * steps
        y = low[:, 1:] + (high - low)[:, 1:] * steps
        grid = torch.stack([x[:, None].expand(-1, 7, 7), y[:, :, None].expand(-1, 7, 7)], -1) * 2 - 1
        cut = F.grid_sample(features.expand(boxes.shape[0], -1, -1, -1), grid, align_corners=False)
        return self.head(cut.flatten(1))


class MaskHead(nn.Module):
    """Masks as combinations of prototypes, cut at their boxes (YOLACT)."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes = nn.Sequential(nn.Conv2d(64, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 1), nn.ReLU())

    def forward(self, features: Tensor, weights: Tensor, boxes: Tensor) -> Tensor:
        masks = torch.einsum("nk,khw->nhw", weights.tanh(), self.prototypes(features)[0]).sigmoid()
        x1, y1, x2, y2 = (boxes.sigmoid() * masks.shape[-1])[:, :, None, None].unbind(1)
        row, column = torch.arange(masks.shape[1])[:, None], torch.arange(masks.shape[2])
        inside = (
            (column >= x1.minimum(x2)) & (column < x1.maximum(x2)) & (row >= y1.minimum(y2)) & (row < y1.maximum(y2))
        )
        masks = F.interpolate((masks * inside)[None], scale_factor=2.0, mode="bilinear", align_corners=False)[0]
        return (masks > 0.5).float()


def matrix_suppression(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Lower the scores of boxes that better ones cover, without a loop."""
    boxes = torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:] * 0.3], -1)
    scores, order = scores.topk(200)
    boxes = boxes[order]
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    low = torch.maximum(boxes[:, None, :2], boxes[:, :2])
    common = (torch.minimum(boxes[:, None, 2:], boxes[:, 2:]) - low).clamp(min=0).prod(-1)
    overlap = (common / (area[:, None] + area - common)).triu(1)
    decay = torch.exp(-2 * (overlap.square() - overlap.amax(0)[:, None].square())).amin(0)
    return boxes, scores * decay


class Keypoints(nn.Module):
    """Key points as expected positions under a heat map."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64),
            nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 17, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        heat = self.body(x)
        weights = heat.flatten(2).softmax(-1).view_as(heat)
        row, column = torch.linspace(0, 1, heat.shape[2]), torch.linspace(0, 1, heat.shape[3])
        places = torch.stack([(weights.sum(2) * column).sum(-1), (weights.sum(3) * row).sum(-1)], -1)
        return places, heat.amax((2, 3)).sigmoid()


class SetHead(nn.Module):
    """Object queries of a decoder with boxes and classes (DETR)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 50, width))
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, 4, 256, batch_first=True), 2)
        self.classes, self.boxes = nn.Linear(width, 21), mlp(width, width, width, 4)

    def forward(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        x = self.decoder(self.queries, memory)
        cx, cy, w, h = self.boxes(x).sigmoid().unbind(-1)
        boxes = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1)
        return self.classes(x).softmax(-1)[..., :-1], boxes


_DETECTION: Mapping[str, Entry] = {
    "yolo_boxes": _function(yolo_boxes, (1, 85, 40, 40)),
    "anchor_boxes": _function(anchor_boxes, (1, 3000, 4), (3000, 4), (1, 3000, 21)),
    "centre_net": _normal(CentreNet, (1, 3, 128, 128)),
    "region_head": (RegionHead, lambda: (torch.randn(1, 3, 128, 128), torch.rand(50, 4))),
    "mask_head": _normal(MaskHead, (1, 64, 48, 48), (30, 16), (30, 4)),
    "matrix_suppression": _function(matrix_suppression, (500, 4), (500,)),
    "keypoints": _normal(Keypoints, (1, 3, 128, 96)),
    "set_head": _normal(SetHead, (1, 196, 128)),
}

# -- diffusion and volumes ---------------------------------------------------------------------------------------------


def waves_of_time(time: Tensor, width: int) -> Tensor:
    """Return sines and cosines of a time of shape [batch]."""
    rates = torch.exp(-math.log(10000) * torch.arange(width // 2) / (width // 2))
    angles = time[:, None] * 1000 * rates
    return torch.cat([angles.cos(), angles.sin()], -1)


class DiffusionBlock(nn.Module):
    """A residual block with group norm that a time shifts and scales, and attention over pixels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(3))
        self.first, self.second = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.time = mlp(width, 4 * width, 2 * width, activation=nn.SiLU)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.time(waves_of_time(time, x.shape[1]))[:, :, None, None].chunk(2, 1)
        y = self.first(F.silu(self.norms[0](x)))
        x = x + self.second(F.silu(self.norms[1](y) * (1 + scale) + shift))
        y = self.norms[2](x).flatten(2).mT
        return x + self.attention(y, y, y, need_weights=False)[0].mT.view_as(x)


class DiffusionUNet(nn.Module):
    """Two resolutions of diffusion blocks with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 32, 3, 1, 1), nn.Conv2d(64, 3, 3, 1, 1)
        self.down, self.up = nn.Conv2d(32, 64, 3, 2, 1), nn.Conv2d(64, 32, 3, 1, 1)
        self.outer, self.inner = DiffusionBlock(32), DiffusionBlock(64)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x = self.outer(self.first(x), time)
        y = self.inner(self.down(x), time)
        return self.last(torch.cat([x, self.up(F.interpolate(y, scale_factor=2.0, mode="nearest"))], 1))


class TimeEmbedding(nn.Module):
    """Sines of a time through a network, with the embedding of a class."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.kinds = mlp(128, 512, 512, activation=nn.SiLU), nn.Embedding(1000, 512)

    def forward(self, time: Tensor, kind: Tensor) -> Tensor:
        return F.silu(self.time(waves_of_time(time, 128)) + self.kinds(kind))


class DiffusionTransformer(nn.Module):
    """A transformer block whose norms a condition modulates (DiT)."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.patches, self.last = nn.Conv2d(4, width, 2, 2), nn.Linear(width, 16)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = nn.MultiheadAttention(width, 6, batch_first=True)
        self.feed = mlp(width, 4 * width, width, activation=lambda: nn.GELU("tanh"))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        a, b, c, d, e, f = self.modulation(waves_of_time(time, x.shape[-1]))[:, None].chunk(6, -1)
        y = self.norm(x) * (1 + a) + b
        x = x + c * self.attention(y, y, y, need_weights=False)[0]
        x = x + f * self.feed(self.norm(x) * (1 + d) + e)
        return F.pixel_shuffle(self.last(x).mT.unflatten(2, (16, 16)), 2)


def guided_step(latent: Tensor, conditional: Tensor, unconditional: Tensor, alphas: Tensor) -> Tensor:
    """One denoising step with guidance and a threshold at a quantile (DDIM with dynamic thresholds)."""
    noise = unconditional + 7.5 * (conditional - unconditional)
    now, later = alphas.sort().values * 0.98 + 0.01
    clean = (latent - (1 - now).sqrt() * noise) / now.sqrt()
    limit = clean.abs().flatten(1).sort(-1).values[:, int(0.995 * clean[0].numel())].clamp(min=1)[:, None, None, None]
    clean = torch.minimum(torch.maximum(clean, -limit), limit) / limit
    return later.sqrt() * clean + (1 - later).sqrt() * noise


class VolumeUNet(nn.Module):
    """A U-Net over volumes with instance norm."""

    def __init__(self) -> None:
        super().__init__()
        block = lambda a, b: nn.Sequential(nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b, affine=True), nn.ReLU())  # noqa: E731
        self.first, self.second, self.third = block(1, 8), block(8, 16), block(24, 8)
        self.last = nn.Conv3d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        y = self.second(F.max_pool3d(x, 2))
        y = F.interpolate(y, scale_factor=2.0, mode="trilinear", align_corners=False)
        return self.last(self.third(torch.cat([x, y], 1))).softmax(1)


_DIFFUSION: Mapping[str, Entry] = {
    "diffusion_block": (DiffusionBlock, lambda: (torch.randn(1, 64, 24, 24), torch.rand(1))),
    "diffusion_unet": (DiffusionUNet, lambda: (torch.randn(1, 3, 32, 32), torch.rand(1))),
    "time_embedding": (TimeEmbedding, lambda: (torch.rand(8), torch.randint(0, 1000, (8,)))),
    "diffusion_transformer": (DiffusionTransformer, lambda: (torch.randn(1, 4, 32, 32), torch.rand(1))),
    "guided_step": _function(guided_step, *3 * [(1, 4, 64, 64)], (2,)),
    "volume_unet": _normal(VolumeUNet, (1, 1, 24, 24, 24)),
}

# -- language and sequences --------------------------------------------------------------------------------------------


class TimeMix(nn.Module):
    """A recurrence with a decay for each channel over mixed neighbours, and a gated feed-forward layer (RWKV)."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mix, self.decay = nn.Parameter(torch.rand(4, width)), nn.Parameter(torch.rand(width))
        self.key, self.value, self.gate, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        before = F.pad(y, (0, 0, 1, -1))
        k, v, gate = (
            layer(y * m + before * (1 - m))
            for layer, m in zip((self.key, self.value, self.gate), self.mix, strict=False)
        )
        above, below, seen = torch.zeros_like(k[:, 0]), torch.full_like(k[:, 0], 1e-3), []
        for i in range(x.shape[1]):
            weight = k[:, i].exp()
            above, below = above * self.decay + weight * v[:, i], below * self.decay + weight
            seen.append(above / below)
        x = x + self.out(gate.sigmoid() * torch.stack(seen, 1))
        y = self.norms[1](x)
        return x + self.down(self.up(y * self.mix[3] + F.pad(y, (0, 0, 1, -1)) * (1 - self.mix[3])).relu().square())


class Experts(nn.Module):
    """A mixture of experts that computes all of them, and weighs the two best of each token."""

    def __init__(self, width: int = 128, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 256) / 16)
        self.down = nn.Parameter(torch.randn(experts, 256, width) / 16)

    def forward(self, x: Tensor) -> Tensor:
        best, place = self.router(x).topk(2, -1)
        weights = torch.zeros(*x.shape[:2], self.up.shape[0]).scatter(-1, place, best.softmax(-1))
        every = torch.einsum("blew,ewd->bled", F.gelu(torch.einsum("blw,ewd->bled", x, self.up)), self.down)
        return x + (every * weights[..., None]).sum(2)


class CharacterTagger(nn.Module):
    """Words by convolutions over characters and an embedding, a bidirectional LSTM, and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.words = nn.Embedding(100, 16), nn.Embedding(2000, 64)
        self.convolution, self.tags = nn.Conv1d(16, 32, 3, padding=1), nn.Linear(128, 17)
        self.recurrent = nn.LSTM(96, 64, bidirectional=True, batch_first=True)

    def forward(self, words: Tensor, characters: Tensor) -> Tensor:
        spelled = self.characters(characters).flatten(0, 1).mT
        spelled = self.convolution(spelled).amax(-1).unflatten(0, characters.shape[:2])
        return self.tags(self.recurrent(torch.cat([self.words(words), spelled], -1))[0]).log_softmax(-1)


class SentenceEmbedding(nn.Module):
    """The mean of an encoder's states under a mask, normalised, compared with known sentences."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(2000, width), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 512, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.known = nn.Parameter(torch.randn(500, width))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        x = self.layers(x, src_key_padding_mask=mask < 0.1)
        weights = (mask >= 0.1).float()[..., None]
        mean = (x * weights).sum(1) / weights.sum(1).clamp(min=1)
        return F.normalize(mean, dim=-1) @ F.normalize(self.known, dim=-1).T


class SequenceToSequence(nn.Module):
    """A GRU encoder, and a decoder of a few steps with additive attention."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.words, self.encoder, self.decoder = (
            nn.Embedding(500, width),
            nn.GRU(width, width, batch_first=True),
            nn.GRUCell(2 * width, width),
        )
        self.memory, self.query, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.last = nn.Linear(width, 500)

    def forward(self, tokens: Tensor) -> Tensor:
        memory, state = self.encoder(self.words(tokens))
        state, keys, x, written = state[0], self.memory(memory), self.words(tokens[:, 0]), []
        for _ in range(6):
            weights = self.score((keys + self.query(state)[:, None]).tanh()).softmax(1)
            state = self.decoder(torch.cat([x, (weights * memory).sum(1)], -1), state)
            logits = self.last(state)
            x = self.words(logits.argmax(-1))
            written.append(logits)
        return torch.stack(written, 1)


class MixerNetwork(nn.Module):
    """An MLP mixer over patches."""

    def __init__(self, width: int = 128, patches: int = 64) -> None:
        super().__init__()
        self.patches, self.norms = nn.Conv2d(3, width, 8, 8), nn.ModuleList(nn.LayerNorm(width) for _ in range(8))
        self.tokens = nn.ModuleList(mlp(patches, 128, patches, activation=nn.GELU) for _ in range(4))
        self.channels = nn.ModuleList(mlp(width, 256, width, activation=nn.GELU) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        for i in range(4):
            x = x + self.tokens[i](self.norms[2 * i](x).mT).mT
            x = x + self.channels[i](self.norms[2 * i + 1](x))
        return x.mean(1)


class SpatialGate(nn.Module):
    """Feed-forward layers that a product over positions gates (gMLP)."""

    def __init__(self, width: int = 128, length: int = 96) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.norms, self.places = (
            nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(2 * width)]),
            nn.Conv1d(length, length, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            u, v = F.gelu(self.inner(self.norms[0](x))).chunk(2, -1)
            x = x + self.outer(u * self.places(self.norms[1](v)))
        return x


def _words(*shape: int, count: int = 500) -> Callable[[], Inputs]:
    return lambda: (torch.randint(0, count, shape),)


_LANGUAGE: Mapping[str, Entry] = {
    "time_mix": _normal(TimeMix, (1, 32, 128)),
    "experts": _normal(Experts, (1, 64, 128)),
    "character_tagger": (
        CharacterTagger,
        lambda: (torch.randint(0, 2000, (1, 24)), torch.randint(0, 100, (1, 24, 12))),
    ),
    "sentence_embedding": (SentenceEmbedding, lambda: (torch.randint(0, 2000, (4, 32)), torch.rand(4, 32))),
    "sequence_to_sequence": (SequenceToSequence, _words(2, 20)),
    "mixer_network": _normal(MixerNetwork, (1, 3, 64, 64)),
    "spatial_gate": _normal(SpatialGate, (1, 96, 128)),
}

# -- time series, tables, recommendation -------------------------------------------------------------------------------


class TemporalConvolution(nn.Module):
    """Causal dilated convolutions with residual connections."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(8, width, 1), nn.Linear(width, 4)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=2**i) for i in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, layer in enumerate(self.layers):
            x = x + layer(F.pad(x, (2 ** (i + 1), 0))).relu()
        return self.last(x[..., -1])


class GatedWave(nn.Module):
    """Gated dilated convolutions with skip connections (WaveNet)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Sequential(nn.ReLU(), nn.Conv1d(width, 64, 1))
        self.inner = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(8))
        self.outer = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), 0.0
        for i in range(8):
            value, gate = self.inner[i](F.pad(x, (2**i, 0))).chunk(2, 1)
            more, skip = self.outer[i](value.tanh() * gate.sigmoid()).chunk(2, 1)
            x, total = x + more, total + skip
        return self.last(total)


class BasisForecast(nn.Module):
    """Blocks that subtract what they explain and add what they forecast (N-BEATS)."""

    def __init__(self, length: int = 120, horizon: int = 24) -> None:
        super().__init__()
        self.length, self.horizon = length, horizon
        self.blocks = nn.ModuleList(mlp(length, 256, 256, 256, length + horizon) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[0], self.horizon)
        for block in self.blocks:
            back, ahead = block(x).split([self.length, self.horizon], -1)
            x, total = x - back, total + ahead
        return total


class SeasonalLinear(nn.Module):
    """A moving average and the rest, each forecast by a linear layer (DLinear), normalised in reverse."""

    def __init__(self) -> None:
        super().__init__()
        self.trend, self.season = nn.Linear(336, 96), nn.Linear(336, 96)

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5
        x = (x - mean) / deviation
        trend = F.avg_pool1d(F.pad(x, (12, 12), mode="replicate"), 25, 1)
        return (self.trend(trend) + self.season(x - trend)) * deviation + mean


class PatchForecast(nn.Module):
    """A transformer over patches of each series (PatchTST)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(16, width), nn.Parameter(torch.randn(41, width))
        layer = nn.TransformerEncoderLayer(width, 4, 128, batch_first=True, activation="gelu", norm_first=True)
        self.layers, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(41 * width, 24)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x.unfold(-1, 16, 8).flatten(0, 1)) + self.place
        return self.last(self.layers(patches).flatten(1)).unflatten(0, x.shape[:2])


class RateModel(nn.Module):
    """Summed embeddings of lists of items, dense features, and their products (DLRM with embedding bags)."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(1000, 32, mode="sum") for _ in range(6))
        self.bottom, self.top = mlp(13, 128, 32), mlp(32 + 21, 128, 64, 1)

    def forward(self, numbers: Tensor, lists: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *(bag(lists[:, i]) for i, bag in enumerate(self.bags))], 1)
        row, column = torch.triu_indices(7, 7, 1)
        return self.top(torch.cat([dense, (vectors @ vectors.mT)[:, row, column]], -1)).sigmoid()


class InterestNetwork(nn.Module):
    """A candidate item's attention over a user's history (DIN)."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.score, self.last = (
            nn.Embedding(5000, 32),
            mlp(128, 64, 1, activation=nn.Sigmoid),
            mlp(96, 64, 1, activation=nn.PReLU),
        )

    def forward(self, history: Tensor, candidate: Tensor, user: Tensor) -> Tensor:
        past, item = self.items(history), self.items(candidate)[:, None]
        other = item.expand_as(past)
        weights = self.score(torch.cat([past, other, past - other, past * other], -1))
        weights = weights.masked_fill((history == 0)[..., None], 0.0)
        return self.last(torch.cat([(weights * past).sum(1), item[:, 0], user], -1)).sigmoid()


class Trees(nn.Module):
    """A forest of oblivious decision trees by comparisons and gathers."""

    def __init__(self, trees: int = 64, depth: int = 6, features: int = 30) -> None:
        super().__init__()
        self.register_buffer("feature", torch.randint(0, features, (trees * depth,)))
        self.register_buffer("limit", torch.randn(trees, depth))
        self.register_buffer("bits", 2 ** torch.arange(depth))
        self.leaves = nn.Parameter(torch.randn(trees, 2**depth))

    def forward(self, x: Tensor) -> Tensor:
        above = x[:, self.feature].unflatten(1, self.limit.shape) > self.limit
        leaf = (above.long() * self.bits).sum(-1)
        return self.leaves.expand(x.shape[0], -1, -1).gather(2, leaf[..., None]).sum(1)


class TableTransformer(nn.Module):
    """A transformer over the columns of a table."""

    def __init__(self, columns: int = 20, width: int = 32) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(columns, width)), nn.Parameter(torch.randn(columns, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, batch_first=True)
        self.layers, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()
        return self.last(self.layers(x[..., None] * self.scale + self.shift)[:, 0]).softmax(-1)


class VariationalCoder(nn.Module):
    """A variational autoencoder over tables with the noise as an input, and its divergence."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 256, 32), mlp(16, 256, 64)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log = self.encoder(x).chunk(2, -1)
        found = self.decoder(mean + noise * (0.5 * log).exp())
        return found, -0.5 * (1 + log - mean.square() - log.exp()).sum(-1)


_SERIES: Mapping[str, Entry] = {
    "temporal_convolution": _normal(TemporalConvolution, (1, 8, 256)),
    "gated_wave": _normal(GatedWave, (1, 1, 512)),
    "basis_forecast": _normal(BasisForecast, (8, 120)),
    "seasonal_linear": _normal(SeasonalLinear, (1, 7, 336)),
    "patch_forecast": _normal(PatchForecast, (1, 7, 336)),
    "rate_model": (RateModel, lambda: (torch.randn(64, 13), torch.randint(0, 1000, (64, 6, 10)))),
    "interest_network": (
        InterestNetwork, lambda: (torch.randint(0, 5000, (32, 50)), torch.randint(0, 5000, (32,)), torch.randn(32, 32)),
    ),
    "trees": _normal(Trees, (64, 30)),
    "table_transformer": _normal(TableTransformer, (64, 20)),
    "variational_coder": _normal(VariationalCoder, (32, 64), (32, 16)),
}  # fmt: skip

# -- flows, physics, linear algebra ------------------------------------------------------------------------------------


class CouplingFlow(nn.Module):
    """Affine couplings with their log determinant (RealNVP)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mlp(width // 2, 128, width, activation=nn.Tanh) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(x.shape[0])
        for layer in self.layers:
            first, second = x.chunk(2, -1)
            scale, shift = layer(first).chunk(2, -1)
            scale = scale.tanh()
            x, total = torch.cat([second * scale.exp() + shift, first], -1), total + scale.sum(-1)
        return x, total - 0.5 * (x.square() + math.log(math.tau)).sum(-1)


class Sines(nn.Module):
    """An image as a network of sines over its coordinates (SIREN)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = (
            nn.ModuleList([nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 64)]),
            nn.Linear(64, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = (3 * layer(x)).sin()
        return self.last(x)


class DifferentialEquation(nn.Module):
    """Four steps of a Runge-Kutta method in float64 with a network as the derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mlp(8, 32, 8, activation=nn.Tanh).double()

    def forward(self, x: Tensor) -> Tensor:
        step = 0.05
        for _ in range(4):
            a = self.network(x)
            b = self.network(x + step / 2 * a)
            c = self.network(x + step / 2 * b)
            d = self.network(x + step * c)
            x = x + step / 6 * (a + 2 * b + 2 * c + d)
        return x


def heat_equation(field: Tensor) -> Tensor:
    stencil = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]])[None, None]
    for _ in range(8):
        field = field + 0.2 * F.conv2d(F.pad(field, (1, 1, 1, 1), mode="circular"), stencil)
    return field


def many_bodies(places: Tensor, speeds: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    for _ in range(3):
        between = places[None] - places[:, None]
        near = (between.square().sum(-1) + 0.01).rsqrt()
        speeds = speeds + 1e-3 * (between * (near**3 * masses)[..., None]).sum(1)
        places = places + 1e-3 * speeds
    return places, speeds


def kalman_filter(state: Tensor, spread: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Predict and correct a state of four numbers by ten observations of two."""
    moves = torch.eye(4) + 0.1 * torch.eye(4).roll(2, 1)
    observes, noise = torch.eye(2, 4), 0.1 * torch.eye(2)
    spread = spread @ spread.T + torch.eye(4)
    for observed in seen:
        state, spread = moves @ state, moves @ spread @ moves.T + 0.01 * torch.eye(4)
        a, b, c, d = (observes @ spread @ observes.T + noise).flatten().unbind()
        inverse = torch.stack([d, -b, -c, a]).view(2, 2) / (a * d - b * c)
        gain = spread @ observes.T @ inverse
        state, spread = state + gain @ (observed - observes @ state), (torch.eye(4) - gain @ observes) @ spread
    return state, spread


def principal_components(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first components by power iterations with deflation."""
    x = x - x.mean(0)
    covariance = x.T @ x / x.shape[0]
    found = []
    for _ in range(3):
        vector = covariance.sum(1)
        for _ in range(8):
            vector = F.normalize(covariance @ vector, dim=0)
        covariance = covariance - (vector @ covariance @ vector) * torch.outer(vector, vector)
        found.append(vector)
    basis = torch.stack(found, 1)
    return x @ basis, basis


def gaussian_process(known: Tensor, values: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Predict a mean and a variance by a Cholesky factorisation of the kernel matrix."""
    kernel = lambda a, b: torch.exp(-(a[:, None] - b).square().sum(-1))  # noqa: E731
    factor = torch.linalg.cholesky(kernel(known, known) + 0.1 * torch.eye(known.shape[0]))
    across = kernel(known, queries)
    half = torch.linalg.solve_triangular(factor, across, upper=False)
    weights = torch.linalg.solve_triangular(factor, values[:, None], upper=False)
    return (half.T @ weights).squeeze(-1), 1 - half.square().sum(0)


def newton_schulz(x: Tensor) -> Tensor:
    """Return the nearest orthogonal matrix by products alone."""
    x = x / x.square().sum().sqrt()
    for _ in range(8):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


def transport(costs: Tensor) -> Tensor:
    """Balance a transport plan by ten Sinkhorn iterations in logarithms."""
    scores = -costs * 10
    for _ in range(10):
        scores = scores - scores.logsumexp(1, keepdim=True)
        scores = scores - scores.logsumexp(0, keepdim=True)
    return scores.exp()


_ALGEBRA: Mapping[str, Entry] = {
    "coupling_flow": _normal(CouplingFlow, (64, 32)),
    "sines": (Sines, lambda: (torch.rand(4096, 2) * 2 - 1,)),
    "differential_equation_float64": (DifferentialEquation, lambda: (torch.randn(16, 8, dtype=torch.float64),)),
    "heat_equation": _function(heat_equation, (1, 1, 64, 64)),
    "many_bodies": _function(many_bodies, (64, 3), (64, 3), (64,)),
    "kalman_filter": _function(kalman_filter, (4,), (4, 4), (10, 2)),
    "principal_components": _function(principal_components, (500, 32)),
    "gaussian_process": _function(gaussian_process, (60, 4), (60,), (100, 4)),
    "newton_schulz": _function(newton_schulz, (128, 128)),
    "transport": _function(transport, (64, 64)),
}

# -- models of which each backend lacks a part -------------------------------------------------------------------------
# Of the backends here only ONNX Runtime runs index_add and atan2, and it alone does not run logsumexp. Products
# and convolutions suit each of them.


class MatchedGraphs(nn.Module):
    """Messages in two graphs, and a transport plan between their nodes."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, edges: Tensor, y: Tensor, other_edges: Tensor) -> Tensor:
        for layer in self.layers:
            x, y = (self.passed(layer, *graph) for graph in ((x, edges), (y, other_edges)))
        return transport(-x @ y.T / 100)

    @staticmethod
    def passed(layer: nn.Module, x: Tensor, edges: Tensor) -> Tensor:
        return F.normalize(x + torch.zeros_like(x).index_add(0, edges[1], layer(x)[edges[0]]).relu(), dim=-1) * 8


class GradientDirections(nn.Module):
    """Convolutions over the strengths and directions of gradients, pooled by logsumexp over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1))

    def forward(self, image: Tensor) -> Tensor:
        features = self.body(edges(image))
        return features.logsumexp((2, 3)) - features.logsumexp(1).mean((1, 2))[:, None]


class MeshLabels(nn.Module):
    """Differences along the edges of a mesh summed at its vertices, and log-probabilities of labels."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.labels = nn.Linear(width, 512)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for layer in self.layers:
            x = F.layer_norm(x + torch.zeros_like(x).index_add(0, target, layer(x)[source] - x[target]), x.shape[1:])
        scores = self.labels(x)
        return scores - scores.logsumexp(-1, keepdim=True)


class AngleMixture(nn.Module):
    """The log-likelihood of angles under mixtures of wrapped normal distributions that a network predicts."""

    def __init__(self, parts: int = 64) -> None:
        super().__init__()
        self.parts = parts
        self.network = mlp(32, 256, 256, 3 * parts)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        weight, centre, width = self.network(x).chunk(3, -1)
        distance = angles - centre * math.tau
        distance = torch.atan2(distance.sin(), distance.cos())
        logs = -0.5 * (distance * width.exp()).square() + width - 0.5 * math.log(math.tau)
        return (weight + logs).logsumexp(-1) - weight.logsumexp(-1)


class ForwardWarp(nn.Module):
    """Pixels moved along a flow and summed at the four pixels around them, then log-probabilities of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.flow = nn.Conv2d(3, 64, 3, 1, 1), nn.Conv2d(64, 2, 3, 1, 1)
        self.classes = nn.Conv2d(64, 128, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.features(image).relu()
        _, channels, height, width = x.shape
        across, down = (8 * self.flow(x).tanh()).unbind(1)
        column = (torch.arange(width) + across).clamp(0, width - 1.001)
        row = (torch.arange(height)[:, None] + down).clamp(0, height - 1.001)
        pixels, moved = x.flatten(2)[0].T, torch.zeros(height * width, channels)
        for below in (0, 1):
            for right in (0, 1):
                weight = (1 - (column.floor() + right - column).abs()) * (1 - (row.floor() + below - row).abs())
                place = ((row.floor() + below) * width + column.floor() + right).long()
                moved = moved.index_add(0, place.flatten(), pixels * weight.flatten()[:, None])
        scores = self.classes(moved.T.unflatten(1, (height, width))[None])
        return scores - scores.logsumexp(1, keepdim=True)


MIXED: Mapping[str, Entry] = {
    "matched_graphs": (
        MatchedGraphs,
        lambda: (*_graph(400, 8000, 128)(), *_graph(400, 8000, 128)()),
    ),
    "gradient_directions": (GradientDirections, lambda: (torch.rand(1, 3, 512, 512),)),
    "mesh_labels": (MeshLabels, _graph(2000, 16000, 64)),
    "angle_mixture": (AngleMixture, lambda: (torch.randn(4096, 32), torch.rand(4096, 1) * math.tau)),
    "forward_warp": (ForwardWarp, lambda: (torch.rand(1, 3, 96, 96),)),
}

WRITTEN: Mapping[str, Entry] = {
    **_ATTENTION, **_SAMPLERS, **_GRAPHS, **_IMAGES, **_AUDIO, **_DETECTION, **_DIFFUSION, **_LANGUAGE, **_SERIES,
    **_ALGEBRA, **MIXED,
}  # fmt: skip

# What the tests have as whole models, beside the architectures of `zoo`.
TESTED = (
    "lstm", "gru_bidirectional", "bert", "distilbert", "gpt2", "llama", "qwen3", "t5_encoder", "whisper_encoder",
    "clip", "dinov2", "segformer", "wav2vec2", "bart", "mixtral", "deberta_masked", "gin", "sage", "dlrm", "deepfm",
    "radiance_field", "selective_scan", "retention_attention", "linear_attention", "modulated", "sparsemax",
    "capsules", "deformable", "codebook", "viterbi", "points", "detector", "hashed", "mobilevit_xxs", "convmixer",
)  # fmt: skip
NAMES = [*dict.fromkeys([*WRITTEN, *TESTED, *zoo.ZOO, *zoo.WIDER])]


def make(name: str) -> tuple[nn.Module, Inputs]:
    """Return the module in eval mode, and example inputs: the same for every call."""
    if name in zoo.ZOO or name in zoo.WIDER:
        return zoo.make(name)
    if name not in WRITTEN:
        return models.make(name)
    build, inputs = WRITTEN[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval(), inputs()


def export(name: str) -> tuple[nn.Module, Inputs, torch.export.ExportedProgram]:
    """Return a module whose result is a plain tuple, its example inputs, and its exported program."""
    module, inputs = make(name)
    module = Leaves(module)
    return module, inputs, models.export(module, inputs)
