"""Functions that differentiate or map inside: torch.func's transforms and torch.autograd in every gradient mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import func, nn
from torch.autograd import forward_ad, functional

T = torch.Tensor
F = nn.functional


def _net(seed: int, *layers: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for layer in layers:
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -0.5, 0.5)
    return nn.Sequential(*layers).eval()


MLP = _net(0, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
NORMED = _net(1, nn.LayerNorm(6), nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 1))


def energy(x: T) -> T:
    """Return a number by operators of which many are composite: linear, layer norm, softmax, matmul, dropout, pad."""
    h = F.layer_norm(F.linear(x, MLP[0].weight, MLP[0].bias), (8,))
    h = F.softmax(torch.matmul(h, MLP[2].weight.t()), -1) * F.dropout(x, 0.5, training=False)
    return F.mse_loss(F.silu(h), torch.cos(x))


def rows(x: T) -> T:
    """Return a number for each row."""
    return F.linear(torch.tanh(x), MLP[0].weight).square().sum(-1)


# -- torch.func --------------------------------------------------------------------------------------------------------


def grad(x: T) -> T:
    return func.grad(energy)(x)


def grad_and_value(x: T) -> tuple[T, T]:
    return func.grad_and_value(energy)(x)


def grad_of_two(x: T) -> tuple[T, T]:
    return func.grad(lambda a, b: energy(a * b), argnums=(0, 1))(x, x + 1)


def grad_with_aux(x: T) -> tuple[T, T]:
    return func.grad(lambda a: (energy(a), torch.sin(a)), has_aux=True)(x)


def grad_of_grad(x: T) -> T:
    return func.grad(lambda a: func.grad(energy)(a).square().sum())(x)


def vmap(x: T) -> T:
    return func.vmap(energy)(x)


def vmap_of_grad(x: T) -> T:
    return func.vmap(func.grad(lambda row: rows(row[None])[0]))(x)


def vmap_of_chunks(x: T) -> T:
    return func.vmap(lambda row: F.softmax(F.linear(row, MLP[0].weight), -1), in_dims=1, out_dims=1)(x.t()).t()


def grad_of_vmap(x: T) -> T:
    return func.grad(lambda a: func.vmap(energy)(a).sum())(x)


def vjp(x: T) -> tuple[T, T]:
    value, pull = func.vjp(rows, x)
    return value, pull(torch.ones_like(value))[0]


def jvp(x: T) -> tuple[T, T]:
    return func.jvp(rows, (x,), (torch.cos(x),))


def jacrev(x: T) -> T:
    return func.jacrev(rows)(x)


def jacfwd(x: T) -> T:
    return func.jacfwd(rows)(x)


def hessian(x: T) -> T:
    return func.hessian(lambda a: rows(a).square().sum())(x)


def linearize(x: T) -> tuple[T, T]:
    value, push = func.linearize(rows, x)
    return value, push(torch.cos(x))


def forward_mode(x: T) -> T:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(rows(forward_ad.make_dual(x, torch.cos(x)))).tangent


def grad_in_a_branch(x: T) -> T:
    return torch.cond(x.sum() > 1e3, lambda a: -func.grad(energy)(a), lambda a: 2 * func.grad(energy)(a), (x,))


def meta_learning(x: T) -> T:
    """Return the loss of a network after one step of gradient descent on another loss."""
    weights = dict(NORMED.named_parameters())

    def loss(parameters: dict[str, T], batch: T) -> T:
        return func.functional_call(NORMED, parameters, (batch,)).square().mean()

    steps = func.grad(loss)(weights, x)
    return loss({name: weights[name] - 0.5 * steps[name] for name in weights}, x + 1)


def gradients_of_each_sample(x: T) -> dict[str, T]:
    weights = dict(NORMED.named_parameters())

    def loss(parameters: dict[str, T], row: T) -> T:
        return func.functional_call(NORMED, parameters, (row[None],)).square().mean()

    return func.vmap(func.grad(loss), in_dims=(None, 0))(weights, x)


# -- torch.autograd ----------------------------------------------------------------------------------------------------


def forces(x: T) -> T:
    """Return the forces of a potential, which need gradients whatever the caller's mode is."""
    with torch.enable_grad():
        place = x.detach().requires_grad_()
        return -torch.autograd.grad(energy(place), place)[0]


def set_grad_enabled(x: T) -> tuple[T, T]:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    place = x.clone().requires_grad_()
    slope = torch.autograd.grad(energy(place), place)[0]
    torch.set_grad_enabled(before)
    return slope, F.linear(x, MLP[0].weight)


def grad_of_weights(x: T) -> tuple[T, ...]:
    with torch.enable_grad():
        return torch.autograd.grad(MLP(x).square().mean(), list(MLP.parameters()))


def backward(x: T) -> T:
    with torch.enable_grad():
        place = x.detach().requires_grad_()
        energy(place).backward()
        assert place.grad is not None
        return place.grad


def functional_vjp(x: T) -> tuple[T, T]:
    with torch.enable_grad():
        return functional.vjp(energy, x)


def factory(x: T) -> T:
    with torch.enable_grad():
        scale = torch.ones(6, requires_grad=True)
        return torch.autograd.grad(energy(scale * x), scale)[0]


def hook(x: T) -> T:
    with torch.enable_grad():
        place = x.detach().requires_grad_()
        y = F.linear(place, MLP[0].weight)
        y.register_hook(lambda slope: slope * 3)  # type: ignore[no-untyped-call]
        return torch.autograd.grad(y.square().sum(), place)[0]


def gradients_enabled(x: T) -> T:
    with torch.enable_grad():
        return F.linear(x, MLP[0].weight).square()


class Cube(torch.autograd.Function):
    """A cube whose gradient is not the derivative, so that a derivative formula in its place is seen."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, slope: T) -> T:
        return slope * 5 * ctx.saved_tensors[0]


def custom_function(x: T) -> T:
    with torch.enable_grad():
        place = x.detach().requires_grad_()
        return torch.autograd.grad(F.linear(Cube.apply(place), MLP[0].weight).sum(), place)[0]


def custom_function_without_gradients(x: T) -> T:
    return F.linear(Cube.apply(x), MLP[0].weight)


def detach_inside(x: T) -> T:
    return func.grad(lambda a: (a.detach() * F.linear(a, MLP[0].weight).sum(-1, keepdim=True)).sum())(x)


def without_gradients_inside(x: T) -> T:
    def loss(a: T) -> T:
        with torch.no_grad():
            scale = F.softmax(a, -1)
        return (scale * F.layer_norm(a, (6,))).sum() + rows(a).sum()

    return func.grad(loss)(x)


CASES: dict[str, Callable[[T], Any]] = {
    f.__name__: f
    for f in (
        grad, grad_and_value, grad_of_two, grad_with_aux, grad_of_grad, vmap, vmap_of_grad, vmap_of_chunks,
        grad_of_vmap, vjp, jvp, jacrev, jacfwd, hessian, linearize, forward_mode, grad_in_a_branch, meta_learning,
        gradients_of_each_sample, forces, set_grad_enabled, grad_of_weights, backward, functional_vjp, factory, hook,
        gradients_enabled, custom_function, custom_function_without_gradients, detach_inside, without_gradients_inside,
    )
}  # fmt: skip
