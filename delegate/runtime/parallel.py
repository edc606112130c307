"""Branches that may run at the same time, at run time. Imported only by programs that have some."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context

from delegate.errors import DelegateError, KernelError, Stopped
from delegate.plugins import one_line
from delegate.runtime.steps import Step, run_steps
from delegate.runtime.workers import Workers

_PATIENCE = 0.05  # seconds after which who waits looks for interrupts


class Stop:
    """A step at the beginning of every block inside of a branch: loops end there where the call is interrupted.

    Args:
        interrupts: have calls of delegates end that may take for ever.
    """

    def __init__(self, interrupts: Sequence[Callable[[], None]]) -> None:
        self._interrupts = tuple(interrupts)
        self._wanted = False

    def __call__(self) -> None:
        if self._wanted:
            raise Stopped("the call was interrupted")

    def failed(self, error: BaseException) -> DelegateError:
        """The error itself, which nobody is told: the interrupt is."""
        assert isinstance(error, Stopped)
        return error

    def want(self) -> None:
        """Have the branches end soon."""
        self._wanted = True
        for interrupt in self._interrupts:
            interrupt()

    def forget(self) -> None:
        """A new run begins."""
        self._wanted = False


class ParallelStep:
    """Runs branches, some of them in other threads where there is help, and waits until all have ended.

    All run to their end, also where one fails, so that the error is that of the first in order which fails, as if they
    ran one after another. After an interrupt they end early; it is raised when they have ended, for until then they
    use the memory of the context.

    Args:
        place: for messages.
        branches: the steps of each.
        stop: stands in their blocks.
        workers: the help.
    """

    __slots__ = ("branches", "place", "stop", "workers")

    def __init__(self, place: str, branches: Sequence[list[Step]], stop: Stop, workers: Workers) -> None:
        self.place, self.branches, self.stop, self.workers = place, branches, stop, workers

    def __call__(self) -> None:
        self.stop.forget()
        run = _Run(self.branches, self.stop)
        try:
            self.workers.offer(run.help, len(self.branches) - 1)
            run.work()
        except BaseException:
            run.abandon()
            raise
        finally:
            run.finish()
        error = run.first_error()
        if error is not None:
            raise error

    def failed(self, error: BaseException) -> DelegateError:
        """An error in a branch is that branch's own."""
        if isinstance(error, DelegateError):
            return error
        return KernelError(f"branches failed: {one_line(error)}", where=self.place)


class _Helper:
    """A thread at work, for the caller to wait for.

    An interrupt may come at any place in the caller's thread, which would leave the lock of a Condition held, or this
    one taken: so a flag says the end too. And the system may hand a signal to another thread, so that waiting goes on
    until the caller's is back in Python: so it waits for a short time, again and again.
    """

    __slots__ = ("_is_done", "_lock")

    def __init__(self) -> None:
        self._lock, self._is_done = threading.Lock(), False

    def __enter__(self) -> _Helper:
        self._lock.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_done = True
        self._lock.release()

    def wait(self) -> None:
        """Until it is done."""
        while not self._is_done:
            self._lock.acquire(timeout=_PATIENCE)


class _Run:
    """One run of the branches. Whoever works takes the next that nobody has taken."""

    def __init__(self, branches: Sequence[list[Step]], stop: Stop) -> None:
        # each branch sees the caller's context variables, such as what NumPy does about infinities
        self._left = deque((number, steps, copy_context()) for number, steps in enumerate(branches))
        self._stop = stop
        self.errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        self._helpers: list[_Helper] = []
        self._is_over = False

    def work(self) -> None:
        """Run branches until none is left; in the thread of the caller, where an interrupt ends it."""
        self._work(Exception)

    def help(self) -> None:
        """The same in another thread, which must raise nothing."""
        with _Helper() as helper:
            with self._lock:
                if self._is_over:
                    return
                self._helpers.append(helper)
            self._work(BaseException)  # of whatever kind: it is raised in the caller's thread

    def _work(self, kept: type[BaseException]) -> None:
        """Run branches until none is left; errors of this class are kept for the caller."""
        while (taken := self._take()) is not None:
            number, steps, context = taken
            try:
                context.run(run_steps, steps)
            except kept as error:
                self.errors[number] = error

    def _take(self) -> tuple[int, list[Step], Context] | None:
        try:
            return self._left.popleft()
        except IndexError:
            return None

    def first_error(self) -> BaseException | None:
        """The error of the first branch that failed, and nothing is kept of any."""
        first = self.errors[min(self.errors)] if self.errors else None
        self.errors.clear()
        return first

    def abandon(self) -> None:
        """Begin no other branch, and have those that run end soon."""
        self._left.clear()
        self._stop.want()

    def finish(self) -> None:
        """Wait for the helpers that are at work, come what may; others that come later find nothing to do."""
        interrupt: BaseException | None = None
        while True:
            try:
                with self._lock:
                    self._is_over = True
                for helper in self._helpers:
                    helper.wait()
                break
            except BaseException as error:  # an interrupt: wait on, but not for loops without end
                interrupt = error
                self.abandon()
        if interrupt is not None:
            raise interrupt
