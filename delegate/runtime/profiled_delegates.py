"""Delegates that report the operators of their vendor library, and replace a program's delegates for a listener."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from delegate.devtools.events import OperatorRun
from delegate.devtools.listeners import Subscription
from delegate.errors import BackendFailed
from delegate.plugins import AUTHOR
from delegate.program.model import DelegateSpec
from delegate.runtime.backend import Delegate, ReportOperator
from delegate.runtime.call_lock import CallLock
from delegate.runtime.delegates import close_delegates, lock_of
from delegate.runtime.steps import failed


class ProfiledDelegates:
    """The delegates of a program whose library reports its operators, opened again.

    Args:
        specs: The specs of all delegates of the program.
        delegates: The program's delegates.
        subscriptions: Subscriptions of the listeners that receive the operators.

    Attributes:
        delegates: number of a delegate -> the delegate and lock in its place.

    Raises:
        BackendFailed: a delegate could not be opened again.
    """

    def __init__(
        self, specs: Sequence[DelegateSpec], delegates: Sequence[Delegate], subscriptions: Sequence[Subscription]
    ) -> None:
        self._specs: list[DelegateSpec] = []
        self._opened: list[Delegate] = []
        self.delegates: dict[int, tuple[Delegate, CallLock | None]] = {}
        try:
            for number, (spec, delegate) in enumerate(zip(specs, delegates, strict=True)):
                own = _open(spec, delegate, subscriptions)
                if own is not None:
                    self._specs.append(spec)
                    self._opened.append(own)
                    self.delegates[number] = own, lock_of(spec, own)
        except BaseException:
            with suppress(BackendFailed):  # report the error that stopped the opening
                self.close()
            raise

    def close(self) -> None:
        """Close them, which may report further operators; raise BackendFailed if one could not be closed."""
        close_delegates(self._specs, self._opened)


def _open(spec: DelegateSpec, delegate: Delegate, subscriptions: Sequence[Subscription]) -> Delegate | None:
    try:
        own = delegate.profiled(_reporter(spec, subscriptions))
        if own is not None and not isinstance(own, Delegate):
            raise BackendFailed(f"its profiled() returned a {type(own).__name__}, not a Delegate", remedy=AUTHOR)
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise failed(spec, error) from error
    return own


def _reporter(spec: DelegateSpec, subscriptions: Sequence[Subscription]) -> ReportOperator:
    def report(name: str, what: str, start: int, duration: int) -> None:
        event = OperatorRun(spec.backend, spec.name, name, what, start, duration)
        for subscription in subscriptions:
            subscription(event)

    return report
