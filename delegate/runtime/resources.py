"""The resources that the execution plans of one context share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from delegate.kernels.selection import Kernels
from delegate.program.model import Program
from delegate.runtime.backend import Array, Delegate
from delegate.runtime.call_lock import CallLock
from delegate.runtime.platform import Platform

if TYPE_CHECKING:
    from delegate.runtime.devices import Space
    from delegate.runtime.lazy_constants import LazyConstantTable
    from delegate.runtime.watch import Watch


class Resources(NamedTuple):
    """The resources of one context. All contexts of a program share all but states, lock, watch and profiled delegates.

    Args:
        program: The program that is bound.
        constants: an array per constant.
        delegates: a delegate per partition.
        delegate_locks: held while a delegate runs; None for a thread-safe delegate.
        kernels: source of kernels.
        platform: allocates memory.
        states: an array per state.
        lazy_constants: values that methods compute from constants alone.
        lock: held during a call.
        watch: observes the instructions; None without a listener.
        profiled: number of a delegate -> the delegate and lock in its place, which report the library's operators.
        spaces: memory of devices, as `Program.spaces`.
        portable_shares: method -> the share of portable kernels in its time, by the last profile of it that has ended.
    """

    program: Program
    constants: tuple[Array, ...]
    delegates: tuple[Delegate, ...]
    delegate_locks: tuple[CallLock | None, ...]
    kernels: Kernels
    platform: Platform
    states: tuple[Array, ...]
    lazy_constants: LazyConstantTable
    lock: CallLock
    portable_shares: dict[str, float]
    watch: Watch | None = None
    profiled: Mapping[int, tuple[Delegate, CallLock | None]] = MappingProxyType({})
    spaces: tuple[Space, ...] = ()

    def delegate(self, number: int) -> tuple[Delegate, CallLock | None]:
        """Return the delegate of a partition, and its lock."""
        return self.profiled.get(number) or (self.delegates[number], self.delegate_locks[number])
