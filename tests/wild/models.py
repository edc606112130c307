"""Random models out of the rows of `tests.wild.rows`, the same for a number at every run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tests.wild.rows import INTS, ROWS

# What models take: a letter for each dimension (B is the batch), and the element type.
INPUTS: Mapping[str, tuple[str, torch.dtype]] = {
    "image": ("BCHW", torch.float32),
    "signal": ("BCL", torch.float32),
    "sequence": ("BLC", torch.float32),
    "matrix": ("BC", torch.float32),
    "tokens": ("BL", torch.int64),
    "mask": ("BL", torch.bool),
    "volume": ("BCLHW", torch.float32),
    "vector": ("C", torch.float32),
}
_WEIGHTS = (5, 4, 4, 3, 3, 3, 1, 1)
_FREE = "BLHW"  # letters that may be dynamic
_LARGEST = 200.0  # values of a step beyond it are not kept
_MOST = 3000  # elements of a step


@dataclass(frozen=True)
class Step:
    """A block at work: `function` of the values of some numbers gives those of others."""

    name: str
    function: Callable[..., Any]
    operands: tuple[int, ...]
    results: tuple[int, ...]


class Steps(nn.Module):
    """The module of some steps: of the inputs, which are the first values, to the values that are asked for."""

    def __init__(self, steps: Sequence[Step], outputs: Sequence[int]) -> None:
        super().__init__()
        self.steps, self.outputs = tuple(steps), tuple(outputs)
        self.parts = nn.ModuleList(s.function for s in steps if isinstance(s.function, nn.Module))

    def __deepcopy__(self, memo: dict[int, Any]) -> Steps:
        return Steps([replace(s, function=copy.deepcopy(s.function, memo)) for s in self.steps], self.outputs)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = dict(enumerate(inputs))
        for step in self.steps:
            result = step.function(*(values[i] for i in step.operands))
            values |= zip(step.results, result if isinstance(result, tuple | list) else (result,), strict=True)
        return tuple(values[i] for i in self.outputs)


@dataclass
class Model:
    """A random model.

    Args:
        inputs: of `INPUTS`, by name.
        steps: in order.
        outputs: numbers of values.
        sizes: letter -> size, of the example.
        dynamic: letters that are dynamic.
        others: more sizes to call it with.
    """

    inputs: list[str]
    steps: list[Step]
    outputs: list[int]
    sizes: dict[str, int]
    dynamic: str = ""
    others: list[dict[str, int]] = field(default_factory=list)

    def module(self) -> Steps:
        """The model, with state of its own."""
        return copy.deepcopy(Steps(self.steps, self.outputs)).eval()

    def example(self, sizes: Mapping[str, int] | None = None) -> tuple[Tensor, ...]:
        """Inputs of some sizes: multiples of 1/4, integers from 0 to 4, truths."""
        return tuple(_values(name, i, sizes or self.sizes) for i, name in enumerate(self.inputs))

    def dynamic_shapes(self) -> Any:
        """Of torch.export."""
        if not self.dynamic:
            return None
        auto = torch.export.Dim.AUTO
        return (tuple({d: auto for d, c in enumerate(INPUTS[n][0]) if c in self.dynamic} for n in self.inputs),)

    def smaller(self) -> Iterator[Model]:
        """Models with one step less, one output less, or without dynamic sizes."""
        for at in reversed(range(len(self.steps))):
            yield from self._without(at)
        if len(self.outputs) > 1:
            for at in range(len(self.outputs)):
                yield replace(self, outputs=self.outputs[:at] + self.outputs[at + 1 :])
        for letter in self.dynamic:
            yield replace(
                self,
                dynamic=self.dynamic.replace(letter, ""),
                others=[{**o, letter: self.sizes[letter]} for o in self.others],
            )
        if len(self.others) > 1:
            yield from (replace(self, others=[o]) for o in self.others)

    def _without(self, at: int) -> Iterator[Model]:
        """Without a step: what came of it is its operand, or is gone with all that needs it."""
        gone, rest = self.steps[at], [s for i, s in enumerate(self.steps) if i != at]
        for operand in gone.operands:
            other = dict.fromkeys(gone.results, operand)
            steps = [replace(s, operands=tuple(other.get(i, i) for i in s.operands)) for s in rest]
            yield replace(self, steps=steps, outputs=[other.get(i, i) for i in self.outputs])
        lost, steps = set(gone.results), []
        for step in rest:
            if lost & set(step.operands):
                lost |= set(step.results)
            else:
                steps.append(step)
        if outputs := [i for i in self.outputs if i not in lost]:
            yield replace(self, steps=steps, outputs=outputs)


def _values(name: str, seed: int, sizes: Mapping[str, int]) -> Tensor:
    letters, dtype = INPUTS[name]
    shape = [sizes[c] for c in letters]
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.6
    if dtype in INTS:
        return torch.randint(0, 5, shape, generator=generator)
    return torch.randint(-8, 9, shape, generator=generator) / 4


def model(number: int) -> Model:
    """The random model of that number, of which torch takes every step."""
    r = Random(number)
    torch.manual_seed(number)
    sizes = {
        "B": r.choice([1, 2, 3, 4]),
        "C": r.choice([2, 4, 4, 6]),
        "L": r.randint(3, 7),
        "H": r.randint(3, 8),
        "W": r.randint(3, 8),
    }
    made = Model(r.choices(list(INPUTS), _WEIGHTS, k=r.randint(1, 3)), [], [], sizes)
    values, exact = list(made.example()), [True] * len(made.inputs)
    wanted = r.randint(3, 16)
    for _ in range(100):
        if len(made.steps) == wanted:
            break
        name = r.choice(list(ROWS))
        row = ROWS[name]
        fitting = [[i for i, v in enumerate(values) if v.dtype in dtypes and v.dim()] for dtypes in row.takes]
        if not all(fitting):
            continue
        operands = tuple(_picked(r, some) for some in fitting)
        all_exact = all(exact[i] for i in operands)
        if (row.jumps and not all_exact) or (name in ("copy",) and exact[operands[0]] and not all_exact):
            continue
        try:
            function = row.make(r, *(values[i] for i in operands))
            longer = _with(made, name, function, operands, [values[i] for i in operands])
            everything = range(len(values) + len(longer.steps[-1].results))
            tried = replace(longer, outputs=list(everything)).module()(*made.example())
        except Exception:  # attributes that torch does not take
            continue
        if all(_sane(v) for v in tried):
            made, values = longer, list(tried)
            exact += [all_exact and row.exact] * (len(values) - len(exact))
    used = {i for s in made.steps for i in s.operands}
    made.outputs = [i for i in range(len(made.inputs), len(values)) if i not in used]
    made.outputs += r.choices(range(len(values)), k=r.choice([0, 1, 1, 2, 3]) if made.outputs else 1)
    free = sorted({c for n in made.inputs for c in INPUTS[n][0]} & set(_FREE))
    if free and r.random() < 0.5:
        made.dynamic = "".join(sorted(r.sample(free, min(len(free), r.randint(1, 2)))))
        for letter in made.dynamic:
            made.sizes[letter] = max(made.sizes[letter], 2)
        made.others = [
            {**made.sizes, **{c: max(2, made.sizes[c] + r.randint(-2, 4)) for c in made.dynamic}} for _ in range(3)
        ]
    return made


def _with(
    made: Model, name: str, function: Callable[..., Any], operands: tuple[int, ...], given: list[Tensor]
) -> Model:
    result = copy.deepcopy(function)(*(g.clone() for g in given))
    count = len(result) if isinstance(result, tuple | list) else 1
    first = len(made.inputs) + sum(len(s.results) for s in made.steps)
    return replace(made, steps=[*made.steps, Step(name, function, operands, tuple(range(first, first + count)))])


def _picked(r: Random, numbers: list[int]) -> int:
    """One of them, more likely a late one."""
    return numbers[max(r.randrange(len(numbers)), r.randrange(len(numbers)))]


def _sane(value: Tensor) -> bool:
    if not 0 < value.numel() <= _MOST or value.dim() > 6:
        return False
    return bool(value.abs().double().max() < _LARGEST) if value.dtype != torch.bool else True
