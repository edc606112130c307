"""The text form, whole."""

from __future__ import annotations

import pytest

from delegate.program.dtypes import DType
from delegate.program.expr import UNBOUNDED_BELOW, Symbol
from delegate.program.file import load, serialize
from delegate.program.model import (
    Constant,
    Input,
)
from delegate.program.text import program_lines
from tests.support.programs import SAMPLES, dynamic, empty, in_tree, replace_method

STATIC = (
    r"""program, format version 6
debug info: 156 bytes
constants:
  #0 weight: float32[2, 4], segment 0, 32 bytes
  #1 tied: int32[8], segment 0, 32 bytes
delegates:
  #0 xnnpack_0: xnnpack, segment 1, 6 bytes, {"names": ["a", null, 1.5, {"b": true}], "threads": 2}

method forward:
  arguments: ((x=%0, mode='fast'), {'flag': flag=True, 3: none=None})
  result: some.Output(a=%5, b=[3, None, 'text', (n=[1, 2.5])])
  arenas: 32 bytes, 128 bytes
  %0: float32[2, 4] input #0 x
  %1: float32[2, 4] constant #0 weight
  %2: float32[2, 4] arena[0] mul
  %3: float32[8] alias of %2 view
  %4: float32[8] arena1[64] xnnpack_0
  %5: float32[8] output #0 add
  %2 = aten.mul.Tensor(%0, %1)  # model.py:3, in forward
  %3 = aten.view.default(%2, [8])
  %4 = delegate xnnpack_0(%3)
  %5 = aten.every.kind(%4, [%4, None, [1, -9223372036854775808, 9223372036854775807]], 1.5, inf, -0.0, (2+3j), """
    r"""True, False, 7, 'ä\n', bfloat16, 3, [])  # model.py:4, in forward
"""
)

DYNAMIC = """program, format version 6

method forward:
  arguments: ((x=%0,), {})
  result: (%2, ((batch + 1) // 2))
  arenas: planned per shape
  symbol batch >= 2 = size 0 of x
  symbol u0 in [0, 100] = size 0 of %1
  guard: (batch != 5)
  %0: float32[batch, 3] input #0 x
  %1: float32[((batch + 1) // 2), 3] arena[?] slice
  %2: float32[max(min(((batch + 1) // 2), 9), ((batch % 7) * -1)), 3] output #0 y
  %1 = aten.slice_copy.Tensor(%0, ((batch + 1) // 2))
  %2 = aten.slice_copy.Tensor(%1, max(min(((batch + 1) // 2), 9), ((batch % 7) * -1)))

method nothing:
  arguments: ((), {})
  result: ()
  arenas: 0 bytes
"""

STRUCTURED = """program, format version 6
states:
  #0 cache: float32[4], segment 0, 16 bytes

method forward:
  arguments: ((x=%0,), {})
  result: (%11, %0)
  arenas: 384 bytes
  %0: float32[4] input #0 x
  %1: float32[4] state #0 cache
  %2: bool[] arena[0] predicate
  %3: float32[4] alias of %0 then_in
  %4: float32[4] arena[64] then_out
  %5: float32[4] arena[64] else_in
  %6: float32[4] arena[128] cond_in
  %7: bool[] arena[192] cond_out
  %8: float32[4] arena[192] body_in
  %9: float32[4] arena[256] body_out
  %10: float32[4] arena[320] loop
  %11: float32[4] output #0 out
  %2 = aten.any.default(%0)
  %11 = if(%2, %0)
    then(%3):
      %4 = aten.add.Tensor(%3, %1)
      yield %4
    else(%5):
      %10 = while(%5, carried=1)
        condition(%6):
          %7 = aten.any.default(%6)
          yield %7
        body(%8):
          %9 = aten.add.Tensor(%8, %1)
          yield %9
      yield %10
  %1 = aten.copy.default(%1, %11)

method read:
  arguments: ((), {})
  result: %0
  arenas: 0 bytes
  %0: float32[4] state #0 cache
"""

FALLBACK = (
    STATIC.replace("156 bytes", "172 bytes").replace(
        '"threads": 2}\n', '"threads": 2}, fallback xnnpack_0 with constants of 0 bytes\non fallback: error\n'
    )
    + """
fallback xnnpack_0:
  arguments: ((view=%0,), {})
  result: (%1,)
  arenas: 0 bytes
  %0: float32[8] input #0 view
  %1: float32[8] output #0 mul
  %1 = aten.mul.Tensor(%0, %0)
"""
)

TEXTS = {
    "static": STATIC,
    "fallback": FALLBACK,
    "dynamic": DYNAMIC,
    "structured": STRUCTURED,
    "empty": "program, format version 6\n",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_text(name):
    program = SAMPLES[name]()
    assert list(program_lines(program)) == TEXTS[name].splitlines()
    assert list(program_lines(load(serialize(program)))) == TEXTS[name].splitlines()


def test_numbers_given_and_read():
    """Symbols that are inputs themselves, or elements of tensors."""
    inputs = (*dynamic().methods[0].inputs, Input("n", -1), Input("mode", -1, "fast"))
    symbols = (dynamic().methods[0].symbols[0], Symbol("size", 2, 9, 1), Symbol("u0", UNBOUNDED_BELOW, None, value=0))
    text = "\n".join(program_lines(replace_method(dynamic(), inputs=inputs, symbols=symbols, in_tree=in_tree(3))))
    assert "arguments: ((x=%0, n=size, mode='fast'), {})" in text
    assert "symbol size in [2, 9] = the number n" in text
    assert "symbol u0 = element of %0" in text


def test_control_characters_in_names_are_escaped():
    program = empty()._replace(constants=(Constant("\x1b[31m\nevil", DType.int8, (0,), 0),), segments=(b"",))
    assert r"#0 \x1b[31m\nevil: int8[0], segment 0, 0 bytes" in list(program_lines(program))[2]
