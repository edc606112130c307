"""The resources that the execution plans of one context share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from delegate.kernels.selection import Kernels
from delegate.program.model import Program
from delegate.runtime.backend import Array, Delegate
from delegate.runtime.parallel import Workers
from delegate.runtime.platform import Platform

if TYPE_CHECKING:
    from delegate.runtime.devices import Space
    from delegate.runtime.lazy_constants import LazyConstantTable
    from delegate.runtime.profile import Watch


class Resources(NamedTuple):
    """The resources of one context. All contexts of a program share all but states, lock and watch.

    Args:
        program: to bind.
        constants: an array per constant.
        delegates: a delegate per partition.
        delegate_locks: held while a delegate runs: a lock, or a null context for a thread-safe delegate.
        kernels: source of kernels.
        platform: allocates memory.
        states: an array per state.
        lazy_constants: values that methods compute from constants alone.
        lock: held during a call.
        workers: threads for parallel branches.
        watch: measures the instructions; None without a profile.
        spaces: memory of devices, as `Program.spaces`.
        portable_shares: method -> the share of portable kernels in its time, by the last profile of it that has ended.
    """

    program: Program
    constants: tuple[Array, ...]
    delegates: tuple[Delegate, ...]
    delegate_locks: tuple[AbstractContextManager[Any], ...]
    kernels: Kernels
    platform: Platform
    states: tuple[Array, ...]
    lazy_constants: LazyConstantTable
    lock: Lock
    workers: Workers
    portable_shares: dict[str, float]
    watch: Watch | None = None
    spaces: tuple[Space, ...] = ()
