"""Assertions of the model on its data, such as torch._check."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from delegate.errors import InputError, KernelError
from delegate.kernels.copies import CONVERTIBLE
from delegate.kernels.half_precision import Array
from delegate.kernels.table import TABLE
from delegate.program.expr import power

_Compute = Callable[[Sequence[Any]], Any]
_OPERATIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "neg": (1, operator.neg), "abs": (1, abs), "sym_float": (1, float), "sym_not": (1, operator.not_),
    "add": (2, operator.add), "sub": (2, operator.sub), "mul": (2, operator.mul), "truediv": (2, operator.truediv),
    "floordiv": (2, operator.floordiv), "mod": (2, operator.mod), "pow": (2, power), "sym_max": (2, max),
    "sym_min": (2, min), "eq": (2, operator.eq), "ne": (2, operator.ne), "lt": (2, operator.lt),
    "le": (2, operator.le), "gt": (2, operator.gt), "ge": (2, operator.ge), "and_": (2, operator.and_),
    "or_": (2, operator.or_), "sym_ite": (3, lambda condition, then, other: then if condition else other),
}  # fmt: skip  # name -> operands, function


@TABLE.kernel("aten._assert_async.default", "aten._assert_async.msg", dtypes=CONVERTIBLE)
def require(condition: Array, message: str, *, out: tuple[()]) -> None:
    """Raise InputError with the message unless the only element of the condition is true."""
    if not condition.item():
        raise _failure(message)


@TABLE.kernel("assertion.numbers.default", dtypes=CONVERTIBLE)
def require_numbers(numbers: Sequence[Array | float], condition: str, message: str, *, out: tuple[()]) -> None:
    """Raise InputError with the message unless a condition on numbers is true.

    Args:
        numbers: numbers, and arrays of one element.
        condition: A condition in postfix notation, for example "n0 2 mod 0 eq": the first number is even.
        message: The error's message.
    """
    values = [n.item() if isinstance(n, np.ndarray) else n for n in numbers]
    if not _compile_condition(condition)(values):
        raise _failure(f"{message}, of {' and '.join(map(str, values))}")


def _failure(message: str) -> InputError:
    return InputError(f"an assertion of the model fails: {message}", remedy="pass inputs that satisfy it")


@lru_cache(maxsize=4096)
def _compile_condition(condition: str) -> _Compute:
    """Return the function that computes a condition from its numbers; raise KernelError for other texts."""
    stack: list[_Compute] = []
    try:
        for word in condition.split():
            stack.append(_compile_word(word, stack))
        (result,) = stack
    except (ValueError, IndexError):
        raise KernelError(f"{condition!r} is no condition in postfix notation") from None
    return result


def _compile_word(word: str, stack: list[_Compute]) -> _Compute:
    """Return the function for a word, whose operands it takes from the stack."""
    if word in _OPERATIONS:
        count, function = _OPERATIONS[word]
        operands = [stack.pop() for _ in range(count)][::-1]
        if count == 2:  # most are comparisons
            left, right = operands
            return lambda numbers: function(left(numbers), right(numbers))
        return lambda numbers: function(*[operand(numbers) for operand in operands])
    if word.startswith("n"):
        return operator.itemgetter(int(word[1:]))
    literal = int(word) if word.lstrip("-").isdecimal() else float(word)
    return lambda numbers: literal
