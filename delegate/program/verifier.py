"""The verifier of programs. The runtime trusts every index and offset of a verified program.

It takes time linear in the program, apart from the sorting of arena blocks (see `lifetimes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from delegate.errors import ProgramError
from delegate.program.bounds import Bounds
from delegate.program.checks import check_index, check_shape, fail
from delegate.program.declared import DeclarationChecker
from delegate.program.flow import FlowChecker
from delegate.program.lifetimes import check_memory
from delegate.program.model import FORMAT_VERSION, Constant, DelegateSpec, Method, Program, State

_POLICIES = ("allow", "warn", "error")


def verify(program: Program) -> None:
    """Check a program.

    Raises:
        ProgramError: names the method, the instruction or the value, and what is wrong with it.
    """
    if program.version != FORMAT_VERSION:
        fail(f"format version {program.version} is not {FORMAT_VERSION}", "the program")
    for kind, tensors in (("constant", program.constants), ("state", program.states)):
        for tensor in tensors:
            _check_tensor(tensor, program, f"{kind} {tensor.name!r}")
    for spec in program.delegates:
        for segment in (spec.segment, *spec.data):
            check_index(segment, program.segments, "segment", f"delegate {spec.name!r}")
        if spec.fallback != -1:
            check_index(spec.fallback, program.fallbacks, "fallback", f"delegate {spec.name!r}")
        _check_space(spec, program)
    if program.on_fallback not in _POLICIES:
        fail(f"{program.on_fallback!r} is no policy for fallbacks", "the program")
    _verify_methods(program, program.fallbacks, are_fallbacks=True)
    _verify_methods(program, program.methods)


def _verify_methods(program: Program, methods: Sequence[Method], *, are_fallbacks: bool = False) -> None:
    names: set[str] = set()
    for method in methods:
        if method.name in names:
            fail("two methods have this name", f"method {method.name!r}")
        names.add(method.name)
        try:
            bounds = Bounds(method.symbols)
            declared = DeclarationChecker(program, method, bounds)
            declared.verify()
            FlowChecker(program, method, is_fallback=are_fallbacks, outputs=declared.outputs).verify()
            check_memory(method, bounds)
        except RecursionError:
            raise ProgramError("something is nested too deeply", where=f"method {method.name!r}") from None


def _check_space(spec: DelegateSpec, program: Program) -> None:
    """Raise ProgramError unless the memory space of a delegate belongs to its backend."""
    if spec.space == 0:
        return
    check_index(spec.space - 1, program.spaces, "memory space", f"delegate {spec.name!r}")
    space = program.spaces[spec.space - 1]
    if space.backend != spec.backend:
        fail(f"its tensors are said to lie in memory of {space.backend!r}", f"delegate {spec.name!r}")


def _check_tensor(tensor: Constant | State, program: Program, where: str) -> None:
    check_index(tensor.segment, program.segments, "segment", where)
    check_shape(tensor.shape, tensor.dtype, where)
    need, have = tensor.dtype.itemsize * math.prod(tensor.shape), memoryview(program.segments[tensor.segment]).nbytes
    if need != have:
        shape = list(tensor.shape)
        fail(f"{tensor.dtype.name}{shape} takes {need} bytes, segment {tensor.segment} has {have}", where)
