"""Restoration of torch's state after an interrupt.

Tracing and decomposing change torch's state of the process and of the thread: stacks of modes, dispatch keys, kernels
of operators, methods of modules. Torch's own code restores this state, but an interrupt may stop that code.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import _guards
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses import fake_impls
from torch.fx import _symbolic_trace
from torch.nn import Module
from torch.utils import _python_dispatch

from delegate.interrupts import error_chain

_ops: Any = torch._ops  # these parts of torch have no types
_overrides: Any = torch.overrides
_fx: Any = _symbolic_trace
_KEYS = tuple(torch._C.DispatchKey.__members__.values())
# What torch.fx replaces while it traces, where it notes what it replaced, and the flags of a trace. Dynamo takes noted
# replacements off before it looks at a function and puts them on again after it, so stale notes spoil later traces.
# Each row has the arguments of getattr.
_ATTRIBUTES: tuple[tuple[Any, ...], ...] = (
    (Module, "__call__"),
    (Module, "__getattr__"),
    (_fx, "CURRENT_PATCHER"),
    # Torch 2.14 has the flag for each thread.
    (_fx._is_fx_tracing_tls, "flag", False) if hasattr(_fx, "_is_fx_tracing_tls") else (_fx, "_is_fx_tracing_flag"),
    (torch.compiler, "_is_compiling_flag"),
    (torch.compiler, "_is_exporting_flag"),
)


@contextmanager
def restore_torch_on_error() -> Iterator[None]:
    """Return a context that restores torch's state after an exception, from whatever place."""
    before = _State.now()
    try:
        yield
    except BaseException as error:
        if not before.holds():
            _free_frames(error)  # they hold guards of torch that change its state once more when they are freed
            before.restore()
        raise


class _State(NamedTuple):
    """The part of torch's state that tracing changes."""

    modes: list[Any]
    function_modes: list[Any]
    pre_dispatch: int
    included: frozenset[Any]
    excluded: frozenset[Any]
    grad: bool
    context: dict[str, Any]
    attributes: tuple[Any, ...]
    fake: dict[Any, Any]
    kernels: dict[int, dict[Any, Any]]  # of operators by identity, since their hash is slow

    @classmethod
    def now(cls) -> _State:
        """Return the current state of this thread and process."""
        return cls(
            modes=_python_dispatch._get_current_dispatch_mode_stack(),
            function_modes=_overrides._get_current_function_mode_stack(),
            pre_dispatch=_ops._len_torch_dispatch_stack_pre_dispatch(),
            included=_keys(torch._C._dispatch_tls_local_include_set()),
            excluded=_keys(torch._C._dispatch_tls_local_exclude_set()),
            grad=torch.is_grad_enabled(),
            context={name: value for name, value in vars(_guards._TLS).items() if value is not None},
            attributes=tuple(getattr(*row) for row in _ATTRIBUTES),
            fake=dict(fake_impls.op_implementations_dict),
            kernels={id(op): dict(op.py_kernels) for op in _operators()},
        )

    def holds(self) -> bool:
        """Return true if torch is in this state."""
        now = _State.now()
        is_unpatched = not any(self._is_patched(op) for op in _operators())
        return is_unpatched and now._replace(kernels={}) == self._replace(kernels={})

    def _is_patched(self, op: OpOverload) -> bool:
        """Return true if an operator has other kernels, or another decomposition if it was not known then."""
        if id(op) in self.kernels:
            return bool(op.py_kernels != self.kernels[id(op)])
        return torch._C.DispatchKey.CompositeImplicitAutograd in op.py_kernels

    def restore(self) -> None:
        """Restore torch to this state."""
        _restack(
            _python_dispatch._get_current_dispatch_mode_stack,
            self.modes,
            _python_dispatch._pop_mode,
            _python_dispatch._push_mode,
        )
        _restack(
            _overrides._get_current_function_mode_stack,
            self.function_modes,
            _overrides._pop_mode,
            _overrides._push_mode,
        )
        while _ops._len_torch_dispatch_stack_pre_dispatch() > self.pre_dispatch:
            _ops._pop_mode_from_pre_dispatch()
        for op in _operators():
            if self._is_patched(op):
                op.py_kernels.clear()
                op.py_kernels.update(self.kernels.get(id(op), {}))
                op._dispatch_cache.clear()
        fake_impls.op_implementations_dict.clear()
        fake_impls.op_implementations_dict.update(self.fake)
        for (owner, name, *_), value in zip(_ATTRIBUTES, self.attributes, strict=True):
            setattr(owner, name, value)
        vars(_guards._TLS).clear()
        vars(_guards._TLS).update(self.context)
        torch.set_grad_enabled(self.grad)
        for key in _KEYS:
            torch._C._dispatch_tls_set_dispatch_key_included(key, key in self.included)
            torch._C._dispatch_tls_set_dispatch_key_excluded(key, key in self.excluded)


def _keys(keys: Any) -> frozenset[Any]:
    return frozenset(key for key in _KEYS if keys.has(key))


def _restack(
    now: Callable[[], list[Any]], modes: list[Any], pop: Callable[[], Any], push: Callable[[Any], Any]
) -> None:
    """Set a stack to these modes."""
    if now() != modes:
        while now():
            pop()
        for mode in modes:
            push(mode)


def _operators() -> Iterator[OpOverload]:
    """Yield all operators that this process has looked up."""
    for namespace in tuple(vars(torch.ops).values()):
        for packet in tuple(vars(namespace).values()) if isinstance(namespace, torch._ops._OpNamespace) else ():
            if isinstance(packet, OpOverloadPacket):
                yield from (op for op in tuple(vars(packet).values()) if isinstance(op, OpOverload))


def _free_frames(error: BaseException | None) -> None:
    """Clear the frames of an exception, and of the exceptions before it."""
    for cause in error_chain(error):
        traceback.clear_frames(cause.__traceback__)
